"""Utilities for arrays, trees and compiled functions."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array, Float, Int, PyTree, Shaped

from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.collectives import mean_over
from stoix_like.utils.shapes import check_shapes

Scalar = int | float | Float[Array, ""]
"""A number that may be traced, such as a hyperparameter that varies over a population."""

_logger = logging.getLogger(__name__)


def as_floats(x: Shaped[Array, "..."]) -> Float[Array, "..."]:
    """Convert pixels, integers and booleans to floats.

    Returns floats unchanged, uint8 scaled from 0 … 255 to [0, 1], other types cast to float32.
    """
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / 255.0
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def restore_float32(x: Float[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """Return the result of a computation in a dtype of lower precision as float32.

    `dtype`: dtype of the computation; None if none was set, which leaves the array unchanged.
    """
    return x if dtype is None else x.astype(jnp.float32)


@contextlib.contextmanager
def with_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute a value for some time, whatever sets it meanwhile."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def fold_in_each(keys: jax.Array, number: Any) -> jax.Array:
    """Fold a number into each of some keys."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


@jax.custom_jvp
def _identity_with_scaled_tangent(x: Array, scale: Any) -> Array:
    return x


@_identity_with_scaled_tangent.defjvp
def _scaled_tangent(primals: tuple[Array, Any], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    (x, scale), (x_dot, _) = primals, tangents
    return x, (scale * x_dot).astype(x.dtype)


def scale_gradient(g: PyTree[Array], scale: Scalar = 1) -> PyTree[Array]:
    """Return `g` unchanged, with its gradient multiplied by `scale`.

        y = g,  dL/dg = scale * dL/dy

    Source: Schrittwieser et al. 2020 (MuZero), appendix G.

    Args:
        g: tree of arrays of any shape.
        scale: factor of the gradient, no unit; 0 stops the gradient.

    Returns:
        The tree `g`, bit-identical.
    """
    return jax.tree.map(lambda x: _identity_with_scaled_tangent(x, scale), g)


def count_parameters(params: PyTree[Any]) -> int:
    """Count the elements of a tree of arrays.

    Args:
        params: tree of arrays or `jax.ShapeDtypeStruct`s.

    Returns:
        The sum of the sizes of the leaves.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def leaf_name(path: Sequence[Any]) -> str:
    """Return the name of a parameter, the last key of its path in a tree; an empty string without one."""
    return str(getattr(path[-1], "key", "")) if path else ""


def ndim_at_least(x: Shaped[Array, "..."], num_dims: int) -> bool:
    """Check whether an array has at least `num_dims` dimensions.

    Args:
        x: array of any shape.
        num_dims: smallest number of dimensions.

    Returns:
        `x.ndim >= num_dims`.
    """
    return x.ndim >= num_dims


def prepend_dims(x: Shaped[Array | np.ndarray, "..."], num_dims: int) -> Shaped[Any, "..."]:
    """Prepend dimensions of size 1, so that an array broadcasts without implicit rank promotion.

    Returns `[1, ..., 1, *rest]`.
    """
    return x.reshape((1,) * (num_dims - x.ndim) + x.shape)


def append_dims(x: Shaped[Array | np.ndarray, "..."], num_dims: int) -> Shaped[Any, "..."]:
    """Append dimensions of size 1, such as to flags of rows for all that a row has."""
    return x.reshape(x.shape + (1,) * (num_dims - x.ndim))


def merge_leading_dims(x: Shaped[Array, "..."], num_dims: int) -> Shaped[Array, "..."]:
    """Flatten the leading dimensions of an array into one.

    Args:
        x: `[D1, ..., Dn, *rest]`.
        num_dims: the number n of leading dimensions to flatten, at least 1.

    Returns:
        `[D1 * ... * Dn, *rest]`.

    Raises:
        ValueError: if `num_dims` is less than 1 or more than `x.ndim`.
    """
    if not 1 <= num_dims <= x.ndim:
        raise ValueError(f"num_dims={num_dims} must be at least 1 and at most x.ndim={x.ndim}")
    # An explicit product: -1 is ambiguous for an array without elements.
    merged = 1
    for size in x.shape[:num_dims]:
        merged *= size
    return x.reshape(merged, *x.shape[num_dims:])


def unreplicate_n_dims(x: PyTree[Array], unreplicate_depth: int = 2) -> PyTree[Array]:
    """Take the first entry of every leading, replicated dimension.

    Args:
        x: tree of arrays `[R1, ..., Rn, *rest]`.
        unreplicate_depth: the number n of replicated dimensions.

    Returns:
        The tree, with leaves `[*rest]`.
    """
    return jax.tree.map(lambda leaf: leaf[(0,) * unreplicate_depth], x)


def unreplicate_batch_dim(x: PyTree[Array]) -> PyTree[Array]:
    """Take the first entry of the second dimension, the replicated update-batch dimension.

    Args:
        x: tree of arrays `[D, R, *rest]`, replicated over R.

    Returns:
        The tree, with leaves `[D, *rest]`.
    """
    return jax.tree.map(lambda leaf: leaf[:, 0], x)


def aot_compile(fn_to_compile: Callable[..., Any], fn_name: str, *args: Any, **kwargs: Any) -> jax.stages.Compiled:
    """Compile a function ahead of its first call, and log the compile time.

    Args:
        fn_to_compile: a function, or the result of `jax.jit`; donated and static arguments are preserved.
        fn_name: name of the function in the log.
        *args: example arguments, or `jax.ShapeDtypeStruct`s in their place.
        **kwargs: example keyword arguments, likewise.

    Returns:
        The compiled program, which takes the same arguments except the static ones.
    """
    jitted = fn_to_compile if hasattr(fn_to_compile, "lower") else jax.jit(fn_to_compile)
    start = time.perf_counter()
    compiled = jitted.lower(*args, **kwargs).compile()
    _logger.info("compiled %s in %.2f s", fn_name, time.perf_counter() - start)
    return compiled


def two_sum(
    large: Float[Array, "..."], low: Float[Array, "..."], addend: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Add to a sum that is kept with its rounding error (Knuth's error-free transformation)."""
    addend = addend + low
    total = large + addend
    of_addend = total - large
    return total, (large - (total - of_addend)) + (addend - of_addend)


def random_order(key: Array, length: int) -> Int[Array, "{length}"]:
    """Compute a random permutation, to split a batch into minibatches.

    The function sorts random bits with the position in the lowest bits. On a CPU, sorting this single array
    is several times faster than sorting positions by separate random bits, as `jax.random.permutation` does. Positions
    with equal random bits, which have a probability of at most `length / 2^31`, keep their order; this matters only
    where two minibatches meet.
    """
    if length > 2**22:
        return jax.random.permutation(key, length)
    low = jnp.uint32((1 << (length - 1).bit_length()) - 1)
    tagged = (jax.random.bits(key, (length,)) & ~low) | jnp.arange(length, dtype=jnp.uint32)
    return (jnp.sort(tagged, stable=False) & low).astype(jnp.int32)


def standardize(x: Float[Array, "..."], axis_names: Sequence[str] = ()) -> Float[Array, "..."]:
    """Shift and scale a whole batch to mean 0 and variance 1.

    (x - mean(x)) / sqrt(var(x) + 1e-8)
    """

    def mean(values: Array) -> Array:
        return mean_over(jnp.mean(values), axis_names)

    # Centred twice: the rounding error of a large mean would otherwise be scaled up to variance 1.
    centred = x - mean(x)
    centred = centred - mean(centred)
    return centred * jax.lax.rsqrt(mean(jnp.square(centred)) + 1e-8)


def explained_variance(
    prediction: Float[Array, "*B"], target: Float[Array, "*B"], axis_names: Sequence[str] = ()
) -> Float[Array, ""]:
    """Compute the share of the variance of the targets that predictions explain.

        1 - var(target - prediction) / max(var(target), 1e-12)

    It is 1 for perfect predictions, 0 for constant ones, and negative for worse ones.
    """
    check_shapes("prediction[*B] target[*B]", (prediction, target))

    def average(terms: dict[str, Array]) -> dict[str, Array]:
        return mean_over(means(terms), axis_names)

    terms = {"error": target - prediction, "target": target}
    centres = average(terms)
    variances = average({name: jnp.square(term - centres[name]) for name, term in terms.items()})
    return 1.0 - variances["error"] / jnp.maximum(variances["target"], 1e-12)


def means(terms: Mapping[str, Shaped[Array, "..."]]) -> dict[str, Float[Array, ""]]:
    """Average each array; on an accelerator, one reduction averages all of a size."""
    if on_cpu():
        return {name: jnp.mean(term) for name, term in terms.items()}
    by_size: dict[int, dict[str, Array]] = {}
    for name, term in terms.items():
        by_size.setdefault(term.size, {})[name] = term.reshape(-1)
    averaged = [jnp.mean(jnp.stack([*group.values()]), axis=1) for group in by_size.values()]
    groups = zip(by_size.values(), averaged, strict=True)
    found = {name: mean[i] for group, mean in groups for i, name in enumerate(group)}
    return {name: found[name] for name in terms}


def in_pieces(function: Callable[[Any], Any], pieces: int, length: int) -> Callable[[Any], Any]:
    """Return a function of a batch `[T, ...]`, entry by entry, that accelerators compute in pieces, to save memory."""
    count = 1 if on_cpu() else max(n for n in range(1, min(pieces, length) + 1) if length % n == 0)

    def apply(batch: Any) -> Any:
        if count == 1 or len(jax.tree.leaves(batch)[0]) != length:
            return function(batch)
        split = jax.tree.map(lambda leaf: leaf.reshape(count, length // count, *leaf.shape[1:]), batch)
        return jax.tree.map(lambda leaf: leaf.reshape(length, *leaf.shape[2:]), jax.lax.map(function, split))

    return apply


@jax.custom_batching.custom_vmap
def largest_of_batch(x: jax.Array) -> jax.Array:
    """Return the largest entry, of all entries of a vmapped axis too: one condition or count for the whole batch.

    With one condition per entry, `vmap` would run both branches of a `cond`, and refuse loops that call the host.
    """
    return jnp.max(x)


@largest_of_batch.def_vmap
def _largest_of_vmapped(axis_size: int, in_batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    return largest_of_batch(x), False


@jax.custom_batching.custom_vmap
def _of_entries(condition: jax.Array) -> jax.Array:
    """Return which entries of a vmapped axis a branch is for: without one, all, because the branch was taken."""
    return jnp.ones_like(condition)


@_of_entries.def_vmap
def _of_vmapped(axis_size: int, in_batched: list[bool], condition: jax.Array) -> tuple[jax.Array, bool]:
    return condition, in_batched[0]


def apply_where(condition: jax.Array, step: Callable[[Any], Any], operand: Any) -> Any:
    """Take a step where a condition `[]` holds.

    Over a vmapped axis, such as a population, the step is computed for all entries if the condition holds for one of
    them, and changes only that one; `jax.lax.cond` would compute it in any case.
    """

    def taken(operand: Any) -> Any:
        return jax.tree.map(partial(jnp.where, _of_entries(condition)), step(operand), operand)

    return jax.lax.cond(largest_of_batch(condition), taken, lambda same: same, operand)


def periodically(
    step: Callable[[Any], tuple[Any, Any]], operand: Any, count: jax.Array, period: int
) -> tuple[Any, Any]:
    """Take a step every `period` calls."""
    if period == 1:
        return step(operand)
    _, metrics = jax.eval_shape(step, operand)

    def taken(both: tuple[Any, Any]) -> tuple[Any, Any]:
        operand, metrics = step(both[0])
        return operand, jax.tree.map(lambda metric: period * metric, metrics)

    zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), metrics)
    return apply_where((count + 1) % period == 0, taken, (operand, zeros))


@jax.jit
def take_member(tree: Any, member: Any) -> Any:
    """Select one member of a population: arrays `[P, ...]` become `[...]`.

    In one program: on several CPU devices, a program per array would exchange parts while others do, and deadlock.
    """
    return jax.tree.map(lambda leaf: leaf[member], tree)


def select_members(these: Any, those: Any, chosen: Array) -> Any:
    """Select some members of one tree, where `chosen` `[P]` or `[]`, and the others of another one, `[P, ...]`."""
    return jax.tree.map(lambda one, other: jnp.where(append_dims(chosen, one.ndim), one, other), these, those)


def path_name(path: Any) -> str:
    """Return the name of a leaf by its path from jax, such as `params.actor_params.params.Dense_0.kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def named(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by name."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if leaf.size}


def replace_named(tree: PyTree, leaves: Mapping[str, Any]) -> PyTree:
    """Replace leaves of a tree by name."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaves.get(path_name(path), leaf), tree)


def shapes_on(sharding: Any, tree: Any) -> Any:
    """Return the shapes of arrays with the sharding that they have as arguments of a program."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def used_inputs(function: Callable[..., Any], inputs: Mapping[str, Any], *args: Any) -> frozenset[str]:
    """Return the names of the inputs that the results of a function depend on, by the data flow of its trace."""
    jaxpr = jax.make_jaxpr(function)(dict(inputs), *args).jaxpr
    _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    # Leaves of a dictionary are in the order of its keys, and come before other arguments.
    return frozenset(name for name, is_used in zip(sorted(inputs), used, strict=False) if is_used)
