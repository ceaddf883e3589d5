"""Types and helpers that all distributions share."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import distrax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key, Shaped

from stoix_like.utils.shapes import check_last_axes

Seed = Key[Array, ""] | Shaped[Array, "2"] | int
"""A random key, or an integer that distrax turns into one."""
Sizes = tuple[Any, ...]
"""A shape; its entries may be symbolic while a function is exported for any batch size."""


def batch_grid(batch_shape: tuple[int, ...], index: Any) -> tuple[np.ndarray, ...]:
    """Expand an index of the batch axes into one integer array per axis, which keeps the axes after them."""
    np.broadcast_to(False, batch_shape)[index]  # raises IndexError where the index is out of range
    return tuple(np.asarray(axis[index]) for axis in np.indices(batch_shape))


def take(distribution: Any, index: Any, *names: str) -> Any:
    """Return a copy of a distribution at `index` of its batch.

    `*names`: the attributes to index, arrays with the batch axes first.
    """
    grid = batch_grid(distribution.batch_shape, index)
    taken = copy.copy(distribution)
    for name in names:
        setattr(taken, name, getattr(distribution, name)[grid])
    return taken


def check_value(value: Any, distribution: Any) -> None:
    """Refuse values that would broadcast silently, such as `[B, 1]` against a batch `[B]`.

    `value`: `[..., *event]`: events, with sample axes before the batch axes, or without batch axes.
    """
    batch, event = distribution.batch_shape, distribution.event_shape
    what = f"the batch shape {tuple(batch)} and the event shape {tuple(event)}"
    check_last_axes("value", np.shape(value), (*batch, *event), len(event), what)


class Independent(distrax.Independent):
    """A distribution that turns the last batch axes into event axes; log-probabilities are summed over them."""

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Sum the log-probabilities of `value`, `[..., *event]`, over the event."""
        check_value(value, self)
        return super().log_prob(value)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Sum the entropies over the event; estimates use the same `seed` for every entry."""
        entropy = self._distribution.entropy
        # Only estimates need a seed, and the distributions of distrax do not take one.
        takes_seed = "seed" in inspect.signature(entropy).parameters
        return self._reduce(jnp.sum, entropy(seed=seed) if takes_seed else entropy())

    def __getitem__(self, index: Any) -> Independent:
        grid = batch_grid(self.batch_shape, index)
        return Independent(self._distribution[grid], self._reinterpreted_batch_ndims)
