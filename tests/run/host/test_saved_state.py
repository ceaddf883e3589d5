import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.types import LearnerState, Shard
from stoix_like.run.host.saved_state import Best, to_items, to_state
from stoix_like.storage.returns import lacks_best
from stoix_like.utils.jax_utils import take_member
from support.comparisons import assert_same_state
from support.toy_runs import restored, toy_loop

pytestmark = pytest.mark.optimized


@pytest.mark.slow
def test_a_run_resumed_without_its_replay_buffer_is_marked_as_not_exact(tmp_path):
    options = ["checkpoint.replay=false", "+system.warmup_steps=4"]
    loop = toy_loop(tmp_path, *options)
    loop.train()
    loop.writer.close()
    resumed = restored(tmp_path, *options, "arch.total_timesteps=480")
    assert resumed.missing
    # Episodes continue those of the new replay buffer, so that its last steps are followed by their own next steps.
    # They have start states of their own.
    for other in (loop, toy_loop(tmp_path / "new")):
        with pytest.raises(AssertionError):
            assert_same_state(resumed.state.shards.rollout_state, other.state.shards.rollout_state)
    again = restored(tmp_path, *options, "arch.total_timesteps=480")
    assert_same_state(resumed.state.shards.rollout_state, again.state.shards.rollout_state)
    # The recorder counts the steps it observed: 4 environments × 80 steps, which the checkpoint does not contain.
    assert loop.state.shards.local.steps.tolist() == [320]
    # A new warm-up, in which the trained agent acts.
    assert resumed.state.shards.local.steps.tolist() == [16]
    assert loop.state.shards.local.acted_after.tolist() == [loop.progress.updates - 1]
    assert resumed.state.shards.local.acted_after.tolist() == [loop.progress.updates]
    assert_same_state(resumed.state.shared, loop.state.shared)


@pytest.mark.slow
def test_a_stored_replay_buffer_is_read_also_where_later_checkpoints_leave_it_out(tmp_path):
    loop = toy_loop(tmp_path)
    loop.train()
    loop.writer.close()
    resumed = restored(tmp_path, "checkpoint.replay=false", "arch.total_timesteps=480")
    assert not resumed.missing
    assert_same_state(resumed.state, loop.state)
    assert resumed._learner.items()["local"] == ()


def select(candidate, best, better):
    return np.where(better, candidate, best)


def test_the_best_parameters_are_those_of_the_members_that_improved():
    before = Best(np.array([1, 2, 3]), np.array([1.0, 5.0, 2.0]), np.full(3, 8), {"lr": np.array([0.1, 0.2, 0.3])})
    # The first member improves, the second has a lower return, and the third has none, as it diverged.
    now = Best(np.array([4, 5, 6]), np.array([2.0, 4.0, np.nan]), np.full(3, 16), {"lr": np.array([0.4, 0.5, 0.6])})
    best = now.unless_better(before, select, 0)
    assert best.shared.tolist() == [4, 2, 3]
    expected = {"episode_return": [2.0, 5.0, 2.0], "env_steps": [16, 8, 8], "hyperparams": {"lr": [0.4, 0.2, 0.3]}}
    assert best.host_values() == expected
    assert Best.from_checkpoint(None, expected).host_values()["env_steps"] == [16, 8, 8]
    assert now._replace(episode_return=np.zeros(3)).unless_better(before, select, 0) is before
    # Of equal returns, the latest.
    equal = now._replace(episode_return=before.episode_return).unless_better(before, select, 0)
    assert equal.env_steps.tolist() == [16, 16, 16]


def test_parameters_before_the_first_update_never_remain_the_best():
    first = Best(np.array([1, 2]), np.array([9.0, 5.0]), np.full(2, 8), {}).unless_better(None, select, 8)
    assert first.shared.tolist() == [1, 2]
    second = Best(np.array([3, 4]), np.array([2.0, 6.0]), np.full(2, 16), {}).unless_better(first, select, 8)
    assert second.host_values() == {"episode_return": [2.0, 6.0], "env_steps": [16, 16], "hyperparams": {}}
    host_state = {"best": first.host_values(), "progress": {"history": [{"env_steps": 8}, {"env_steps": 16}]}}
    assert lacks_best(host_state).all()
    assert not lacks_best(host_state | {"best": second.host_values()}).any()


def test_a_state_is_restored_from_its_items_and_a_member_is_taken_out_of_it():
    arrays = [jnp.arange(3.0) + number for number in range(7)]
    assert take_member({"a": jnp.arange(6).reshape(3, 2)}, 1)["a"].tolist() == [2, 3]
    state = LearnerState(arrays[0], Shard(*arrays[1:5]), arrays[5], arrays[6])
    items = to_items(state, None, local=True)
    assert to_items(state, None, local=False) == {**items, "local": ()}
    # The arrays of the items are released, as those that a checkpoint was read into.
    values = jax.tree.map(np.array, state)
    assert_same_state(to_state(items["shared"], items["rollout_state"], items["local"]), values)
    assert all(leaf.is_deleted() for leaf in arrays)
