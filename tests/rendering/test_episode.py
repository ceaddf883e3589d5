import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import factory
from stoix_like.errors import ConfigError
from stoix_like.rendering import episode as episodes
from stoix_like.rendering.episode import MAX_FRAMES
from support.recordings import make, record
from support.set_ups import config_of


def test_recording_is_one_whole_episode():
    recording = record(make("CartPole-v1"), 1000)
    length = len(recording.returns) - 1
    # The pole falls within a dozen steps, each with a reward of 1.
    assert 8 <= length <= 11
    np.testing.assert_array_equal(recording.steps, np.arange(length + 1))
    np.testing.assert_array_equal(recording.returns, np.arange(length + 1))
    np.testing.assert_array_equal(recording.finished, [False] * length + [True])
    state = recording.states
    expected = np.stack([state.x, state.x_dot, state.theta, state.theta_dot], axis=-1)
    np.testing.assert_array_equal(recording.views, expected)
    assert state.time.tolist() == list(range(length + 1))
    assert (np.diff(state.x[1:]) < 0).all()


def push_nothing(shared, state, key):
    return state.carry, jnp.zeros((1, 1)), ()


@pytest.mark.parametrize(("max_steps", "length"), [(1000, 30), (23, 23), (24, 24)])
def test_recording_joins_chunks_and_stops_at_max_steps(max_steps, length, monkeypatch):
    """Episodes longer than a chunk, whether their length is a multiple of its size or not."""
    monkeypatch.setattr(episodes, "_CHUNK", 8)
    env = make("Pendulum-v1", "env.time_limit=30")
    recording = record(env, max_steps, push_nothing)
    assert recording.states.time.tolist() == list(range(length + 1))
    assert bool(recording.finished[-1]) == (length == 30)
    assert (np.diff(recording.returns) < 0).all()


@pytest.mark.parametrize("length", [1, 498, 499, 1100])
def test_kept_steps_are_evenly_spaced_and_bounded(length):
    env = make("Pendulum-v1", f"+env.params.max_steps_in_episode={length}")
    recording = record(env, 10_000, push_nothing)
    steps = recording.steps
    np.testing.assert_array_equal(recording.states.time, steps)
    assert len(steps) <= MAX_FRAMES
    assert (steps[0], steps[-1]) == (0, length)
    assert len(set(np.diff(steps)[:-1])) <= 1
    assert length >= MAX_FRAMES - 1 or len(steps) == length + 1


@pytest.mark.parametrize("name", ["gymnasium/cartpole", pytest.param("envpool/cartpole", marks=pytest.mark.slow)])
def test_host_environments_are_drawn_up_to_the_state_that_ends_the_episode(name):
    env = factory.make_drawn(config_of(f"env={name}").env)
    recording = record(env, 1000, lambda shared, state, key: (state.carry, jnp.zeros((1,), jnp.int32), ()))
    env.close()
    assert recording.finished.tolist() == [False] * int(recording.steps[-1]) + [True]
    pictures = recording.states
    assert (pictures.dtype, pictures.shape[-1]) == (np.uint8, 3)
    # A reset would bring the cart back to the middle: it moves to the left in every picture.
    dark = (pictures.max(-1) < 60) & (np.arange(pictures.shape[1])[:, None] < 0.8 * pictures.shape[1])
    middles = [np.nonzero(picture)[1].mean() for picture in dark]
    assert middles[-1] < middles[1] < middles[0] + 2


def test_host_environments_without_pictures_are_refused(monkeypatch):
    monkeypatch.setattr("gymnasium.envs.toy_text.frozen_lake.FrozenLakeEnv.render", lambda self: None)
    config = config_of("env=gymnasium", "env.scenario.name=FrozenLake-v1").env
    with pytest.raises(ConfigError, match="env.scenario.name=FrozenLake-v1 cannot be drawn"):
        factory.make_drawn(config)
