"""The distribution of a deterministic policy."""

from __future__ import annotations

from typing import Any

import distrax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from stoix_like.networks.distributions.base import Seed, Sizes, check_value, take
from stoix_like.utils.jax_utils import prepend_dims


class Deterministic(distrax.Distribution):
    """A distribution with probability one at a single number `loc`; several numbers are a batch."""

    def __init__(self, loc: Float[Array, "*batch"]) -> None:
        self._loc = loc

    @property
    def event_shape(self) -> tuple[int, ...]:
        """`()`: events are scalars."""
        return ()

    @property
    def batch_shape(self) -> Sizes:
        """Shape of the batch, which is the shape of one sample."""
        return self._loc.shape

    def _sample_n(self, key: Seed, n: int) -> Array:
        return jnp.broadcast_to(self._loc[None], (n, *self._loc.shape))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return zero where `value` equals `loc`, else minus infinity."""
        check_value(value, self)
        loc = prepend_dims(self._loc, jnp.ndim(value))
        return jnp.where(value == loc, 0.0, -jnp.inf).astype(loc.dtype)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Return the entropy, zero; ignores `seed`."""
        return jnp.zeros_like(self._loc)

    def mean(self) -> Float[Array, "*batch"]:
        """Return `loc`."""
        return self._loc

    def mode(self) -> Float[Array, "*batch"]:
        """Return `loc`."""
        return self._loc

    def variance(self) -> Float[Array, "*batch"]:
        """Return zero."""
        return jnp.zeros_like(self._loc)

    def __getitem__(self, index: Any) -> Deterministic:
        return take(self, index, "_loc")
