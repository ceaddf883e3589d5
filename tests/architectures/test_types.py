import pytest

from support.recorder import recorder_program, start, train
from support.selections import select


@pytest.mark.parametrize(("num_devices", "num_shards"), select([(1, 1), (1, 2), (2, 2), (2, 4)], quick=[(2, 4)]))
def test_shared_state_has_one_copy_and_local_state_one_per_shard(num_devices, num_shards):
    program = recorder_program(num_devices)
    state, interval = train(program, start(program, num_shards), 5)
    metrics, episodes = interval.metrics, interval.episodes
    # The reward is 1 in every step, and every episode has one step.
    assert state.shared["updates"] == 5
    assert state.shared["reward"] == 5.0
    assert state.shards.local.steps.shape == (num_shards,)
    assert (state.shards.local.steps == 5 * 3 * 2).all()
    assert metrics["reward"] == 1.0
    assert episodes.number.value == 5 * 3 * 2 * num_shards
    assert episodes.return_sum.total == episodes.number.value
    assert (episodes.return_min, episodes.return_max) == (1.0, 1.0)
