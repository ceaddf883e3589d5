import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make_eval
from stoix_like.envs.factory import make_drawn
from support.conformance import check_episode, draw_start, env_config
from support.lazily import Lazy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")]

environments = Lazy("octax.environments")


def test_an_end_at_the_time_limit_is_a_termination():
    env = make_eval(env_config("octax", "brix", params={"max_steps_in_episode": 1}))
    keys = jax.random.split(jax.random.key(0), 1)

    @jax.jit
    def step(lives):
        state, _ = env.reset(keys)
        game = state.env_state
        return env.step(keys, state._replace(env_state=game.replace(V=game.V.at[:, 14].set(lives))), jnp.full(1, 2))[1]

    lost, alive = step(4), step(5)
    assert (bool(lost.terminated[0]), bool(lost.truncated[0])) == (True, False)
    assert (bool(alive.terminated[0]), bool(alive.truncated[0])) == (False, True)


def test_an_episode_equals_one_of_the_suite():
    env, (bare, _) = make_eval(env_config("octax", "brix")), environments.create_environment("brix")

    def view_of(frames):
        return 255 * jnp.transpose(frames, (2, 1, 0)).astype(jnp.uint8)

    def reset(key):
        state, frames, _ = bare.reset(jax.random.key_data(key))
        return view_of(frames), state

    def step(key, state, action):
        state, frames, reward, end, _, _ = bare.step(state.replace(rng=jax.random.key_data(key)), action)
        return (view_of(frames), reward, end, end), state

    steps = check_episode(env, reset, step, 3, 100)
    assert steps.reward.any()
    assert steps.next_observation.agent_view.dtype == np.uint8


def test_every_game_and_level_has_a_name_and_is_drawn_by_the_suite():
    env = make_drawn(env_config("octax", "space_flight10"))
    assert env.legend().actions == ("key 1", "key 4", "none")
    shown, view = draw_start(env)
    assert shown.shape == (32 * 8, 64 * 8, 3)
    lit = shown[::8, ::8, 0] > 100
    np.testing.assert_array_equal(lit, view[0, :, :, -1] > 0)


def test_a_step_has_as_many_channels_as_frames():
    env = make_eval(env_config("octax", "pong", kwargs={"frame_skip": 2}))
    assert env.observation_space.shape == (32, 64, 2)
