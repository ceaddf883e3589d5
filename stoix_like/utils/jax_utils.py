"""Small functions over arrays, trees and compiled functions."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

Scalar = int | float | Float[Array, ""]
"""A number that the caller may also trace, such as a hyperparameter that differs between vmapped members."""

_logger = logging.getLogger(__name__)


@jax.custom_jvp
def _identity_with_scaled_tangent(x: Array, scale: Any) -> Array:
    return x


@_identity_with_scaled_tangent.defjvp
def _scaled_tangent(primals: tuple[Array, Any], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    (x, scale), (x_dot, _) = primals, tangents
    return x, (scale * x_dot).astype(x.dtype)


def scale_gradient(g: PyTree[Array], scale: Scalar = 1) -> PyTree[Array]:
    """Passes values on unchanged, and their gradient multiplied by `scale`.

        y = g,  dL/dg = scale * dL/dy

    Source: Schrittwieser et al. 2020 (MuZero), appendix G.

    Args:
        g: tree of arrays of any shape.
        scale: factor of the gradient, no unit; 0 stops it.

    Returns:
        The tree `g`, bit for bit.
    """
    return jax.tree.map(lambda x: _identity_with_scaled_tangent(x, scale), g)


def count_parameters(params: PyTree[Any]) -> int:
    """Counts the numbers held by a tree of arrays.

    Args:
        params: tree of arrays, or of anything with a shape.

    Returns:
        The sum of the leaves' sizes.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def ndim_at_least(x: Shaped[Array, "..."], num_dims: int) -> bool:
    """Whether an array has at least a number of dimensions.

    Args:
        x: array of any shape.
        num_dims: number of dimensions.

    Returns:
        `x.ndim >= num_dims`.
    """
    return x.ndim >= num_dims


def prepend_dims(x: Shaped[Array | np.ndarray, "..."], num_dims: int) -> Shaped[Any, "..."]:
    """Puts dimensions of size 1 in front, so that an array broadcasts against others without rank promotion.

    Args:
        x: `[*rest]`.
        num_dims: how many dimensions the result has, at least those of `x`.

    Returns:
        `[1, ..., 1, *rest]`.
    """
    return x.reshape((1,) * (num_dims - x.ndim) + x.shape)


def merge_leading_dims(x: Shaped[Array, "..."], num_dims: int) -> Shaped[Array, "..."]:
    """Flattens the leading dimensions of an array into one.

    Args:
        x: `[D1, ..., Dn, *rest]`.
        num_dims: how many leading dimensions to flatten, at least 1.

    Returns:
        `[D1 * ... * Dn, *rest]`.

    Raises:
        ValueError: if `x` has fewer than `num_dims` dimensions, or `num_dims` is less than 1.
    """
    if not 1 <= num_dims <= x.ndim:
        raise ValueError(f"cannot merge {num_dims} leading dimensions of an array of shape {x.shape}")
    # The product is spelt out because -1 is ambiguous for an array without elements.
    merged = 1
    for size in x.shape[:num_dims]:
        merged *= size
    return x.reshape(merged, *x.shape[num_dims:])


def unreplicate_n_dims(x: PyTree[Array], unreplicate_depth: int = 2) -> PyTree[Array]:
    """Takes the first entry of each of the leading, replicated dimensions.

    Args:
        x: tree of arrays `[R1, ..., Rn, *rest]`.
        unreplicate_depth: the number n of replicated dimensions.

    Returns:
        The tree with leaves `[*rest]`.
    """
    return jax.tree.map(lambda leaf: leaf[(0,) * unreplicate_depth], x)


def unreplicate_batch_dim(x: PyTree[Array]) -> PyTree[Array]:
    """Takes the first entry of the second dimension: device first, then update batch.

    Args:
        x: tree of arrays `[D, R, *rest]`, replicated over R.

    Returns:
        The tree with leaves `[D, *rest]`.
    """
    return jax.tree.map(lambda leaf: leaf[:, 0], x)


def aot_compile(fn_to_compile: Callable[..., Any], fn_name: str, *args: Any, **kwargs: Any) -> jax.stages.Compiled:
    """Compiles a function ahead of its first call, and logs how long that took.

    Args:
        fn_to_compile: a function, or the result of `jax.jit`, whose donation and static arguments then hold.
        fn_name: what the log calls it.
        *args: arguments, or `jax.ShapeDtypeStruct`s in their place.
        **kwargs: keyword arguments, likewise.

    Returns:
        The compiled program, called with the same arguments less the static ones.
    """
    jitted = fn_to_compile if hasattr(fn_to_compile, "lower") else jax.jit(fn_to_compile)
    start = time.perf_counter()
    compiled = jitted.lower(*args, **kwargs).compile()
    _logger.info("compiled %s in %.2f s", fn_name, time.perf_counter() - start)
    return compiled


def random_order(key: Array, length: int) -> Int[Array, "{length}"]:
    """Shuffles the numbers below a length, to deal a batch out into minibatches.

    Sorts random bits whose lowest ones are replaced by the position. Sorting one array of numbers is several times
    faster on a CPU than sorting positions by bits of their own, as `jax.random.permutation` does. Two positions whose
    remaining bits agree, with a probability of `length / 2^31` at most, stay in their order: that tells only where two
    minibatches meet.

    Source: textbook.

    Args:
        key: one key.
        length: how many numbers; beyond 2^22 `jax.random.permutation` is used.

    Returns:
        `[length]` each number from 0 to `length - 1`, once.
    """
    if length > 2**22:
        return jax.random.permutation(key, length)
    low = jnp.uint32((1 << (length - 1).bit_length()) - 1)
    tagged = (jax.random.bits(key, (length,)) & ~low) | jnp.arange(length, dtype=jnp.uint32)
    return (jnp.sort(tagged, stable=False) & low).astype(jnp.int32)


def standardize(x: Float[Array, "..."], axis_names: Sequence[str] = (), epsilon: Scalar = 1e-8) -> Float[Array, "..."]:
    """Shifts and scales a whole batch to mean 0 and variance 1.

        (x - mean(x)) / sqrt(var(x) + epsilon)

    Source: textbook.

    Args:
        x: array of any shape; the mean and the variance are those of all its elements.
        axis_names: mapped axes (vmap, shard_map) whose members share one mean and one variance.
        epsilon: added to the variance, in the squared unit of `x`, so that a constant batch gives zeros.

    Returns:
        Array of the shape of `x`.
    """

    def mean(values: Array) -> Array:
        local = jnp.mean(values)
        return jax.lax.pmean(local, tuple(axis_names)) if axis_names else local

    # Twice: the mean of a large constant is rounded, and what that leaves would be all there is to scale up.
    centred = x - mean(x)
    centred = centred - mean(centred)
    return centred * jax.lax.rsqrt(mean(jnp.square(centred)) + epsilon)
