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
    draw = np.random.default_rng(0).normal
    x, weights, start = jax.device_put([draw(size=shape) for shape in ((5, 2, 3), (5, 2, 4), (2, 4))])
    resets = jax.device_put(np.asarray([[1, 0], [0, 0], [0, 1], [0, 0], [1, 1]], bool))

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
        return jax.value_and_grad(lambda *args: jnp.sum(weights * unroll(*args)), argnums=(0, 1, 2))

    def both(start, x):
        variables = jax.tree.map(lambda p: p + 0.3, rnn.init(KEY, start, (x, resets)))
        return [loss(function)(variables, start, x) for function in (unroll, unroll_by_flax)]

    actual, expected = run(both, start, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


def _loss(variables, x, resets, start):
    return jnp.sum(ScannedRNN(4, "gru").apply(variables, start, (x, resets))[1].astype(jnp.float32) ** 2)


@pytest.mark.slow
def test_gradients_pass_through_shard_map_that_checks_what_varies():
    """The parameters are the same on all shards: their gradient is the sum over the shards."""
    x, resets = np.random.default_rng(0).normal(size=(3, 4, 3)), np.arange(12).reshape(3, 4) == 6
    start, variables = np.zeros(4), jax.jit(ScannedRNN(4, "gru").init)(KEY, np.zeros((4, 4)), (x, resets))

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
    x, resets, start = np.random.default_rng(0).normal(size=(3, 2, 3)), np.zeros((3, 2), bool), np.zeros((2, 4))
    (_, created), variables = jax.jit(rnn.init_with_output)(KEY, start, (x, resets))
    applied = np.asarray(jax.jit(rnn.apply)(variables, start, (x, resets))[1])
    np.testing.assert_allclose(applied, created, rtol=1e-5, atol=1e-6)
    assert (applied >= 0).all()  # as mixtures of zero and rectified numbers


def test_cells_with_a_first_state_of_their_own_return_to_it():
    rnn = ScannedRNN(4, "gru", cell_kwargs={"carry_init": nn.initializers.ones})

    def results(x, resets, start):
        variables = rnn.init(KEY, start, (x, resets))
        states = rnn.apply(variables, start, (x, resets), method="unroll")[0]
        cell = {"params": next(iter(variables["params"].values()))}
        return states, jnp.stack([nn.GRUCell(4).apply(cell, jnp.ones((2, 4)), x[t])[0] for t in range(2)])

    x = np.random.default_rng(0).normal(size=(2, 2, 3))
    np.testing.assert_allclose(*jax.jit(results)(x, np.ones((2, 2), bool), np.zeros((2, 4))), rtol=1e-5, atol=1e-6)


def test_states_that_are_not_finite_end_with_their_episode():
    rnn, resets = ScannedRNN(4, "gru"), np.asarray([[1, 0], [0, 1], [0, 0]], bool)
    inputs = jax.device_put((np.full((2, 4), np.nan), (np.ones((3, 2, 3)), resets)))
    states = run(lambda *inputs: rnn.apply(rnn.init(KEY, *inputs), *inputs, method="unroll")[0], *inputs)
    finite = [[True, False], [True, True], [True, True]]
    np.testing.assert_array_equal(np.isfinite(states).all(-1), finite)


def test_loops_of_gated_unit_have_one_product_per_step():
    rnn = ScannedRNN(4, "gru")
    x, resets, start = jax.device_put((np.ones((8, 2, 3)), np.zeros((8, 2), bool), np.zeros((2, 4))))
    variables = jax.eval_shape(rnn.init, KEY, start, (x, resets))
    program = jax.make_jaxpr(jax.grad(lambda v: jnp.sum(rnn.apply(v, start, (x, resets))[1])))(variables)
    # One in each loop; and outside, with all inputs and all states, and for the gradients of both kernels.
    assert str(program).count("dot_general") == 6
