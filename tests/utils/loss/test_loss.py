import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils import loss as ls
from support.every_loss import CASES, A, B, C, K, arrays_of, random_arrays, total

by_case = pytest.mark.parametrize("name", CASES)


def _slopes(case, varied, fixed, direction, eps=1e-6):
    """Return the slope of a loss along a direction, by the gradient and by central differences."""

    def loss(*x):
        return total(case(*x, *fixed, *case.numbers))

    gradient = jax.grad(loss, tuple(range(len(varied))))(*varied)
    above, below = (loss(*(x + step * v for x, v in zip(varied, direction, strict=True))) for step in (eps, -eps))
    return sum(map(jnp.vdot, gradient, direction)), (above - below) / (2 * eps)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.num_with_gradient])
def test_gradients_match_finite_differences(name):
    case, rng = CASES[name], np.random.default_rng(0)
    with jax.enable_x64(True):
        arrays = arrays_of(case, jnp.float64)
        varied, fixed = arrays[: case.num_with_gradient], arrays[case.num_with_gradient :]
        direction = [jnp.asarray(rng.normal(size=x.shape)) for x in varied]
        by_gradient, by_differences = jax.jit(functools.partial(_slopes, case))(varied, fixed, direction)
    np.testing.assert_allclose(by_gradient, by_differences, rtol=1e-6, atol=1e-6)


@by_case
def test_numbers_may_be_traced_and_target_gradients_are_zero(name):
    case = CASES[name]
    arrays = arrays_of(case)
    actual, gradient = _value_and_grad(name)(arrays, _numbers(case))
    expected = sum(np.sum(leaf) for leaf in jax.tree.leaves(_loss(name)))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    if name not in {"dpg", "impala"}:  # whose fixed arguments are not the last ones: tested separately
        assert all(not np.any(leaf) for leaf in gradient[case.num_with_gradient :])


def _numbers(case):
    return tuple(np.float32(x) for x in case.numbers)


@functools.cache
def _loss(name):
    """Return the loss of a case, whose numbers are constants of the program."""
    case = CASES[name]
    return jax.jit(lambda *arrays: case(*arrays, *case.numbers))(*arrays_of(case))


@functools.cache
def _value_and_grad(name):
    case = CASES[name]
    return jax.jit(jax.value_and_grad(lambda arrays, numbers: total(case(*arrays, *numbers))))


@by_case
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_extreme_inputs_give_finite_losses_and_gradients(name, value):
    case = CASES[name]
    fixed_inputs = {"categorical_double_q": (1, 5), "categorical_td": (1, 5), "hl_gauss": (1,), "two_hot": (1,)}.get(
        name, ()
    )
    positive = name.startswith(("mpo", "vmpo"))  # temperatures and multipliers are not varied
    arrays = []
    for position, x in enumerate(case.arrays):
        extreme = np.where(x > 0, value, -value)
        keep = position in fixed_inputs or (positive and x.ndim == 0) or (name == "sac_temperature" and x.ndim == 0)
        arrays.append(jnp.asarray(x if keep else extreme, jnp.float32))
    result, gradient = _value_and_grad(name)(tuple(arrays), _numbers(case))
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


@pytest.mark.parametrize("name", BATCH_AXES)
def test_batching_equals_vmap(name):
    case, axes = CASES[name], BATCH_AXES[name]
    axes = axes if isinstance(axes, tuple) else (axes,) * len(case.arrays)
    # Every example becomes a batch of one.
    ones = [
        x if axis is None else np.expand_dims(np.moveaxis(x, axis, 0), axis + 1)
        for x, axis in zip(case.arrays, axes, strict=True)
    ]
    actions = [(position, array[:, None]) for position, array in case.integers]

    @jax.jit
    @functools.partial(jax.vmap, in_axes=([None if axis is None else 0 for axis in axes], [0] * len(actions)))
    def one_by_one(arrays, actions):
        integers = tuple((position, a) for (position, _), a in zip(case.integers, actions, strict=True))
        return case._replace(integers=integers)(*arrays, *case.numbers)

    each = one_by_one([jnp.asarray(x) for x in ones], [jnp.asarray(a) for _, a in actions])
    for part, expected in zip(jax.tree.leaves(each), map(np.asarray, jax.tree.leaves(_loss(name))), strict=True):
        part = np.asarray(part)
        expected_parts = part[:, 0].mean() if expected.ndim else part.mean()
        np.testing.assert_allclose(expected.mean(), expected_parts, rtol=1e-4, atol=1e-5)


def test_fixed_arguments_of_impala_and_dpg_get_no_gradient():
    gradient = _value_and_grad("impala")(arrays_of(CASES["impala"]), _numbers(CASES["impala"]))[1]
    assert all(not gradient[i].any() for i in (1, 3, 4, 5))
    assert gradient[0].any()
    assert gradient[2].any()
    assert not _value_and_grad("dpg")(arrays_of(CASES["dpg"]), _numbers(CASES["dpg"]))[1][1].any()


PER_EXAMPLE = [name.removesuffix("_per_example") for name in ls.__all__ if name.endswith("_per_example")]


@pytest.mark.parametrize("name", PER_EXAMPLE)
def test_the_loss_of_an_example_equals_that_of_a_batch_of_one(name):
    # Arguments are random arrays of the annotated shapes.
    mean, per_example = getattr(ls, name), getattr(ls, f"{name}_per_example")
    shapes = {"*B": (B,), "B": (B,), "B A": (B, A), "B C": (B, C), "B atoms": (B, K), "B atoms_t": (B, K)}
    shapes |= {"*B atoms": (B, K)}
    shapes |= {"B atoms C": (B, K, C), "B quantiles": (B, K), "B quantiles A": (B, K, A), "B quantiles_t A": (B, K, A)}
    shapes |= {"B quantiles_selector A": (B, K, A), "B quantiles C": (B, K, C), "B quantiles_t": (B, K)}
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
            batched[argument] = random_arrays(seed)(*shapes[dims])

    @jax.jit
    def in_three_ways(batched, others):
        def alone(one):
            return mean(**jax.tree.map(lambda x: x[None], one), **others)

        return per_example(**batched, **others), mean(**batched, **others), jax.vmap(alone)(batched)

    losses, mean_loss, alone = in_three_ways(batched, others)
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
