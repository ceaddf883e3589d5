from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks.recurrent import LRUCell, linear_recurrence


def test_states_are_computed_in_the_widest_dtype():
    # h_0 = 256, b = 1, 1: 257 and 258, of which bfloat16 holds the second alone.
    ones = np.ones((2, 1), jnp.bfloat16)
    states = jax.jit(linear_recurrence)(ones, ones, np.full(1, 256.0, np.float32))
    np.testing.assert_array_equal(states, [[257.0], [258.0]])


def test_products_of_an_lru_are_added_in_float32():
    # gelu(256 + 1) = 257, which bfloat16 does not hold.
    kernels = {"decode": {"kernel": np.array([[1.0], [0.0]])}, "skip": {"kernel": np.ones((1, 1)), "bias": np.zeros(1)}}
    params = jax.device_put({"params": {"nu": np.zeros(1), "theta": np.zeros(1), **kernels}})
    cell = LRUCell(1, dtype=jnp.bfloat16)
    output = jax.jit(partial(cell.apply, method="read"))(params, jnp.array([256.0 + 0.0j]), jnp.ones(1))
    np.testing.assert_array_equal(output, [257.0])


def test_linear_recurrence_matches_hand_computed_states():
    # h_0 = 4, b = 1, 5, -1: 4 / 2 + 1 = 3, 0 * 3 + 5 = 5, 5 / 2 - 1 = 1.5.
    inputs = np.asarray([[0.5], [0.0], [0.5]]), np.asarray([[1.0], [5.0], [-1.0]]), np.asarray([4.0])
    np.testing.assert_allclose(jax.jit(linear_recurrence)(*inputs), [[3.0], [5.0], [1.5]])
