"""Sums over intervals of any length: counts stay exact, and sums of floats do not stop growing."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes
from stoix_like.utils.jax_utils import two_sum

# In uint32, digits of base 2**16 of up to 65,536 shards can be added before one is carried.
_BITS = 16


class Count(NamedTuple):
    """The number `high * 2**16 + low`, below 2**48, in two uint32 arrays."""

    high: jax.Array
    low: jax.Array

    @property
    def value(self) -> np.ndarray:
        """The number as int64, on the host."""
        return (np.asarray(self.high, np.int64) << _BITS) + np.asarray(self.low, np.int64)


class FloatSum(NamedTuple):
    """The sum `total + low` of float32 scalars, where `low` is the rounding error of `total`."""

    total: jax.Array
    low: jax.Array


def count_nothing() -> Count:
    """Return the count zero."""
    zero = jnp.zeros((), jnp.uint32)
    return Count(zero, zero)


def digits(numbers: jax.Array) -> Count:
    """Return each integer as a count, to be added by `add_counts`."""
    return _carry(jnp.zeros(numbers.shape, jnp.uint32), numbers.astype(jnp.uint32))


def add_counts(a: Count, b: Count) -> Count:
    """Add two counts."""
    return _carry(a.high + b.high, a.low + b.low)


def count_over_shards(counted: Count, axes: Axes) -> Count:
    """Sum the counts of all shards."""
    return _carry(*axes.sum(tuple(counted)))


def sum_nothing(shape: tuple[int, ...] = ()) -> FloatSum:
    """Return the sum zero, of arrays of a shape."""
    return FloatSum(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def add_float(sum_: FloatSum, number: jax.Array) -> FloatSum:
    """Add a number; its rounding error is kept for the next one."""
    total, low = two_sum(sum_.total, sum_.low, number)
    # An infinite total has no rounding error.
    return FloatSum(total, jnp.where(jnp.isfinite(total), low, 0.0))


def _carry(high: jax.Array, low: jax.Array) -> Count:
    return Count(high + (low >> _BITS), low & ((1 << _BITS) - 1))
