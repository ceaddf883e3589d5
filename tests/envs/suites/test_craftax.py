from pathlib import Path

import craftax
import jax
import jax.numpy as jnp
import pytest
from craftax.craftax_env import make_craftax_env_from_name

from stoix_like.envs import make_eval
from support.conformance import check_episode, env_config

pytestmark = pytest.mark.slow

CLASSIC = "Craftax-Classic-Symbolic-v1"
NOTHING = 0


@pytest.mark.parametrize(("limit", "health"), [(4, 0), (100, 0), (4, 9)])
def test_death_is_a_termination(limit, health):
    env = make_eval(env_config("craftax", CLASSIC, params={"max_timesteps": limit}))
    keys = jax.random.split(jax.random.key(0), 1)

    def last_step(keys):
        state, _ = env.reset(keys)
        world = state.env_state.replace(timestep=jnp.full(1, 3), player_health=jnp.full(1, health))
        return env.step(keys, state._replace(env_state=world), jnp.full(1, NOTHING))[1]

    timestep = jax.jit(last_step)(keys)
    assert bool(timestep.terminated[0]) is (health == 0)
    assert bool(timestep.truncated[0]) is (health > 0)


def test_an_episode_equals_one_of_craftax():
    env, bare = make_eval(env_config("craftax", CLASSIC)), make_craftax_env_from_name(CLASSIC, auto_reset=False)
    params = bare.default_params

    def step(key, state, action):
        view, state, reward, end, _ = bare.step_env(key, state, action, params)
        return (view, reward, end, end), state

    check_episode(env, lambda key: bare.reset_env(key, params), step, 17, 300, return_rtol=1e-5)


def test_textures_are_read_without_a_word_and_without_a_cache(capsys):
    env = make_eval(env_config("craftax", "Craftax-Classic-Pixels-v1"))
    assert env.observation_space.shape == (63, 63, 3)
    assert capsys.readouterr().out == ""
    assert not list(Path(craftax.__path__[0]).rglob("*.pbz2"))
