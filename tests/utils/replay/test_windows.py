"""Replay buffers: targets, priorities, sizes and memory."""

from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import make_program

from stoix_like.base_types import Axes, Observation, SystemSpec, Trajectory, Transition
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs.environment import restart
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.run.setup import set_up
from stoix_like.utils.replay import ReplayConfig, end_episodes, make_replay

NUM_ENVS = 2


class Prioritised(ReplayConfig):
    prioritised: ClassVar[bool] = True


class Whole(ReplayConfig):
    whole_windows: ClassVar[bool] = True


def make(schema=ReplayConfig, **values):
    defaults = {
        "rollout_length": 2,
        "warmup_steps": 4,
        "total_buffer_size": 128,
        "total_batch_size": 64,
        "epochs": 1,
        "n_step": 1,
        "store_next_observation": True,
        "gamma": 0.5,
        "reward_scale": 1.0,
    }
    config = schema(**{**defaults, **values})
    spec = SystemSpec(Box(0, 1, (1,)), Discrete(3), SimpleNamespace(), Axes(), 1, NUM_ENVS, 1, True)
    return make_replay(config, spec)


def view(numbers, dtype=jnp.float32):
    return Observation(jnp.asarray(numbers, dtype)[..., None])


def steps(numbers, rewards, terminated, truncated, dtype=jnp.float32):
    """Build a trajectory `[T, N]` of numbers as observations, offset by 100 per environment; successors end in .5."""
    column = [jnp.asarray(values)[:, None] for values in (numbers, rewards, terminated, truncated)]
    number, reward, terminated, truncated = (jnp.broadcast_to(values, (len(numbers), NUM_ENVS)) for values in column)
    number = number + 100 * jnp.arange(NUM_ENVS)[None]
    transitions = Transition(
        observation=view(number, dtype),
        action=(number % 3).astype(jnp.int32),
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=truncated,
        next_observation=view(number + 0.5, dtype),
        is_first=jnp.zeros(reward.shape, bool),
        extras=(),
    )
    return Trajectory(transitions, ())


def empty(replay, dtype=jnp.float32):
    timestep = restart(view(0.0, dtype))
    return replay.init(jax.tree.map(lambda x: jnp.stack([x] * NUM_ENVS), timestep))


def windows(replay, state, seed=0):
    """Sample windows; return reward, discount, successor and weight of each by its first observation."""
    batch = jax.jit(replay.sample)(state, jax.random.key(seed))
    rows = zip(
        np.ravel(batch.observation.agent_view).tolist(),
        np.ravel(batch.action).tolist(),
        np.ravel(batch.reward).tolist(),
        np.ravel(batch.discount).tolist(),
        np.ravel(batch.next_observation.agent_view).tolist(),
        np.ravel(batch.weight).tolist(),
        strict=True,
    )
    found = {}
    for number, action, *rest in rows:
        assert action == number % 3
        assert found.setdefault(number, rest) == rest
    return found


# Six steps of each environment, with rewards 1, 2, 4, 8, 16, 32; step 2 terminates, step 4 is truncated. gamma = 1/2.
SIX = ([0, 1, 2, 3, 4, 5], [1, 2, 4, 8, 16, 32], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0])
# Windows of three. 0: 1 + 2/2 + 4/4, terminated. 1: 2 + 4/2, terminated. 2: 4, terminated.
# 3: 8 + 16/2, truncated after two steps: (1/2)^2 of the true successor of step 4.
THREE_STEPS = {0: [3, 0, 2.5], 1: [4, 0, 2.5], 2: [4, 0, 2.5], 3: [16, 0.25, 4.5]}
ONE_STEP = {number: [float(2**number), 0.5, number + 0.5] for number in range(5)} | {2: [4, 0, 2.5]}


@pytest.mark.parametrize("schema", [ReplayConfig, pytest.param(Prioritised, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("n_step", "targets"), [pytest.param(1, ONE_STEP, marks=pytest.mark.slow), (3, THREE_STEPS)])
def test_windows_end_with_their_episode_and_bootstrap_where_truncated(schema, n_step, targets):
    replay = make(schema, n_step=n_step)
    found = windows(replay, jax.jit(replay.add)(empty(replay), steps(*SIX)))
    for number, target in targets.items():
        reward, discount, successor = target
        assert found[number] == [reward, discount, successor, 1.0]
        assert found[100 + number] == [reward, discount, successor + 100, 1.0]


@pytest.mark.parametrize("schema", [ReplayConfig, pytest.param(Prioritised, marks=pytest.mark.slow)])
def test_episodes_that_go_on_after_the_last_step_can_be_truncated(schema):
    replay = make(schema, n_step=3)
    no = [False, False]
    state = jax.jit(replay.add)(empty(replay), steps([0, 1], [1.0, 2.0], no, no))
    # An axis of members and one of shards, as in the state of a run.
    local = end_episodes((jax.tree.map(lambda leaf: leaf[None, None], state), "other"))
    state = jax.tree.map(lambda leaf: leaf[0, 0], local[0])
    np.testing.assert_array_equal(state.experience.truncated[:, :3], [[False, True, False]] * NUM_ENVS)
    state = jax.jit(replay.add)(state, steps([50, 51], [64.0, 64.0], no, no))
    # Rewards 1 + 2 / 2, then the bootstrap value of the successor of step 1 with discount 1 / 4.
    found = windows(replay, state)
    np.testing.assert_allclose(found[0.0][:3], (2.0, 0.25, 1.5))


def test_terminated_episodes_stay_terminated():
    replay = make(n_step=3)
    state = jax.jit(replay.add)(empty(replay), steps([0, 1], [1.0, 2.0], [False, True], [False, False]))
    assert not end_episodes(state).experience.truncated.any()


@pytest.mark.parametrize("n_step", [1, 3])
def test_observations_stored_once_give_truncated_windows_weight_zero(n_step):
    """The successor is the next stored observation; after truncation that is another episode, so the weight is zero."""
    replay = make(n_step=n_step, store_next_observation=False)
    found = windows(replay, jax.jit(replay.add)(empty(replay), steps(*SIX)))
    if n_step == 1:
        assert found[1] == [2, 0.5, 2, 1.0]
        assert found[2][:2] == [4, 0]
        assert found[2][3] == 1.0
        assert found[4][3] == 0.0
        # The successor of the last step is not stored yet.
        assert 5 not in found
    else:
        assert found[0] == [3, 0, 3, 1.0]
        # A window reads four stored steps: none can start at step 3.
        assert {number % 100 for number in found} == {0, 1, 2}


@pytest.mark.parametrize("schema", [ReplayConfig, pytest.param(Prioritised, marks=pytest.mark.slow)])
def test_windows_never_cross_the_write_position(schema):
    """The buffer holds 20 steps per environment: a window is always three successive ones of the last 20."""
    replay = make(schema, n_step=3, total_buffer_size=40)
    state, add = empty(replay), jax.jit(replay.add)
    for start in range(0, 60, 2):
        numbers = [start, start + 1]
        state = add(state, steps(numbers, numbers, [0, 0], [0, 0]))
        if start < 4:
            continue
        for number, (reward, discount, successor, _) in windows(replay, state, start).items():
            first = number % 100
            assert max(0, start + 2 - 20) <= first <= start + 1 - 2
            assert reward == first + (first + 1) / 2 + (first + 2) / 4
            assert (discount, successor) == (0.125, number + 2.5)


def test_pixels_are_stored_as_bytes():
    def size(**values):
        replay = make(**values)
        state = empty(replay, jnp.uint8)
        assert state.experience.observation.agent_view.dtype == jnp.uint8
        state = jax.jit(replay.add)(state, steps(*SIX, dtype=jnp.uint8))
        batch = jax.jit(replay.sample)(state, jax.random.key(0))
        assert batch.observation.agent_view.dtype == batch.next_observation.agent_view.dtype == jnp.uint8
        return sum(leaf.nbytes for leaf in jax.tree.leaves(state.experience)) / 128

    # Observation, successor and terminated: one byte each. Action and reward: four bytes each.
    assert size() == 1 + 1 + 1 + 4 + 4
    # `truncated`, one byte, replaces the successor.
    assert size(store_next_observation=False) == 1 + 1 + 1 + 4 + 4


@pytest.mark.slow
def test_windows_are_sampled_in_proportion_to_their_priorities():
    """Priorities 3 and 1 give probabilities 3/4 and 1/4, and importance weights 1/3 and 1."""
    replay = make(Prioritised, total_batch_size=4000, total_buffer_size=8)
    state = jax.jit(replay.add)(empty(replay), steps([0, 1], [0, 1], [0, 0], [0, 0]))
    # Rows of four steps per environment; only steps 0 and 1 of the first environment have a positive priority.
    state = jax.jit(replay.set_priorities)(state, jnp.array([0, 1, 4, 5]), jnp.array([3.0, 1.0, 0.0, 0.0]))
    batch = jax.jit(replay.sample)(state, jax.random.key(0))
    seen = np.ravel(batch.observation.agent_view)
    assert set(seen) == {0.0, 1.0}
    # Sampling is stratified: 4,000 samples deviate by a few at most.
    assert np.mean(seen == 0.0) == pytest.approx(0.75, abs=0.002)
    np.testing.assert_allclose(batch.weight, np.where(seen == 0.0, 1 / 3, 1.0), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(replay.sample)(state, jax.random.key(0), 0.0).weight, 1.0)
    assert set(np.asarray(batch.indices).tolist()) == {0, 1}


@pytest.mark.slow
def test_new_windows_have_the_largest_priority_so_far():
    """Three old windows and two new ones, all of priority 2.5: two samples in five are new."""
    replay = make(Prioritised, total_batch_size=5000, total_buffer_size=16)
    state = jax.jit(replay.add)(empty(replay), steps([0, 1], [0, 1], [0, 0], [0, 0]))
    state = jax.jit(replay.set_priorities)(state, jnp.array([0, 1, 8, 9]), jnp.array([2.5, 2.5, 2.5, 0.0]))
    state = jax.jit(replay.add)(state, steps([2], [2], [0], [0]))
    seen = np.ravel(jax.jit(replay.sample)(state, jax.random.key(0)).observation.agent_view)
    assert np.mean(seen % 100 == 2) == pytest.approx(0.4, abs=0.002)


def test_whole_windows_have_all_steps_in_order_with_their_extras():
    """Steps 0 to 3 of each environment; the episode is truncated after step 1, and extras are ten times the step."""
    replay = make(Whole, n_step=3)
    rollout = steps([0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 0, 0])
    extras = jnp.broadcast_to(10.0 * jnp.arange(4)[:, None], (4, NUM_ENVS))
    rollout = rollout._replace(transitions=rollout.transitions._replace(extras=extras))
    found = replay.sample_steps(jax.jit(replay.add)(empty(replay), rollout), jax.random.key(0))
    number = found.observation.agent_view[..., 0]
    assert set(np.asarray(number[0]).tolist()) == {0.0, 1.0, 100.0, 101.0}
    np.testing.assert_array_equal(number, number[:1] + jnp.arange(3)[:, None])
    np.testing.assert_array_equal(found.next_observation.agent_view[..., 0], number + 0.5)
    np.testing.assert_array_equal(found.reward, number % 100)
    np.testing.assert_array_equal(found.extras, 10 * (number % 100))
    np.testing.assert_array_equal(found.truncated, number % 100 == 1)
    np.testing.assert_array_equal(found.is_first, (number % 100 == 2) & (jnp.arange(3)[:, None] > 0))


def test_whole_windows_need_their_successors():
    config = parse_config(compose_config(["system=awr/ff_awr", "system.store_next_observation=false"])).system
    with pytest.raises(ConfigError, match="system.store_next_observation=false: this system needs .*: use true"):
        config.check(8, 1)


def test_rewards_are_stored_scaled():
    replay = make(reward_scale=0.1)
    found = windows(replay, jax.jit(replay.add)(empty(replay), steps(*SIX)))
    assert found[3][0] == pytest.approx(0.8)


INVALID_SIZES = {
    "buffer": (
        ["system.total_buffer_size=1001", "arch.update_batch_size=2"],
        r"total_buffer_size=1001.*use 1000 or 1002",
    ),
    "rows": (
        ["system.total_buffer_size=1001", "system.n_step=3"],
        r"total_buffer_size=1001.*8 environments.*1000 or 1008",
    ),
    "batch": (["system.total_batch_size=127", "arch.update_batch_size=2"], r"total_batch_size=127.*use 126 or 128"),
    "short": (
        ["system.total_buffer_size=32", "system.rollout_length=8"],
        r"total_buffer_size=32 holds 4 step.*least 64",
    ),
    "large batch": (
        ["system.total_buffer_size=64", "system.total_batch_size=128"],
        r"total_batch_size=128.*at least 128",
    ),
    "early": (["system.warmup_steps=0", "system.total_batch_size=128"], r"warmup_steps=0.*use at least 8"),
}


@pytest.mark.parametrize("name", INVALID_SIZES)
def test_invalid_sizes_raise_with_a_valid_alternative(name):
    overrides, message = INVALID_SIZES[name]
    with pytest.raises(ConfigError, match=message):
        set_up(parse_config(compose_config(["system=q_learning/ff_dqn", *overrides])))


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["system=q_learning/ff_dqn", "arch.update_batch_size=2", "system.store_next_observation=false"],
        ["system=q_learning/ff_rainbow", "network.actor_network.action_head.layer_sizes=[8]"],
        ["system=q_learning/ff_dqn", "arch.population.size=2"],
        ["system=q_learning/rec_r2d2"],
        ["system=q_learning/ff_dqn", "env.frame_stack=4"],
    ],
)
def test_training_updates_the_buffer_in_place(overrides):
    """Compile a buffer of a million steps without allocating it: training needs at most 1.15 times its size."""
    small = ["system.total_buffer_size=1048576", "network.actor_network.pre_torso.layer_sizes=[8]", "system.epochs=2"]
    _, program, arguments = make_program([*small, *overrides])
    state = jax.eval_shape(program.init, *arguments)
    buffer = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.shards.local))
    assert buffer > 2**20 * 4 * 4
    analysis = program.train.lower(state, arguments[0], np.int32(1), np.bool_(True)).compile().memory_analysis()
    needed = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    assert needed - analysis.alias_size_in_bytes <= 1.15 * buffer
