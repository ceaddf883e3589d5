import re
from types import SimpleNamespace

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashbax.buffers import sum_tree

from stoix_like.base_types import Axes
from stoix_like.utils.replay import ReplayConfig, end_episodes
from stoix_like.utils.replay.buffers import add_slice, importance_weights
from stoix_like.utils.replay.sum_tree import set_priorities
from support.compiled import run
from support.platforms import take_accelerator_forms
from support.programs import make_program
from support.replayed import NUM_ENVS, SIX, Prioritised, empty, make, steps, windows


def compile_training(overrides):
    """Compile the training program of a run; return the shapes of its state, too."""
    _, program, arguments = make_program(overrides)
    state = jax.eval_shape(program.init, *arguments)
    return state, program.train.lower(state, arguments[0], np.int32(1), np.bool_(True), arguments[-1]).compile()


@pytest.mark.parametrize("schema", [ReplayConfig, pytest.param(Prioritised, marks=pytest.mark.slow)])
def test_episodes_that_go_on_after_the_last_step_can_be_truncated(schema):
    replay = make(schema, n_step=3)
    no = [False, False]
    before = run(lambda: replay.add(empty(replay), steps([0, 1], [1.0, 2.0], no, no)))
    # An axis of members and one of shards, as in the state of a run.
    local = run(lambda: end_episodes((jax.tree.map(lambda leaf: leaf[None, None], before), "other"))[0])
    state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[0, 0]), local)
    np.testing.assert_array_equal(np.asarray(state.experience.truncated)[:, :3], [[False, True, False]] * NUM_ENVS)
    state = run(lambda: replay.add(state, steps([50, 51], [64.0, 64.0], no, no)))
    # Rewards 1 + 2 / 2, then the bootstrap value of the successor of step 1 with discount 1 / 4.
    found = windows(replay, state)
    np.testing.assert_allclose(found[0.0][:3], (2.0, 0.25, 1.5))


def test_importance_weights_are_relative_to_the_largest_of_all_shards():
    weigh = jax.vmap(lambda p: importance_weights(p, 1.0, Axes(("shard",))), axis_name="shard")
    weights = jax.jit(weigh)(np.float32([[0.5, 0.25], [0.125, 0.5]]))
    np.testing.assert_allclose(weights, [[0.25, 0.5], [1.0, 0.25]])


def test_terminated_episodes_stay_terminated():
    replay = make(n_step=3)
    rollout = run(steps, [0, 1], [1.0, 2.0], [False, True], [False, False])
    state = run(lambda: end_episodes(replay.add(empty(replay), rollout)))
    assert not np.any(state.experience.truncated)


def test_rollouts_are_added_as_slices_where_flashbax_scatters_them():
    """Four rollouts of 6 steps fill rows of 24, and the fifth overwrites the first."""
    buffer = flashbax.make_trajectory_buffer(2, 1, 1, 1, max_length_time_axis=24, min_length_time_axis=1)
    ours = theirs = run(lambda: buffer.init({"number": jnp.zeros((), jnp.int32), "view": jnp.zeros(3)}))
    for number in range(5):
        numbers = 12 * number + np.arange(12).reshape(2, 6)
        rows = jax.device_put({"number": numbers, "view": np.stack([numbers * 0.5] * 3, axis=-1)})
        ours, theirs = jax.jit(add_slice)(ours, rows), jax.jit(buffer.add)(theirs, rows)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert " scatter" not in jax.jit(add_slice).lower(ours, rows).as_text("hlo")
    assert " scatter" in jax.jit(buffer.add).lower(theirs, rows).as_text("hlo")
    with pytest.raises(ValueError, match="a buffer of 24 steps per row cannot take rollouts of 5 as slices"):
        run(lambda rows: add_slice(ours, jax.tree.map(lambda x: x[:, :5], rows)), rows)


def test_pixels_are_stored_as_bytes():
    def size(**values):
        replay = make(**values)
        state = jax.eval_shape(lambda: replay.add(empty(replay, jnp.uint8), steps(*SIX, dtype=jnp.uint8)))
        assert state.experience.observation.agent_view.dtype == jnp.uint8
        batch = jax.eval_shape(replay.sample, state, jax.random.key(0))
        assert batch.observation.agent_view.dtype == batch.next_observation.agent_view.dtype == jnp.uint8
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.experience)) / 120

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
    state, compiled = compile_training([*small, *overrides])
    buffer = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.shards.local))
    assert buffer > 2**20 * 4 * 4
    analysis = compiled.memory_analysis()
    needed = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    assert needed - analysis.alias_size_in_bytes <= 1.15 * buffer


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("system", "num_envs", "options"),
    [
        ("sac/ff_sac", 1, ["system.warmup_steps=256"]),
        ("sac/ff_sac", 8, []),
        ("ddpg/ff_td3", 1, ["system.warmup_steps=256"]),
    ],
)
def test_a_single_gradient_step_copies_no_buffer(system, num_envs, options):
    """Copying the million steps of SAC's buffer takes twice as long as its gradient step."""
    capacity = 320_072
    sizes = [f"system.total_buffer_size={capacity}", f"arch.total_num_envs={num_envs}", "arch.total_timesteps=2e4"]
    choices = [f"system={system}", "env=gymnax/pendulum"]
    _, compiled = compile_training([*choices, *sizes, "system.epochs=1", *options])
    text = compiled.as_text()
    loops = text[: text.index("\nENTRY")]
    assert str(capacity) in loops
    shapes = re.findall(r"= \w+\[([\d,]+)\]\S* copy\(", loops)
    assert not [shape for shape in shapes if np.prod([int(size) for size in shape.split(",")]) >= capacity]


class State(SimpleNamespace):
    def replace(self, **fields):
        return State(**(vars(self) | fields))


def after_updates(size, *updates):
    """Return the tree of items after updates of their priorities, each of indices and values."""
    state = State(sum_tree_state=sum_tree.init(size))
    for update in updates:
        state = set_priorities(state, *map(jnp.asarray, update))
    return state.sum_tree_state


@pytest.mark.parametrize("gpu", [False, True])
def test_sums_of_all_levels_follow_priorities_and_the_largest_of_equal_items_counts(gpu, monkeypatch):
    if gpu:
        take_accelerator_forms(monkeypatch)
    # Five items: a tree of depth 3, with 1 + 2 + 4 + 8 nodes.
    tree = run(after_updates, 5, ([0, 3, 4], [1.0, 2.0, 8.0]), ([3, 1, 3], [5.0, 0.25, 4.0]))
    nodes = [14.25, 6.25, 8.0, 1.25, 5.0, 8.0, 0.0, 1.0, 0.25, 0.0, 5.0, 8.0, 0.0, 0.0, 0.0]
    np.testing.assert_array_equal(tree.nodes, nodes)
    assert tree.max_recorded_priority == 8.0


def test_items_of_a_diverged_loss_are_not_drawn_and_spoil_no_sum():
    tree = run(after_updates, 4, ([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]), ([0, 2], [np.nan, np.inf]))
    np.testing.assert_array_equal(tree.nodes, [6.0, 2.0, 4.0, 0.0, 2.0, 0.0, 4.0])
    assert tree.max_recorded_priority == 4.0


def test_items_are_set_without_a_loop():
    def update(tree):
        return set_priorities(State(sum_tree_state=tree), jnp.arange(64), jnp.ones(64)).sum_tree_state

    program = str(jax.make_jaxpr(update)(jax.eval_shape(lambda: sum_tree.init(1024))))
    assert "scan[" not in program
    assert "while[" not in program
