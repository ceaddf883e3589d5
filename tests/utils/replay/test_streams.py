from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, Trajectory, Transition
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.utils.replay import Data, StreamReplayConfig, end_episodes, make_stream_replay
from support.compiled import run
from support.replayed import NUM_ENVS, empty, first, spec


def configuration(**values):
    defaults = {
        **{"total_buffer_size": 40, "total_batch_size": 64},
        **{"sequence_length": 2, "latent_period": 1, "online_sequences": 0},
    }
    return StreamReplayConfig(**{**defaults, **values})


def check(num_shards, rollout_length=4, warmup_steps=0, **values):
    system = SimpleNamespace(rollout_length=rollout_length, warmup_steps=warmup_steps)
    configuration(**values).check(system, NUM_ENVS, num_shards)


@cache
def make(num_shards=1, **values):
    """Build compiled functions of a replay buffer, and its empty state."""
    ours = spec(num_actions=100, num_shards=num_shards)
    replay = make_stream_replay(configuration(**values), ours, {"state": jnp.zeros((1, 1), jnp.bfloat16)}, 0.5)
    state = empty(replay)
    add, sample, refresh = jax.jit(replay.add), jax.jit(replay.sample), jax.jit(replay.refresh)
    return replay._replace(add=add, sample=sample, refresh=refresh), state


def rollout(first, terminated=((), ()), truncated=((), ()), is_first=False):
    """Return steps n = first to first + 3 of each environment.

    The observation of step n is n, and 100 + n in the other environment; its successor n + 0.5, its action n, its
    reward 2 n, and the latent state after the observation n + 0.25. `terminated` and `truncated` are steps of each
    environment.
    """
    number = np.arange(first, first + 4)[:, None] * np.ones((1, NUM_ENVS), int)
    terminated, truncated = (
        np.stack([np.isin(number[:, 0], steps) for steps in ends], axis=1) for ends in (terminated, truncated)
    )
    view = (number + 100.0 * np.arange(NUM_ENVS))[..., None].astype(np.float32)
    starts = np.full((1, NUM_ENVS), is_first or first == 0)
    return Trajectory(
        Transition(
            observation=Observation(view),
            action=number,
            reward=2.0 * number.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            next_observation=Observation(view + 0.5),
            is_first=np.concatenate([starts, (terminated | truncated)[:-1]]),
            extras={"state": view[..., None] + 0.25},
        ),
        (),
    )


def added(state, replay, *rollouts):
    for trajectory in rollouts:
        state = replay.add(state, trajectory)
    return state


def sequences(replay, state, seed=0):
    """Sample a batch; return the fields `[W, B]` of its entries as numpy arrays, and the latent states `[B]`."""
    batch = jax.device_get(replay.sample(state, jax.random.key(seed)))
    fields = batch.entries._replace(observation=batch.entries.observation.agent_view[..., 0])
    return fields, batch.latent["state"].astype(np.float32)[:, 0, 0], batch.indices


# Step 1 terminates and step 7 is truncated in the first environment, step 2 is truncated in the second one. The last
# step of a rollout, 3, is joined with the observation of the next one, 4.
FIRST = rollout(0, terminated=((1,), ()), truncated=((), (2,)))
SECOND = rollout(4, truncated=((7,), ()))
ROWS = {
    0: {
        "observation": [0, 1, 1.5, 2, 3, 4, 5, 6, 7, 7.5],
        "action": [0, 0, 1, 0, 2, 3, 4, 5, 6, 7],
        "is_first": [1, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        "is_last": [0, 0, 1, 0, 0, 0, 0, 0, 0, 1],
        "terminated": [0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    },
    100: {
        "observation": [100, 101, 102, 102.5, 103, 104, 105, 106, 107],
        "action": [0, 0, 1, 2, 0, 3, 4, 5, 6],
        "is_first": [1, 0, 0, 0, 1, 0, 0, 0, 0],
        "is_last": [0, 0, 0, 1, 0, 0, 0, 0, 0],
        "terminated": [0, 0, 0, 0, 0, 0, 0, 0, 0],
    },
}


def test_true_successors_are_entries_and_first_entries_have_no_action_or_reward():
    replay, state = make(sequence_length=9)
    entries, _, (rows, starts) = sequences(replay, added(state, replay, FIRST, SECOND))
    # The first environment has ten entries, the second nine: three starts in all.
    assert {(int(row), int(start)) for row, start in zip(rows, starts, strict=True)} == {(0, 0), (0, 1), (1, 0)}
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        expected = {name: values[start : start + 9] for name, values in ROWS[100 * int(row)].items()}
        for name, values in expected.items():
            np.testing.assert_array_equal(getattr(entries, name)[:, index], values, err_msg=name)
        # Rewards of 2 n, scaled by 1/2: the number of the action.
        np.testing.assert_array_equal(entries.reward[:, index], expected["action"])


def test_latent_states_are_those_after_the_entry_before():
    """Of a true successor that after the observation of its step, of a first entry any."""
    replay, state = make()
    entries, latent, _ = sequences(replay, added(state, replay, FIRST, SECOND))
    view, is_first = entries.observation[0], entries.is_first[0]
    # 8 starts with no first entry in the row of ten, 7 in the row of nine, less the newest entries.
    assert len(set(view[~is_first])) == (10 - 1 - 2) + (9 - 1 - 2)
    expected = np.where(view % 1 == 0.5, view - 0.25, view - 0.75)
    # 102.5 stays in a float of eight bits to within 1/4.
    np.testing.assert_allclose(latent[~is_first], expected[~is_first], atol=0.25)


def test_rings_hold_the_newest_entries_of_each_environment():
    """Rows of 8 entries with starts at even places: 4 rollouts leave the newest 8 of each, less one before a start."""
    replay, state = make(total_buffer_size=17, sequence_length=4, latent_period=2)
    state = added(state, replay, FIRST, *(rollout(first) for first in (4, 8, 12)))
    assert state.size.tolist() == [8, 8]
    # With one end each, steps 0 to 15 are entries 0 to 16; the newest 8 are 9 to 16, of which 10 and 12 are even and
    # start four entries. Entry 10 is step 9.
    entries, latent, (_, starts) = sequences(replay, state)
    assert set(entries.observation[0]) == {9, 11, 109, 111}
    np.testing.assert_array_equal(entries.observation, entries.observation[0] + np.arange(4)[:, None])
    np.testing.assert_array_equal(starts, (entries.observation[0] % 100 + 1) % 8)
    np.testing.assert_allclose(latent, entries.observation[0] - 0.75, atol=0.25)


def test_starts_are_uniform_over_all_rows():
    """Ten and nine entries give 9 and 8 starts: each of the 17 has 1/17 of 6,800 samples, 400 +- 5 deviations of 19."""
    replay, state = make(total_batch_size=6800)
    entries, _, _ = sequences(replay, added(state, replay, FIRST, SECOND))
    _, counts = np.unique(entries.observation[0], return_counts=True)
    assert len(counts) == 17
    assert np.all(np.abs(counts - 400) < 5 * 19.4)


def test_online_sequences_end_with_the_newest_entries_of_different_environments():
    """Starts at every second entry: of ten entries the last is in a sequence, of nine the last but one."""
    replay, state = make(online_sequences=8, total_batch_size=8, latent_period=2)
    entries, _, _ = sequences(replay, added(state, replay, FIRST, SECOND))
    assert entries.reward.shape == (2, 8)
    # At most one per environment: the six others start anywhere.
    assert set(entries.observation[-1, :2]) == {7.5, 106}
    assert len(set(entries.observation[-1])) > 2


def test_every_environment_has_its_turn_where_fewer_sequences_are_the_newest():
    replay, state = make(online_sequences=1, total_batch_size=2, latent_period=2)
    state = added(state, replay, FIRST, SECOND)
    newest = {float(sequences(replay, state, seed)[0].observation[-1, 0]) for seed in range(20)}
    assert newest == {7.5, 106.0}


@pytest.mark.slow
def test_data_replace_other_sequences_than_the_newest():
    """Half of eight sequences are of the data, whose observations are negative; the first two are the newest ones.

    The data are two episodes, of three and four steps, and the observations after them.
    """
    rows = np.arange(9)
    valid = (rows != 3) & (rows != 8)
    data = Data(
        observation=Observation(-1.0 - rows[:, None].astype(np.float32)),
        action=rows,
        reward=rows.astype(np.float32),
        terminated=rows == 2,
        truncated=rows == 7,
        valid=valid,
        steps=rows[valid],
    )
    config = configuration(online_sequences=8, total_batch_size=8, latent_period=2, data="some.npz")
    ours = spec(Box(-9, 1, (1,)), num_actions=100, data=data)
    replay = make_stream_replay(config, ours, {"state": jnp.zeros((1, 1), jnp.bfloat16)}, 0.5)
    state = run(empty, replay)
    replay = replay._replace(add=jax.jit(replay.add), sample=jax.jit(replay.sample))
    entries, _, _ = sequences(replay, added(state, replay, FIRST, SECOND))
    assert set(entries.observation[-1, :2]) == {7.5, 106}
    np.testing.assert_array_equal(entries.observation[0] < 0, np.arange(8) >= 4)
    # A first entry within an episode has the reward of the row before it, scaled, but no action.
    first = -1 - entries.observation[0, 4:]
    np.testing.assert_array_equal(entries.reward[0, 4:], np.where((first != 0) & (first != 4), 0.5 * (first - 1), 0.0))
    last, ended, row = entries.is_last[:, 4:], entries.terminated[:, 4:], -1 - entries.observation[:, 4:]
    np.testing.assert_array_equal(last, (row == 3) | (row == 8))
    np.testing.assert_array_equal(ended, row == 3)
    assert (entries.reward[0, 4:] > 0).any()
    assert entries.is_first[0, 4:].all()
    assert not entries.action[0, 4:].any()


def test_refreshed_latent_states_are_those_of_later_samples():
    """Rows of 8 entries, 9 written: the newest is in place 0, the oldest, in place 1, stays."""
    replay, state = make(total_buffer_size=16)
    state = added(state, replay, rollout(0), rollout(4), rollout(8))
    # Entries 4 to 11 are in places 4 to 7 and 0 to 3. Sequences of two from places 5 and 6 write behind each entry:
    # to 6 and 7, and to 7 and 8 = 0; the one with the longer context wins in place 7. From place 2, entries 10 and
    # 11 write to 3, but not to 4, where the oldest entry is.
    rows, starts = np.int32([[0, 0, 0], [5, 6, 2]])
    fresh = {"state": np.float32([[10.0, 20.0, 30.0], [11.0, 21.0, 31.0]])[..., None, None]}
    entries, latent, (row, start) = sequences(replay, replay.refresh(state, (rows, starts), fresh))
    found = dict(zip(start[row == 0].tolist(), latent[row == 0].tolist(), strict=True))
    assert found == {4: 3.25, 5: 4.25, 6: 10.0, 7: 11.0, 0: 21.0, 1: 8.25, 2: 9.25}
    np.testing.assert_allclose(latent[row == 1], entries.observation[0][row == 1] - 0.75, atol=0.5)


def test_refreshed_latent_states_are_kept_where_sequences_can_start():
    """With starts at every second entry, a sequence of four has two starts behind it."""
    replay, state = make(sequence_length=4, latent_period=2)
    state = added(state, replay, rollout(0), rollout(4))
    fresh = {"state": np.arange(30, 34, dtype=np.float32)[:, None, None, None]}
    refreshed = jax.device_get(replay.refresh(state, tuple(np.int32([[1], [2]])), fresh))
    np.testing.assert_array_equal(refreshed.latents["state"][10:14, 0].astype(float), [0, 101.0, 31.0, 33.0])
    assert refreshed.latents["state"].dtype == jnp.bfloat16


def test_latent_states_of_a_diverged_member_are_unknown_again():
    replay, state = make()
    state = added(state, replay, rollout(0), rollout(4))
    diverged = {"state": np.float32([np.nan, 31.0])[:, None, None, None]}
    refreshed = replay.refresh(state, tuple(np.int32([[0], [5]])), diverged)
    before, refreshed = (np.asarray(x.latents["state"]) for x in (state, refreshed))
    assert refreshed[before != refreshed].astype(float).tolist() == [0.0, 31.0]
    assert np.isfinite(refreshed.astype(float)).all()


def test_episodes_that_continue_after_the_last_entry_can_be_ended():
    """With axes of members and shards, as in the state of a run; the next rollout starts an episode."""
    replay, state = make()
    before = added(state, replay, FIRST)
    ended = run(lambda: end_episodes(jax.tree.map(lambda leaf: leaf[None, None], before)))
    state = replay.add(jax.tree.map(lambda leaf: np.asarray(leaf)[0, 0], ended), rollout(4, is_first=True))
    entries, _, _ = sequences(replay, state)
    lasts = {
        (view, terminated)
        for view, is_last, terminated in zip(
            entries.observation[0], entries.is_last[0], entries.terminated[0], strict=True
        )
        if is_last
    }
    assert lasts == {(1.5, True), (3, False), (102.5, False), (103, False)}
    np.testing.assert_array_equal(entries.reward[entries.observation % 100 == 4], 0.0)
    np.testing.assert_array_equal(entries.action[entries.observation % 100 == 4], 0)
    assert not np.any(run(end_episodes, make()[1]).entries.is_last)


@pytest.mark.slow
def test_shards_share_batches_and_capacity():
    replay, state = make(num_shards=2, total_batch_size=8, online_sequences=2)
    assert state.entries.reward.shape == (20,)
    batch = replay.sample(added(state, replay, FIRST), jax.random.key(0))
    assert batch.entries.reward.shape == (2, 4)


@pytest.mark.slow
def test_observations_keep_their_types_and_are_written_in_place():
    """Images, masks and dictionaries; a buffer of 300 kB is not copied."""
    view = {"image": jnp.arange(48, dtype=jnp.uint8).reshape(4, 4, 3) * 5, "speed": jnp.ones((2,), jnp.float16)}
    space = SimpleNamespace(sample=lambda key: view)
    replay = make_stream_replay(configuration(total_buffer_size=4096), spec(space), jnp.zeros((4,), jnp.int8))
    timestep = first(Observation(view, jnp.ones((3,), bool), jnp.zeros((), jnp.int32)))
    observation, state = timestep.observation, replay.init(timestep)
    number = jnp.zeros((4, NUM_ENVS))
    steps = jax.tree.map(lambda x: jnp.stack([x] * 4), observation)
    flag, latent = number > 0, jnp.zeros((4, NUM_ENVS, 4))
    trajectory = Trajectory(Transition(steps, number.astype(int), number, flag, flag, steps, flag, latent), ())
    add = jax.jit(replay.add, donate_argnums=0).lower(state, trajectory).compile()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert add.memory_analysis().alias_size_in_bytes == size
    assert add.memory_analysis().temp_size_in_bytes < size / 10
    batch = jax.jit(replay.sample)(add(state, trajectory), jax.random.key(0))
    for name, leaf in batch.entries.observation.agent_view.items():
        assert leaf.dtype == view[name].dtype
        np.testing.assert_array_equal(leaf, np.broadcast_to(view[name], (2, 64, *view[name].shape)))
    assert batch.entries.observation.action_mask.shape == (2, 64, 3)
    assert batch.latent.dtype == jnp.int8


INVALID = {
    "batch": ({"total_batch_size": 63}, 2, r"total_batch_size=63 .* use 62 or 64"),
    "online": ({"online_sequences": 65}, 1, r"online_sequences=65 exceeds .*total_batch_size=64: use at most 64"),
    "online shards": ({"online_sequences": 3}, 2, r"online_sequences=3 .* shards: use 2 or 4"),
    "period": ({"sequence_length": 5, "latent_period": 2}, 1, r"sequence_length=5 .*latent_period=2: use 4 or 6"),
    # 40 entries of two environments; a start of every second one needs 20 + 2.
    "capacity": ({"sequence_length": 20, "latent_period": 2}, 1, r"=40 holds 20 entries of each of 2 .* at least 44"),
    "rollout": ({"rollout_length": 11}, 1, r"=40 holds 20 .* system.rollout_length=11: use at least 44"),
    "warm-up": ({"sequence_length": 10, "warmup_steps": 4}, 1, r"warmup_steps=4: .* finds 8 .* use at least 8"),
    "large": (
        {"total_buffer_size": 5 * 10**9},
        2,
        r"total_buffer_size=5000000000 is too large .* use at most 2147483648",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_sizes_that_do_not_fit_are_refused_with_ones_that_do(name):
    values, num_shards, message = INVALID[name]
    with pytest.raises(ConfigError, match=message):
        check(num_shards, **values)


def test_the_sizes_that_a_refusal_names_are_accepted():
    check(1, sequence_length=20, latent_period=2, total_buffer_size=44, warmup_steps=16)
    check(1, sequence_length=10, warmup_steps=8)
    check(2, online_sequences=0)
