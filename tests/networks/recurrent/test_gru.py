import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from stoix_like.networks.base import ScannedRNN
from support.compiled import run
from support.selections import first

KEY = jax.random.key(0)


@pytest.mark.parametrize(("dtype", "tolerance"), first(1, [(None, 1e-4), (jnp.bfloat16, 5e-2)]))
def test_gated_unit_and_its_gradients_equal_those_of_flax(dtype, tolerance):
    rnn, cell = ScannedRNN(4, "gru", dtype=dtype), nn.GRUCell(4, dtype=dtype)
    x, weights, start = (jax.random.normal(KEY, (5, *shape)) for shape in ((2, 3), (2, 4), (2, 4)))
    resets = jnp.zeros((5, 2), bool).at[0, 0].set(True).at[2, 1].set(True).at[4].set(True)
    variables = jax.tree.map(lambda p: p + 0.3, jax.jit(rnn.init)(KEY, start[0], (x, resets)))

    def unroll_by_flax(variables, state, x):
        (params,) = variables["params"].values()
        states = []
        for t in range(len(x)):
            state = run(cell.apply, {"params": params}, jnp.where(resets[t][:, None], 0.0, state), x[t])[0]
            states.append(state)
        return jnp.stack(states)

    def unroll(variables, state, x):
        return rnn.apply(variables, state, (x, resets), method="unroll")[0]

    def loss(unroll):
        return jax.jit(jax.value_and_grad(lambda *args: jnp.sum(weights * unroll(*args)), argnums=(0, 1, 2)))

    actual, expected = loss(unroll)(variables, start[0], x), loss(unroll_by_flax)(variables, start[0], x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


def _loss(variables, x, resets, start):
    return jnp.sum(ScannedRNN(4, "gru").apply(variables, start, (x, resets))[1].astype(jnp.float32) ** 2)


def test_gradients_pass_through_shard_map_that_checks_what_varies():
    """The parameters are the same on all shards: their gradient is the sum over the shards."""
    x, resets, start = jax.random.normal(KEY, (3, 4, 3)), jnp.zeros((3, 4), bool).at[1, 2].set(True), jnp.zeros(4)
    variables = jax.jit(ScannedRNN(4, "gru").init)(KEY, jnp.zeros((4, 4)), (x, resets))

    def gradients(variables, x, resets, start):
        start = jnp.broadcast_to(start, (x.shape[1], 4))
        return jax.grad(_loss, argnums=(0, 1))(variables, x, resets, start)

    mesh = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    batch = PartitionSpec(None, "device")
    of_shards = jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(PartitionSpec(), batch, batch, PartitionSpec()),
        out_specs=(PartitionSpec(), batch),
    )
    actual, expected = (jax.jit(function)(variables, x, resets, start) for function in (of_shards, gradients))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)


def test_cells_with_functions_of_their_own_keep_them():
    rnn = ScannedRNN(4, "gru", cell_kwargs={"activation_fn": nn.relu})
    x, resets, start = jax.random.normal(KEY, (3, 2, 3)), jnp.zeros((3, 2), bool), jnp.zeros((2, 4))
    (_, created), variables = jax.jit(rnn.init_with_output)(KEY, start, (x, resets))
    applied = run(rnn.apply, variables, start, (x, resets))[1]
    np.testing.assert_allclose(applied, created, rtol=1e-5, atol=1e-6)
    assert (applied >= 0).all()  # as mixtures of zero and rectified numbers


def test_cells_with_a_first_state_of_their_own_return_to_it():
    rnn = ScannedRNN(4, "gru", cell_kwargs={"carry_init": nn.initializers.ones})
    x, resets = jax.random.normal(KEY, (2, 2, 3)), jnp.ones((2, 2), bool)
    variables = rnn.init(KEY, jnp.zeros((2, 4)), (x, resets))
    states = run(rnn.apply, variables, jnp.zeros((2, 4)), (x, resets), method="unroll")[0]
    cell = {"params": next(iter(variables["params"].values()))}
    for t in range(2):
        expected, _ = nn.GRUCell(4).apply(cell, jnp.ones((2, 4)), x[t])
        np.testing.assert_allclose(states[t], expected, rtol=1e-5, atol=1e-6)


def test_states_that_are_not_finite_end_with_their_episode():
    rnn, resets = ScannedRNN(4, "gru"), jnp.zeros((3, 2), bool).at[0, 0].set(True).at[1, 1].set(True)
    x, start = jnp.ones((3, 2, 3)), jnp.full((2, 4), jnp.nan)
    variables = rnn.init(KEY, start, (x, resets))
    states = run(rnn.apply, variables, start, (x, resets), method="unroll")[0]
    finite = [[True, False], [True, True], [True, True]]
    np.testing.assert_array_equal(jnp.isfinite(states).all(-1), finite)


def test_loops_of_gated_unit_have_one_product_per_step():
    rnn = ScannedRNN(4, "gru")
    x, resets, start = jnp.ones((8, 2, 3)), jnp.zeros((8, 2), bool), jnp.zeros((2, 4))
    variables = jax.eval_shape(rnn.init, KEY, start, (x, resets))
    program = jax.make_jaxpr(jax.grad(lambda v: jnp.sum(rnn.apply(v, start, (x, resets))[1])))(variables)
    # One in each loop; and outside, with all inputs and all states, and for the gradients of both kernels.
    assert str(program).count("dot_general") == 6
