"""The last axis of an array as columns, where it has few entries.

For few actions or categories, operations on columns are part of one kernel of an accelerator; a gather or a reduction
over the axis is a kernel of its own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stoix_like.utils.accelerate.platform import on_cpu

_FEW = 16


def in_columns(x: jax.Array) -> bool:
    """Return whether to compute with the columns of `x`, `[..., K]`."""
    return not on_cpu() and x.shape[-1] <= _FEW


def columns(x: jax.Array) -> list[jax.Array]:
    """Return the columns `[...]` of `x`, `[..., K]`."""
    return [x[..., index] for index in range(x.shape[-1])]


def argmax(x: jax.Array) -> jax.Array:
    """Return the first index of the largest entry of the last axis, as `jnp.argmax` does."""
    if not in_columns(x):
        return jnp.argmax(x, axis=-1)
    largest, index = x[..., 0], jnp.zeros(x.shape[:-1], jnp.int32)
    for column, values in enumerate(columns(x)[1:], start=1):
        # Not a number counts as the largest.
        is_larger = (values > largest) | (jnp.isnan(values) & ~jnp.isnan(largest))
        largest, index = jnp.where(is_larger, values, largest), jnp.where(is_larger, column, index)
    return index
