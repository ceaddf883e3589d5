import jax.numpy as jnp

from stoix_like.systems.parts.recurrent import split_sequences, states_at_starts
from support.compiled import run


def test_each_sequence_starts_with_the_state_before_it():
    """Four steps of two environments, 0 2 4 6 and 1 3 5 7, in sequences of two; the state after step x is 10 + x."""
    steps = jnp.arange(8).reshape(4, 2)
    assert split_sequences(steps, 2).tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]]
    first = jnp.asarray([[-1], [-2]])
    assert run(states_at_starts, first, 10 + steps[1::2, :, None]).tolist() == [[-1], [12], [-2], [13]]
    # Of a whole rollout, the first state.
    assert run(states_at_starts, first, jnp.zeros((1, 2, 1), int)).tolist() == first.tolist()
