"""Action and observation spaces, named as in gymnasium, that sample inside a compiled program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Discrete:
    """The integers `0 … n - 1`."""

    n: int
    dtype: Any = jnp.int32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element."""
        return ()

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element uniformly; `mask` `[n]` says which are legal, all where it is None or all False."""
        if mask is None:
            return jax.random.randint(key, (), 0, self.n, self.dtype)
        return _choose(key, mask).astype(self.dtype)


@dataclass(frozen=True)
class MultiDiscrete:
    """Vectors whose entry `i` lies in `0 … nvec[i] - 1`."""

    nvec: tuple[int, ...]
    dtype: Any = jnp.int32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element."""
        return (len(self.nvec),)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element uniformly; `mask` `[sum(nvec)]` says what each entry may be, as that of `Discrete`."""
        if mask is None:
            return jax.random.randint(key, self.shape, 0, jnp.asarray(self.nvec), self.dtype)
        parts = jnp.split(mask, np.cumsum(self.nvec)[:-1])
        keys = jax.random.split(key, len(parts))
        return jnp.stack([_choose(*each) for each in zip(keys, parts, strict=True)]).astype(self.dtype)


@dataclass(frozen=True, eq=False)
class Box:
    """Arrays between `low` and `high`, which are broadcast to `shape`; either may be infinite."""

    low: np.ndarray | float
    high: np.ndarray | float
    shape: tuple[int, ...]
    dtype: Any = jnp.float32

    @property
    def bounded(self) -> bool:
        """Whether every entry has two finite bounds, as far as float32 can tell."""
        largest = np.finfo(np.float32).max
        return bool(np.all(np.abs(self.low) < largest) and np.all(np.abs(self.high) < largest))

    @property
    def half_width(self) -> np.ndarray:
        """Half the distance of the bounds, `shape`; 1 everywhere where there are none."""
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), self.shape) for bound in (self.low, self.high))
        return (high - low) / 2 if self.bounded else np.ones(self.shape, np.float32)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element: uniformly between finite bounds, else from a standard normal clipped to the bounds."""
        del mask
        if jnp.issubdtype(self.dtype, jnp.integer):
            first, last = np.asarray(self.low, np.int64), np.asarray(self.high, np.int64)
            return jax.random.randint(key, self.shape, first, last + 1).astype(self.dtype)
        low = jnp.broadcast_to(jnp.asarray(self.low, self.dtype), self.shape)
        high = jnp.broadcast_to(jnp.asarray(self.high, self.dtype), self.shape)
        if self.bounded:
            return jax.random.uniform(key, self.shape, self.dtype, low, high)
        return jnp.clip(jax.random.normal(key, self.shape, self.dtype), low, high)


def _choose(key: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.random.categorical(key, jnp.where(mask | ~mask.any(), 0.0, -jnp.inf))


Space = Discrete | MultiDiscrete | Box
