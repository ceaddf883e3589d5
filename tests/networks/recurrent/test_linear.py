"""Recurrent cells that are linear in their state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.base import ScannedRNN
from stoix_like.networks.recurrent import linear_recurrence
from stoix_like.networks.utils import parse_rnn_cell

KEY = jax.random.key(0)


@pytest.mark.parametrize("cell_type", ["mingru", "lru", pytest.param("s5", marks=pytest.mark.slow)])
def test_linear_cell_steps_equal_parallel_scan(cell_type):
    rnn = ScannedRNN(4, cell_type)
    x = jax.random.normal(KEY, (7, 2, 3))
    resets = jnp.zeros((7, 2), bool).at[3, 1].set(True).at[5].set(True)
    start = jax.tree.map(lambda h: h + 0.5, rnn.initialize_carry(2))
    params = jax.jit(rnn.init)(KEY, start, (x, resets))
    expected_state, expected = jax.jit(rnn.apply)(params, start, (x, resets))
    (cell_params,) = params["params"].values()
    step = jax.jit(parse_rnn_cell(cell_type)(4).apply)
    state = start
    for t in range(7):
        state = jnp.where(resets[t][:, None], 0.0, state)
        state, output = step({"params": cell_params}, state, x[t])
        np.testing.assert_allclose(output, expected[t], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, expected_state, rtol=1e-4, atol=1e-5)


def test_states_are_computed_in_the_widest_dtype():
    # h_0 = 256, b = 1, 1: 257 and 258, of which bfloat16 holds the second alone.
    ones = jnp.ones((2, 1), jnp.bfloat16)
    states = linear_recurrence(ones, ones, jnp.full(1, 256.0, jnp.float32))
    np.testing.assert_array_equal(states[:, 0], [257.0, 258.0])


def test_linear_recurrence_matches_hand_computed_states():
    # h_0 = 4, b = 1, 5, -1: 4 / 2 + 1 = 3, 0 * 3 + 5 = 5, 5 / 2 - 1 = 1.5.
    states = linear_recurrence(jnp.asarray([[0.5], [0.0], [0.5]]), jnp.asarray([[1.0], [5.0], [-1.0]]), jnp.ones(1) * 4)
    np.testing.assert_allclose(states[:, 0], [3.0, 5.0, 1.5])
