"""Recurrent cells: gated recurrent units equal those of flax, linear recurrences equal a parallel scan."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.base import (
    ScannedRNN,
)
from stoix_like.networks.recurrent import linear_recurrence
from stoix_like.networks.utils import parse_rnn_cell

KEY = jax.random.key(0)


@pytest.mark.parametrize("cell_type", ["mingru", "lru"])
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


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (jnp.bfloat16, 5e-2)])
def test_gated_unit_and_its_gradients_equal_those_of_flax(dtype, tolerance):
    rnn, cell = ScannedRNN(4, "gru", dtype=dtype), nn.GRUCell(4, dtype=dtype)
    x, weights, start = (jax.random.normal(KEY, (5, *shape)) for shape in ((2, 3), (2, 4), (2, 4)))
    resets = jnp.zeros((5, 2), bool).at[0, 0].set(True).at[2, 1].set(True).at[4].set(True)
    variables = jax.tree.map(lambda p: p + 0.3, jax.jit(rnn.init)(KEY, start[0], (x, resets)))

    def unroll_by_flax(variables, state, x):
        (params,) = variables["params"].values()
        states = []
        for t in range(len(x)):
            state = cell.apply({"params": params}, jnp.where(resets[t][:, None], 0.0, state), x[t])[0]
            states.append(state)
        return jnp.stack(states)

    def unroll(variables, state, x):
        return rnn.apply(variables, state, (x, resets), method="unroll")[0]

    def loss(unroll):
        return jax.jit(jax.value_and_grad(lambda *args: jnp.sum(weights * unroll(*args)), argnums=(0, 1, 2)))

    actual, expected = loss(unroll)(variables, start[0], x), loss(unroll_by_flax)(variables, start[0], x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


def test_states_that_are_not_finite_end_with_their_episode():
    rnn, resets = ScannedRNN(4, "gru"), jnp.zeros((3, 2), bool).at[0, 0].set(True).at[1, 1].set(True)
    x, start = jnp.ones((3, 2, 3)), jnp.full((2, 4), jnp.nan)
    variables = rnn.init(KEY, start, (x, resets))
    states = rnn.apply(variables, start, (x, resets), method="unroll")[0]
    finite = [[True, False], [True, True], [True, True]]
    np.testing.assert_array_equal(jnp.isfinite(states).all(-1), finite)


def test_loops_of_gated_unit_have_one_product_per_step():
    rnn = ScannedRNN(4, "gru")
    x, resets, start = jnp.ones((8, 2, 3)), jnp.zeros((8, 2), bool), jnp.zeros((2, 4))
    variables = jax.eval_shape(rnn.init, KEY, start, (x, resets))
    program = jax.make_jaxpr(jax.grad(lambda v: jnp.sum(rnn.apply(v, start, (x, resets))[1])))(variables)
    # One in each loop; and outside, with all inputs and all states, and for the gradients of both kernels.
    assert str(program).count("dot_general") == 6


def test_linear_recurrence_matches_hand_computed_states():
    # h_0 = 4, b = 1, 5, -1: 4 / 2 + 1 = 3, 0 * 3 + 5 = 5, 5 / 2 - 1 = 1.5.
    states = linear_recurrence(jnp.asarray([[0.5], [0.0], [0.5]]), jnp.asarray([[1.0], [5.0], [-1.0]]), jnp.ones(1) * 4)
    np.testing.assert_allclose(states[:, 0], [3.0, 5.0, 1.5])
