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

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw one element uniformly."""
        return jax.random.randint(key, (), 0, self.n, self.dtype)


@dataclass(frozen=True)
class MultiDiscrete:
    """Vectors whose entry `i` lies in `0 … nvec[i] - 1`."""

    nvec: tuple[int, ...]
    dtype: Any = jnp.int32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element."""
        return (len(self.nvec),)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw one element uniformly."""
        return jax.random.randint(key, self.shape, 0, jnp.asarray(self.nvec), self.dtype)


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

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw one element: uniformly between finite bounds, else from a standard normal clipped to the bounds."""
        if jnp.issubdtype(self.dtype, jnp.integer):
            first, last = np.asarray(self.low, np.int64), np.asarray(self.high, np.int64)
            return jax.random.randint(key, self.shape, first, last + 1).astype(self.dtype)
        low = jnp.broadcast_to(jnp.asarray(self.low, self.dtype), self.shape)
        high = jnp.broadcast_to(jnp.asarray(self.high, self.dtype), self.shape)
        if self.bounded:
            return jax.random.uniform(key, self.shape, self.dtype, low, high)
        return jnp.clip(jax.random.normal(key, self.shape, self.dtype), low, high)


Space = Discrete | MultiDiscrete | Box
