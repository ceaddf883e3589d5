import jax
import numpy as np

from stoix_like.architectures import update
from stoix_like.architectures.types import NO_INPUTS
from support.recorder import recorder_program, start, train


def test_recurrent_state_persists_between_rollouts():
    program = recorder_program()
    # `act` adds one to its carry in each of 3 steps: rollouts start with 0, 3, 6 and 9, on average 4.5.
    _, interval = train(program, start(program, 1), 4)
    assert interval.metrics["first_carry"] == 4.5


def test_interval_in_several_calls_equals_one_call():
    program = recorder_program(probe="observed_value")
    whole, interval = train(program, start(program, 1), 5)
    state = start(program, 1)
    for num_updates, new_interval in ((2, True), (0, False), (3, False)):
        state, parts = program.train(state, {}, np.int32(num_updates), np.bool_(new_interval), NO_INPUTS)
    jax.tree.map(np.testing.assert_array_equal, parts, interval)
    jax.tree.map(np.testing.assert_array_equal, state.shared, whole.shared)
    assert program.train._cache_size() == 1


def test_initialisation_and_training_share_one_trace_of_the_update(monkeypatch):
    traced, original = [], update.ShardProgram.roll_out_and_update
    monkeypatch.setattr(
        update.ShardProgram, "roll_out_and_update", lambda *args: traced.append(args) or original(*args)
    )
    program, key = recorder_program(), jax.random.key(0)
    state = jax.eval_shape(program.init, {}, key, jax.random.split(key, 1), NO_INPUTS)
    program.train.trace(state, {}, np.int32(1), np.bool_(True), NO_INPUTS)
    assert len(traced) == 1
