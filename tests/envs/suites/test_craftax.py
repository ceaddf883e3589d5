"""Tests of the adapter of craftax against craftax itself."""

from pathlib import Path

import craftax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from craftax.craftax_env import make_craftax_env_from_name

from stoix_like.envs import make, make_eval
from stoix_like.errors import ConfigError
from support.conformance import check, check_time_limit, env_config

pytestmark = pytest.mark.slow

CLASSIC, FULL = "Craftax-Classic-Symbolic-v1", "Craftax-Symbolic-v1"
NOTHING = 0


def test_classic_conforms():
    _, _, steps = check("craftax", CLASSIC)
    assert steps.terminated.any()


@pytest.mark.parametrize("name", [FULL, "Craftax-Classic-Pixels-v1"])
def test_conformance(name):
    check("craftax", name, 40, params={"max_timesteps": 15})


@pytest.mark.parametrize("name", [CLASSIC, FULL])
def test_time_limit_is_a_truncation(name):
    def wait(timestep):
        return jnp.full(timestep.reward.shape, NOTHING)

    check_time_limit("craftax", name, 4, wait, num_envs=1, params={"max_timesteps": 4})


@pytest.mark.parametrize(("limit", "health"), [(4, 0), (100, 0), (4, 9)])
def test_death_is_a_termination(limit, health):
    """A player without health dies, whether or not the time limit is reached in the same step."""
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
    num_steps = 300
    env, bare = make_eval(env_config("craftax", CLASSIC)), make_craftax_env_from_name(CLASSIC, auto_reset=False)
    params = bare.default_params

    def both(key):
        reset_key, *keys = jax.random.split(key, num_steps + 1)
        state, first = env.reset(reset_key[None])
        view, inner = bare.reset_env(reset_key, params)

        def step(carry, key):
            state, inner = carry
            action = jax.random.randint(key, (), 0, 17)
            state, ours = env.step(key[None], state, action[None])
            inner_view, inner, reward, end, _ = bare.step_env(key, inner, action, params)
            return (state, inner), (ours, (inner_view, reward, end))

        return first, view, jax.lax.scan(step, (state, inner), jnp.stack(keys))[1]

    with jax.numpy_rank_promotion("allow"):
        first, view, (ours, (views, rewards, ends)) = jax.jit(both)(jax.random.key(0))
    end = int(np.argmax(ends)) + 1
    assert 1 < end < num_steps
    np.testing.assert_array_equal(first.observation.agent_view[0], view)
    np.testing.assert_array_equal(ours.next_observation.agent_view[:end, 0], views[:end])
    np.testing.assert_array_equal(ours.reward[:end, 0], rewards[:end])
    np.testing.assert_array_equal(ours.terminated[:end, 0], ends[:end])
    np.testing.assert_allclose(ours.episode.episode_return[end - 1, 0], rewards[:end].sum(), rtol=1e-5)


def test_textures_are_read_without_a_word_and_without_a_cache(capsys):
    env = make_eval(env_config("craftax", "Craftax-Classic-Pixels-v1"))
    assert env.observation_space.shape == (63, 63, 3)
    assert capsys.readouterr().out == ""
    assert not list(Path(craftax.__path__[0]).rglob("*.pbz2"))


def test_the_spaces_are_those_of_the_game():
    env = make_eval(env_config("craftax", CLASSIC))
    assert env.observation_space.shape == (1345,)
    assert env.action_space.n == 17


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Craftax-Symbolic", {}, "env.scenario.name='Craftax-Symbolic' is not a scenario .*'Craftax-Symbolic-v1'"),
        (CLASSIC, {"kwargs": {"size": 3}}, "env.kwargs.size=3 is not a parameter of .*: it has none"),
        (CLASSIC, {"params": {"max_steps": 3}}, "env.params.max_steps=3 .*'max_timesteps'"),
        (CLASSIC, {"params": {"max_timesteps": 0}}, "env.params.max_timesteps=0 must be at least 1"),
        (CLASSIC, {"params": {"always_diamond": 2}}, "env.params.always_diamond=2 is invalid"),
        (CLASSIC, {"params": {"fractal_noise_angles": [1, 1, 1, 1]}}, "fractal_noise_angles=.* is not a parameter"),
    ],
)
def test_invalid_settings_raise(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(env_config("craftax", name, **changes))
