import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.recurrent.layer import ScannedRNN
from support.compiled import run
from support.selections import select

KEY = jax.random.key(0)
CELLS = ("lstm", "optimised_lstm", "gru", "mgu", "simple", "mingru", "lru", "s5", "mlstm", "gtrxl")


@pytest.mark.parametrize("cell_type", ["mlstm", "gtrxl"])
def test_heads_divide_the_width_of_a_cell(cell_type):
    with pytest.raises(ValueError, match="num_heads=4 must divide features=30: use a divisor of it"):
        ScannedRNN(30, cell_type).initialize_carry(2)


@pytest.mark.parametrize("cell_type", select(CELLS, quick=("gru", "lru")))
class TestScannedRNN:
    def test_sequence_equals_single_steps_and_restarts_at_resets(self, cell_type):
        rnn = ScannedRNN(8, cell_type)
        x = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
        resets = np.zeros((6, 2), bool)
        resets[3, 1] = True
        start = rnn.initialize_carry(2)
        params = jax.jit(rnn.init)(KEY, start, (x, resets))
        apply = jax.jit(rnn.apply)
        last, outputs = jax.device_get(apply(params, start, (x, resets)))
        assert outputs.shape == (6, 2, 8)

        state = start
        for t in range(6):
            state, output = apply(params, state, (x[t : t + 1], resets[t : t + 1]))
            np.testing.assert_allclose(output, outputs[t : t + 1], rtol=1e-4, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state, last)

        restarted = np.asarray(apply(params, start, (x[3:], np.zeros((3, 2), bool)))[1])
        np.testing.assert_allclose(outputs[3:, 1], restarted[:, 1], rtol=1e-4, atol=1e-5)
        assert not np.allclose(outputs[3:, 0], restarted[:, 0], atol=1e-4)

    def test_gradients_stop_at_resets(self, cell_type):
        rnn = ScannedRNN(8, cell_type)
        start, resets = rnn.initialize_carry((1,)), jax.device_put(np.asarray([[0], [0], [1], [0]], bool))

        def gradients(x):
            params = rnn.init(KEY, start, (x, resets))
            return jax.grad(lambda x: rnn.apply(params, start, (x, resets))[1][2:].sum())(x)

        gradient = np.asarray(jax.jit(gradients)(np.random.default_rng(0).normal(size=(4, 1, 3))))
        np.testing.assert_array_equal(gradient[:2], 0.0)
        assert (gradient[2:] != 0).any()


@pytest.mark.parametrize("cell_type", CELLS)
@pytest.mark.usefixtures("without_type_checks")
def test_flags_that_would_broadcast_are_refused(cell_type):
    """Inputs [6, 2, 3] with flags [6, 2, 1], [6] or [6, 1] in place of [6, 2]; and one step of them."""
    rnn, x = ScannedRNN(8, cell_type), np.zeros((6, 2, 3))
    start = jax.eval_shape(lambda: rnn.initialize_carry(2))
    for shape in ((6, 2, 1), (6,), (6, 1)):
        message = rf"^resets\.shape={re.escape(str(shape))} must be \[\*B\], where .*\(6, 2\)"
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(rnn.init, KEY, start, (x, np.zeros(shape, bool)))
    with pytest.raises(ValueError, match=r"^resets\.shape=\(2, 1\)"):
        jax.eval_shape(functools.partial(rnn.init, method="step"), KEY, start, (x[0], np.zeros((2, 1), bool)))


@pytest.mark.slow
@pytest.mark.parametrize("cell_type", ["mlstm", "gtrxl"])
def test_large_states_are_those_of_single_steps_and_lead_to_successors(cell_type):
    rnn = ScannedRNN(8, cell_type, num_layers=2, cell_kwargs={"window": 3} if cell_type == "gtrxl" else None)
    x, following = jax.random.normal(KEY, (2, 6, 2, 3))
    resets = jnp.zeros((6, 2), bool).at[0, 0].set(True).at[3, 1].set(True)
    params = jax.jit(rnn.init)(KEY, rnn.initialize_carry(2), (x, resets))
    start = jax.jit(rnn.apply)(params, rnn.initialize_carry(2), (following, resets))[0]
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

    step = jax.jit(functools.partial(rnn.apply, method="step"))
    state, expected, outputs, successors = start, [], [], []
    for t in range(6):
        state, output = step(params, state, (x[t], resets[t]))
        expected.append(state)
        outputs.append(output)
        successors.append(step(params, state, (following[t], jnp.zeros(2, bool)))[1])
    for every in (1, 2, 4, 6):
        found = run(rnn.apply, params, start, (x, resets), following, every, method="unroll_with_successors")
        states, *_ = run(rnn.apply, params, start, (x, resets), every, method="unroll")
        for some in (states, found[0]):
            jax.tree.map(
                lambda *leaves: assert_close(leaves[0], jnp.stack(leaves[1:])), some, *expected[every - 1 :: every]
            )
        assert_close(found[1], jnp.stack(outputs))
        assert_close(found[2], jnp.stack(successors))


@pytest.mark.slow
@pytest.mark.parametrize("cell_type", ["mlstm", "gtrxl", "s5"])
def test_gradients_of_sequences_are_those_of_single_steps(cell_type):
    rnn = ScannedRNN(8, cell_type, cell_kwargs={"gtrxl": {"window": 3}, "mlstm": {"chunk_size": 4}}.get(cell_type))
    x, resets = jax.random.normal(KEY, (7, 2, 3)), jnp.zeros((7, 2), bool).at[3, 1].set(True)
    start, weights = rnn.initialize_carry(2), jax.random.normal(KEY, (7, 2, 8))
    params = jax.jit(rnn.init)(KEY, start, (x, resets))

    def in_steps(params, x):
        step = functools.partial(rnn.apply, params, method="step")
        return jax.lax.scan(lambda state, inputs: step(state, inputs), start, (x, resets))[1]

    def loss(outputs):
        return jax.jit(jax.grad(lambda *args: jnp.sum(weights * outputs(*args)), (0, 1)))(params, x)

    expected, found = loss(in_steps), loss(lambda params, x: rnn.apply(params, start, (x, resets))[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("cell_type", ["gru", "optimised_lstm", "lru", "s5", "mlstm", "gtrxl"])
def test_a_loop_over_cells_computes_what_one_after_the_other_does(cell_type, width):
    x, resets = jax.random.normal(KEY, (5, 2, width)), jnp.zeros((5, 2), bool).at[2, 1].set(True)
    rnn, lone = ScannedRNN(8, cell_type, num_layers=4), ScannedRNN(8, cell_type)
    start = rnn.initialize_carry(2)
    params = jax.jit(rnn.init)(KEY, start, (x, resets))

    def looped(params, x, resets, method):
        states, outputs = run(rnn.apply, params, start, (x, resets), method=method)
        return list(states), outputs

    def one_by_one(params, x, resets, method):
        states = []
        for i, state in enumerate(start):
            own = {"params": {"cells_0": params["params"][f"cells_{i}"]}}
            state, x = run(lone.apply, own, state, (x, resets), method=method)
            states.append(state)
        return states, x

    for inputs in ((x, resets, "unroll"), (x[0], resets[0], "step")):
        found, expected = looped(params, *inputs), one_by_one(params, *inputs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    first, *others = (jax.tree.leaves(params["params"][f"cells_{i}"]) for i in range(1, 4))
    assert all(any((a != b).any() for a, b in zip(first, other, strict=True)) for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("cell_type", CELLS)
def test_programs_do_not_grow_with_the_number_of_cells(cell_type):
    def sizes(num_layers):
        rnn = ScannedRNN(8, cell_type, num_layers)
        start, inputs = rnn.initialize_carry(2), (jnp.ones((5, 2, 8)), jnp.zeros((5, 2), bool))
        params = jax.eval_shape(rnn.init, KEY, start, inputs)
        update = jax.make_jaxpr(jax.grad(lambda params: rnn.apply(params, start, inputs)[1].sum()))(params)
        init = jax.make_jaxpr(rnn.init)(KEY, start, inputs)
        return [len(str(program).splitlines()) for program in (update, init)]

    # Each further cell has its parameters and its state to be stacked, and their gradients to be unstacked.
    for few, more, one in zip(sizes(4), sizes(8), sizes(1), strict=True):
        assert (more - few) / 4 < one / 2


@pytest.mark.parametrize("cell_type", CELLS)
def test_parameters_and_states_of_cells_stay_float32_where_numbers_are_float64(cell_type):
    rnn = ScannedRNN(4, cell_type)
    with jax.enable_x64(True):

        def process(x, resets):
            return rnn.init_with_output(jax.random.key(0), rnn.initialize_carry(2), (x, resets))

        leaves = jax.tree.leaves(jax.eval_shape(process, np.zeros((3, 2, 5), np.float32), np.zeros((3, 2), bool)))
    assert {leaf.dtype for leaf in leaves} <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.complex64)}
