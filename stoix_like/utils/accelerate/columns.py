"""The last axis of an array as columns, where it has few entries.

For few actions or categories, operations on columns are part of one kernel of an accelerator; a gather or a reduction
over the axis is a kernel of its own.
"""

from __future__ import annotations

import jax

from stoix_like.utils.accelerate.platform import on_cpu

_FEW = 16


def in_columns(x: jax.Array) -> bool:
    """Return whether to compute with the columns of `x`, `[..., K]`."""
    return not on_cpu() and x.shape[-1] <= _FEW


def columns(x: jax.Array) -> list[jax.Array]:
    """Return the columns `[...]` of `x`, `[..., K]`."""
    return [x[..., index] for index in range(x.shape[-1])]
