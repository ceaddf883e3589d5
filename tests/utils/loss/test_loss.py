import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils import loss as ls
from support.every_loss import CASES, A, B, C, K, random_arrays, total

by_case = pytest.mark.parametrize("name", CASES)
WITH_GRADIENT = {name: case for name, case in CASES.items() if case.num_with_gradient}


def _slopes(case, varied, fixed, direction, eps=1e-6):
    """Return the slope of a loss along a direction, by the gradient and by central differences."""

    def loss(*x):
        return total(case(*x, *fixed, *case.numbers))

    gradient = jax.grad(loss, tuple(range(len(varied))))(*varied)
    above, below = (loss(*(x + step * v for x, v in zip(varied, direction, strict=True))) for step in (eps, -eps))
    return sum(map(jnp.vdot, gradient, direction)), (above - below) / (2 * eps)


@functools.cache
def _all_slopes():
    """Return the slopes of every loss along a random direction, by one program."""
    rng = np.random.default_rng(0)
    arguments = {}
    for name, case in WITH_GRADIENT.items():
        arrays, number = [np.float64(x) for x in case.arrays], case.num_with_gradient
        arguments[name] = arrays[:number], arrays[number:], [rng.normal(size=x.shape) for x in arrays[:number]]
    with jax.enable_x64(True):
        return jax.jit(lambda arguments: {name: _slopes(CASES[name], *x) for name, x in arguments.items()})(arguments)


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_gradients_match_finite_differences(name):
    by_gradient, by_differences = _all_slopes()[name]
    np.testing.assert_allclose(by_gradient, by_differences, rtol=1e-6, atol=1e-6)


@jax.jit
def _program(arrays, numbers):
    """Compute every loss with constant numbers, and its total and gradients with traced ones."""

    def value_and_grad(name, case):
        return jax.value_and_grad(lambda x: total(case(*x, *numbers[name])))(arrays[name])

    return {name: (case(*arrays[name], *case.numbers), *value_and_grad(name, case)) for name, case in CASES.items()}


@functools.cache
def _results(extreme=None):
    """Return what the program computes of the arguments of each loss, or of extreme ones."""
    arrays = {name: _extreme(name, extreme) if extreme else case.arrays for name, case in CASES.items()}
    numbers = {name: tuple(np.float32(x) for x in case.numbers) for name, case in CASES.items()}
    return jax.device_get(_program(jax.device_put(arrays), numbers))


def _extreme(name, value):
    fixed = {"categorical_double_q": (1, 5), "categorical_td": (1, 5), "hl_gauss": (1,), "two_hot": (1,)}.get(name, ())
    positive = name.startswith(("mpo", "vmpo", "sac_temperature"))  # temperatures and multipliers are not varied
    pairs = ((x, i in fixed or (positive and x.ndim == 0)) for i, x in enumerate(CASES[name].arrays))
    return tuple(x if keep else np.where(x > 0, value, -value) for x, keep in pairs)


@by_case
def test_numbers_may_be_traced_and_target_gradients_are_zero(name):
    loss, actual, gradient = _results()[name]
    np.testing.assert_allclose(actual, sum(map(np.sum, jax.tree.leaves(loss))), rtol=1e-5, atol=1e-6)
    if name not in {"dpg", "impala"}:  # whose fixed arguments are not the last ones: tested separately
        assert all(not np.any(leaf) for leaf in gradient[CASES[name].num_with_gradient :])


@by_case
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_extreme_inputs_give_finite_losses_and_gradients(name, value):
    _, result, gradient = _results(value)[name]
    assert np.isfinite(result)
    assert all(np.isfinite(leaf).all() for leaf in gradient)


# Losses that are means over the batch and have no form for one example: the batch axis of every array, None for arrays
# that all examples share.
MEANS = ("ppo_penalty_continuous", "categorical_double_q", "quantile_regression", "dpg", "impala", "awr")
BATCH_AXES = {
    **dict.fromkeys((*MEANS, "policy_gradient", "reinforce"), 0),
    **{"sampled_cql": (1, 0, 1), "mpo_policy": 1, "mpo_temperature": (None, 1), "sac_temperature": (None, 0)},
    **{"mpo_alpha": (0, None), "mpo_alpha_dual": (None, 0)},
}


@functools.cache
def _one_by_one():
    """Return the losses of batches of one example each."""

    def one(case, arrays, actions):
        integers = tuple((position, a) for (position, _), a in zip(case.integers, actions, strict=True))
        return case._replace(integers=integers)(*arrays, *case.numbers)

    functions, arguments = {}, {}
    for name, axes in BATCH_AXES.items():
        case = CASES[name]
        axes = axes if isinstance(axes, tuple) else (axes,) * len(case.arrays)
        pairs = zip(case.arrays, axes, strict=True)
        # Every example becomes a batch of one.
        ones = [x if axis is None else np.expand_dims(np.moveaxis(x, axis, 0), axis + 1) for x, axis in pairs]
        arguments[name] = ones, [array[:, None] for _, array in case.integers]
        functions[name] = jax.vmap(functools.partial(one, case), ([None if a is None else 0 for a in axes], 0))
    program = jax.jit(lambda arguments: {name: functions[name](*x) for name, x in arguments.items()})
    return jax.device_get(program(arguments))


@pytest.mark.parametrize("name", BATCH_AXES)
def test_batching_equals_vmap(name):
    for part, expected in zip(*map(jax.tree.leaves, (_one_by_one()[name], _results()[name][0])), strict=True):
        expected_parts = part[:, 0].mean() if expected.ndim else part.mean()
        np.testing.assert_allclose(expected.mean(), expected_parts, rtol=1e-4, atol=1e-5)


def test_fixed_arguments_of_impala_and_dpg_get_no_gradient():
    gradient = _results()["impala"][2]
    assert all(not gradient[i].any() for i in (1, 3, 4, 5))
    assert gradient[0].any()
    assert gradient[2].any()
    assert not _results()["dpg"][2][1].any()


PER_EXAMPLE = [name.removesuffix("_per_example") for name in ls.__all__ if name.endswith("_per_example")]


def _random_arguments(mean):
    """Return random arrays of the annotated shapes, and the other arguments."""
    sizes = {"*B": B, "B": B, "A": A, "C": C, "atoms": K, "atoms_t": K}
    sizes |= dict.fromkeys(("quantiles", "quantiles_selector", "quantiles_t"), K)
    batched, others = {}, {}
    for seed, (argument, hint) in enumerate(inspect.get_annotations(mean, eval_str=True).items()):
        if argument == "return" or hint is bool:
            continue
        dims = getattr(hint, "dim_str", None)
        if dims is None:
            others[argument] = 0.7
        elif argument == "a_tm1":
            batched[argument] = np.arange(B, dtype=np.int32) % A
        elif "atoms" in argument:
            batched[argument] = np.tile(np.linspace(-2.0, 2.0, K, dtype=np.float32), (B, 1))
        else:
            batched[argument] = random_arrays(seed)(*map(sizes.get, dims.split()))
    return batched, others


@functools.cache
def _in_three_ways():
    """Return the losses of examples, their mean, and those of batches of one."""

    def losses(name, batched, others):
        mean = functools.partial(getattr(ls, name), **others)
        one_by_one = jax.vmap(lambda one: mean(**jax.tree.map(lambda x: x[None], one)))(batched)
        return getattr(ls, f"{name}_per_example")(**batched, **others), mean(**batched), one_by_one

    program = jax.jit(lambda arguments: {name: losses(name, *x) for name, x in arguments.items()})
    return jax.device_get(program({name: _random_arguments(getattr(ls, name)) for name in PER_EXAMPLE}))


@pytest.mark.parametrize("name", PER_EXAMPLE)
def test_the_loss_of_an_example_equals_that_of_a_batch_of_one(name):
    losses, mean_loss, alone = _in_three_ways()[name]
    assert losses.shape == (B,)
    np.testing.assert_allclose(mean_loss, np.mean(losses), rtol=1e-6)
    np.testing.assert_allclose(alone, losses, rtol=1e-5, atol=1e-6)


# The others have a single array with a batch.
SEVERAL_ARRAYS = [
    name
    for name, case in CASES.items()
    if not name.startswith(("mpo_temp", "mpo_alpha", "vmpo_temp", "sac_temp", "ppo_penalty"))
]


@pytest.mark.parametrize("name", SEVERAL_ARRAYS)
@pytest.mark.usefixtures("without_type_checks")
def test_arrays_that_would_broadcast_are_refused(name):
    """`[B, 1]` in place of `[B]`, one column in place of several, one example in place of a batch."""
    case, arrays = CASES[name], CASES[name].arrays
    for position, x in enumerate(arrays):
        # The last axis of these may have any size, one included.
        any_size = name in {"quantile_regression", "quantile_critic", "cql", "sac_actor"}
        for wrong in (x[..., None],) if any_size else (x[..., None], x[..., :1]):
            with pytest.raises(ValueError, match=r"\.shape=.* must be \["):
                jax.eval_shape(lambda *x: case(*x, *case.numbers), *arrays[:position], wrong, *arrays[position + 1 :])
