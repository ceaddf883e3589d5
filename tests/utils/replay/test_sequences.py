from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, Trajectory, Transition
from stoix_like.utils.replay import PrioritisedBlockConfig, SequenceReplayConfig, end_episodes, make_sequence_replay
from support.compiled import run
from support.replayed import NUM_ENVS, SIZES, empty, spec


@dataclass(frozen=True, kw_only=True)
class Config(PrioritisedBlockConfig, SequenceReplayConfig):
    prioritised: bool = True


def make(**values):
    sizes = {"total_buffer_size": 32, "burn_in_length": 1, "sequence_length": 3, "sequence_period": 2}
    replay = make_sequence_replay(Config(**{**SIZES, **sizes, **values}), spec(), jnp.zeros((1,)), reward_scale=0.5)
    return replay, jax.device_get(run(empty, replay))


def rollout(first):
    """Return four steps whose observations and states count from `first`, offset by 100 per environment."""
    number = np.float32(np.arange(first, first + 4)[:, None] + 100 * np.arange(NUM_ENVS))
    no = np.zeros(number.shape, bool)
    steps = Transition(
        observation=Observation(number[..., None]),
        action=(number % 3).astype(np.int32),
        reward=number,
        terminated=no,
        truncated=no,
        next_observation=Observation(number[..., None] + 0.5),
        is_first=number % 100 == 6,
        extras=number[..., None] + 0.25,
    )
    return Trajectory(steps, ())


@pytest.mark.parametrize(("stored", "length"), [(True, 4), (False, 5)])
def test_sequences_are_consecutive_steps_with_the_state_before_them(stored, length):
    """Rows hold 16 steps: after 24 of them, the oldest is 8; sequences start at even ones and end with step 23."""
    replay, state = make(store_next_observation=stored)
    add = jax.jit(replay.add)
    for first in range(0, 24, 4):
        state = add(state, rollout(first))
    batch = jax.device_get(jax.jit(replay.sample)(state, jax.random.key(0), 1.0))
    views = batch.steps.observation.agent_view[..., 0]
    assert views.shape == (length, 64)
    np.testing.assert_array_equal(views, views[0] + np.arange(length)[:, None])
    starts = set(views[0])
    # Sequences of five steps take three blocks of two.
    assert starts == {start + env for start in range(8, 21 - 2 * (not stored), 2) for env in (0, 100)}
    np.testing.assert_array_equal(batch.carry[:, 0], views[0] + 0.25)
    np.testing.assert_array_equal(batch.steps.reward, views / 2)
    np.testing.assert_array_equal(batch.steps.action, views % 3)
    if stored:
        np.testing.assert_array_equal(batch.steps.next_observation.agent_view[..., 0], views + 0.5)
    else:
        assert batch.steps.next_observation is None
    assert not batch.is_first.any()


def test_new_sequences_have_the_largest_priority_and_samples_follow_priorities():
    """Steps 0 to 3 make one sequence per environment; three times its priority gives three of four samples."""
    replay, state = make(total_batch_size=4000)
    state = jax.jit(replay.add)(state, rollout(0))
    indices = jax.jit(replay.sample)(state, jax.random.key(0), 1.0).indices
    first, second = np.unique(indices)
    state = jax.jit(replay.set_priorities)(state, np.array([first, second]), np.float32([3.0, 1.0]))
    batch = jax.device_get(jax.jit(replay.sample)(state, jax.random.key(0), 1.0))
    assert np.mean(batch.indices == first) == pytest.approx(0.75, abs=0.002)
    np.testing.assert_allclose(batch.weight[0], np.where(batch.indices == first, 1 / 3, 1.0), rtol=1e-5)
    # Two new sequences per environment, of priority 3: 12 of 16 samples.
    batch = jax.device_get(jax.jit(replay.sample)(jax.jit(replay.add)(state, rollout(4)), jax.random.key(0), 1.0))
    assert np.mean(~np.isin(batch.indices, (first, second))) == pytest.approx(0.75, abs=0.002)
    is_first = batch.steps.observation.agent_view[..., 0] % 100 == 6
    np.testing.assert_array_equal(batch.is_first, is_first)


def test_episodes_that_go_on_after_the_last_step_can_be_truncated():
    """With axes of members and shards, as in the state of a run; step 3 is the last one."""
    replay, state = make()
    state = run(replay.add, *jax.device_put((state, rollout(0))))
    ended = run(lambda: end_episodes(jax.tree.map(lambda leaf: leaf[None, None], state)))
    truncated = np.asarray(ended.experience.steps.truncated)[0, 0]
    np.testing.assert_array_equal(truncated.reshape(NUM_ENVS, -1)[:, :5], [[False, False, False, True, False]] * 2)
    assert truncated.sum() == NUM_ENVS
