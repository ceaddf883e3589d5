"""Targets and sequences of recorded data, alone and beside a replay buffer.

Two episodes of one environment, with gamma = 1/2 and rewards 1, 2, 4, 8, 16: the observations 0, 1, 2 and the successor
3, which terminated; 4, 5 and the successor 6, truncated. Rows 3 and 6 belong to no step.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.errors import ConfigError
from stoix_like.utils.replay import Data, ReplayConfig, SequenceReplayConfig, make_replay, make_sequence_replay
from stoix_like.utils.replay.data import count_from, with_clipped_rewards
from support import replayed
from support.compiled import run
from support.replayed import NUM_ENVS, SIX, Prioritised, empty, steps

DATA = Data(
    observation=Observation(np.arange(7, dtype=np.float32)[:, None]),
    action=np.array([0, 1, 2, 0, 1, 2, 0], np.int32),
    reward=np.array([1, 2, 4, 0, 8, 16, 0], np.float32),
    terminated=np.arange(7) == 2,
    truncated=np.arange(7) == 5,
    valid=np.isin(np.arange(7), (3, 6), invert=True),
    steps=np.array([0, 1, 2, 4, 5], np.int32),
)
# Reward, discount and successor of windows of three steps, by their first observation: 1 + 2/2 + 4/4, terminated;
# 2 + 4/2; 4; then 8 + 16/2 and 16, truncated after two steps and after one: (1/2)^2 and 1/2 of the value beyond.
THREE_STEPS = {0: [3, 0, 3], 1: [4, 0, 3], 2: [4, 0, 3], 4: [16, 0.25, 6], 5: [16, 0.5, 6]}
ONE_STEP = {0: [1, 0.5, 1], 1: [2, 0.5, 2], 2: [4, 0, 3], 4: [8, 0.5, 5], 5: [16, 0.5, 6]}
SIZES = {**replayed.SIZES, "data": "some.npz"}


def spec(data=DATA, **fields):
    return replayed.spec(num_updates=4, rollout_length=6, data=data, **fields)


def make(schema=ReplayConfig, reward_scale=1.0, warmup_rollouts=0, **values):
    config = schema(**{**SIZES, **values})
    replay = make_replay(config, spec(warmup_rollouts=warmup_rollouts), 0.5, reward_scale)
    return type(replay)(*map(jax.jit, replay))


def filled(replay, rollouts=1):
    """Return a buffer whose observations are at least 1000."""
    numbers, *others = SIX
    trajectories = [steps([1000 + number for number in numbers], *others)] * rollouts
    return functools.reduce(replay.add, trajectories, empty(replay))


def shares(replay, state):
    batch = replay.sample(state, jax.random.key(1))
    return jnp.mean(batch.observation.agent_view < 1000)


@pytest.mark.parametrize(("n_step", "targets"), [(1, ONE_STEP), (3, THREE_STEPS)])
def test_windows_end_with_their_episode_and_bootstrap_where_truncated(n_step, targets):
    replay = make(data_fraction=1.0, n_step=n_step, reward_scale=10.0)
    assert run(empty, replay) == ()
    batch = jax.device_get(replay.sample((), jax.random.key(0)))
    first, successor = (x.agent_view[:, 0] for x in (batch.observation, batch.next_observation))
    rows = np.stack((first, batch.reward / 10, batch.discount, successor), axis=1)
    assert set(first) == set(targets)
    for number, *target in rows.tolist():
        assert target == targets[number]
    assert np.array_equal(batch.action, DATA.action[first.astype(int)])
    assert np.all(batch.weight == 1.0)


@pytest.mark.slow
def test_the_action_after_a_step_is_known_within_its_episode():
    batch = jax.device_get(make(data_fraction=1.0).sample((), jax.random.key(0)))
    after, is_known = batch.next_action
    first = batch.observation.agent_view[:, 0].astype(int)
    assert np.array_equal(is_known, np.isin(first, (0, 1, 4)))
    assert np.array_equal(after[is_known], DATA.action[first + 1][is_known])


def test_a_share_of_each_batch_comes_from_the_data():
    def share(fraction):
        replay = make(data_fraction=fraction)
        return shares(replay, filled(replay))

    fractions = [0.0, 0.25, 1.0]
    assert run(jax.vmap(share), jnp.asarray(np.float32(fractions))).tolist() == fractions


def test_the_share_changes_over_the_run():
    """After one of four rollouts, a quarter of the way from one half to zero: 3/8."""
    replay = make(data_fraction=0.5, final_data_fraction=0.0)
    state = run(filled, replay)
    assert shares(replay, state) == 0.375
    assert shares(replay, state._replace(rollouts=jnp.asarray(np.int32(9)))) == 0.0
    replay = make(data_fraction=0.5, final_data_fraction=0.0, warmup_rollouts=1)
    assert shares(replay, run(filled, replay)) == 0.5
    assert shares(replay, run(filled, replay, rollouts=2)) == 0.375


def test_the_share_continues_where_a_run_resumes_with_a_new_buffer():
    """One rollout in the new buffer, and one before it, of four: halfway from one half to zero."""
    replay = make(data_fraction=0.5, final_data_fraction=0.0)
    assert run(lambda: shares(replay, *count_from((filled(replay),), 1))) == 0.25


@pytest.mark.parametrize(("fraction", "shards", "refused"), [(0.25, 32, True), (0.25, 16, False), (0.0, 32, False)])
def test_shares_that_round_to_no_sample_are_refused(fraction, shards, refused):
    """Of 64 samples, each of 32 shards has two, half a sample of them from the data."""
    config = ReplayConfig(**SIZES, data_fraction=fraction)
    with pytest.raises(ConfigError, match=r"data_fraction=0.25 of 2 sample") if refused else contextlib.nullcontext():
        config._check_totals(num_envs=1, num_shards=shards, rollout_length=1, largest=2**20)


@pytest.mark.slow
def test_priorities_of_data_change_nothing():
    replay = make(Prioritised, data_fraction=0.5)
    state = run(filled, replay)
    batch = replay.sample(state, jax.random.key(0), 1.0)
    is_data = np.asarray(batch.observation.agent_view)[:, 0] < 1000
    assert np.array_equal(is_data, np.asarray(batch.indices) < 0)
    after = replay.set_priorities(state, batch.indices, jnp.asarray(np.where(is_data, np.float32(100), np.float32(2))))
    tree = after.buffer.sum_tree_state
    leaves = np.asarray(tree.nodes)[2**tree.tree_depth - 1 :]
    drawn = np.asarray(batch.indices)[~is_data]
    assert np.all(leaves[drawn] == 2.0)
    others = np.setdiff1d(np.flatnonzero(leaves), drawn)
    assert np.all(leaves[others] == 1.0)


def test_recorded_samples_have_the_mean_weight_of_a_prioritised_batch():
    replay = make(Prioritised, data_fraction=0.5)
    state = run(filled, replay)
    first = replay.sample(state, jax.random.key(0), 1.0)
    # Half of the windows of the buffer are as likely as 0.01, and have the largest weight, 1; the others have 0.01.
    state = replay.set_priorities(state, first.indices, jnp.asarray(np.full(64, 0.01, np.float32)))
    whole = make(Prioritised, data_fraction=0.0).sample(state, jax.random.key(1), 1.0)
    batch = replay.sample(state, jax.random.key(1), 1.0)
    is_data = np.asarray(batch.indices) < 0
    np.testing.assert_allclose(np.asarray(batch.weight)[is_data], np.mean(whole.weight), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(batch.weight)[~is_data], np.asarray(whole.weight)[~is_data])


def test_rewards_are_clipped_like_those_of_rollouts():
    clipped = with_clipped_rewards(spec(), 4.0).data
    assert np.array_equal(clipped.reward, [1, 2, 4, 0, 4, 4, 0])
    assert with_clipped_rewards(spec(data=None), 4.0).data is None


def test_sequences_start_anew_with_each_episode():
    config = SequenceReplayConfig(
        **{**SIZES, "total_batch_size": 32}, data_fraction=1.0, sequence_period=2, burn_in_length=1, sequence_length=2
    )
    carry = jnp.asarray(np.full(3, 7.0, np.float32))
    sample = make_sequence_replay(config, spec(), carry).sample
    batch = jax.device_get(run(sample, (), jax.random.key(0), 1.0))
    first = batch.steps.observation.agent_view[0, :, 0]
    assert set(first) == {0.0, 1.0, 2.0}
    for sequence, number in enumerate(first):
        at = [0, 1, 2, 4, 5][int(number) : int(number) + 3]
        assert np.array_equal(batch.steps.observation.agent_view[:, sequence, 0], at)
        assert np.array_equal(batch.steps.next_observation.agent_view[:, sequence, 0], np.asarray(at) + 1)
        assert np.array_equal(batch.is_first[:, sequence], np.isin(at, (0, 4)))
    assert np.all(batch.carry == 7.0)


def test_all_steps_are_a_rollout():
    transitions = jax.device_get(run(DATA.trajectory)).transitions
    assert np.array_equal(transitions.observation.agent_view[:, 0, 0], [0, 1, 2, 4, 5])
    assert np.array_equal(transitions.next_observation.agent_view[:, 0, 0], [1, 2, 3, 5, 6])
    assert np.array_equal(transitions.is_first[:, 0], [True, False, False, True, False])
    assert jax.eval_shape(lambda: DATA.trajectory(1)).transitions.reward.shape == (1, 1)


@pytest.mark.parametrize(("fraction", "kept"), [(1.0, 1), (0.75, 16)])
def test_of_a_prioritised_batch_samples_of_all_environments_stay(fraction, kept):
    """With equal priorities, half of the 64 samples are of each environment, and 8 +- 1.8 of 16 that stay."""
    replay = make(Prioritised, data_fraction=jnp.asarray(np.float32(fraction)))
    indices = np.asarray(run(lambda: replay.sample(filled(replay), jax.random.key(0), 1.0).indices))
    indices = indices[indices >= 0]
    assert len(indices) == kept
    assert kept == 1 or 3 <= np.sum(indices < 120 // NUM_ENVS) <= 13
