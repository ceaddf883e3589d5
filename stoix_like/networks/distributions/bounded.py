"""Maps from scalars to an interval, and distributions over one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from stoix_like.networks.distributions.base import Seed, Sizes, check_value, take
from stoix_like.utils.jax_utils import prepend_dims

Bound = int | float | Sequence[Any] | np.ndarray | Array
"""One end of an interval: a number, or one per entry of an action."""


def squash(x: Float[Array, "*batch"], minimum: Bound, maximum: Bound) -> Float[Array, "*batch"]:
    """Map real numbers to an interval.

        y = minimum + (maximum - minimum) (1 + tanh x) / 2

    Args:
        x: array of any shape.
        minimum: lower end, broadcast against the last axes of `x`.
        maximum: upper end, broadcast against the last axes of `x`.

    Returns:
        Numbers in [minimum, maximum], of the shape of `x`.
    """
    return stretch(0.5 + 0.5 * jnp.tanh(x), minimum, maximum)


def stretch(fraction: Array, minimum: Bound, maximum: Bound) -> Array:
    """Map [0, 1] to [minimum, maximum] linearly; results are clipped, since rounding can exceed an end."""
    low, high = ends(minimum, maximum, fraction)
    return jnp.clip(low + (high - low) * fraction, low, high)


def ends(minimum: Bound, maximum: Bound, like: Array) -> tuple[Any, Any]:
    """Return the ends of an interval, to broadcast against `like`; numpy constants for constant bounds."""
    low, high = (prepend_dims(_as_array(bound, like.dtype), like.ndim) for bound in (minimum, maximum))
    return low, high


def interval(minimum: Bound, maximum: Bound, like: Array) -> tuple[Any, Any]:
    """Return minimum and width of an interval, see `ends`."""
    low, high = ends(minimum, maximum, like)
    return low, high - low


def _is_traceable(bound: Any) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(bound))


def _as_array(bound: Bound, dtype: Any) -> Any:
    return jnp.asarray(bound, dtype) if _is_traceable(bound) else np.asarray(bound, dtype)


def map_samples(function: Callable[[Array], Array], num_axes: int) -> Callable[[Array], Array]:
    """Apply `jax.vmap` once per leading sample axis."""
    for _ in range(num_axes):
        function = jax.vmap(function)
    return function


class Bounded(distrax.Distribution):
    """A distribution of scalars, mapped one to one to [minimum, maximum] by `_forward`.

    Constant bounds are stored as Python floats: they are not leaves of the pytree, so `vmap` over a batch of
    distributions does not map over them. Array bounds, which may be traced, are leaves and have the shape of the batch.

    `minimum`, `maximum`: the ends, broadcast against samples.
    """

    _parameters: ClassVar[tuple[str, ...]] = ("_minimum", "_maximum")

    def __init__(self, distribution: distrax.DistributionLike, minimum: Bound, maximum: Bound) -> None:
        self._distribution = distrax.as_distribution(distribution)
        self._minimum, self._maximum = (self._store(bound) for bound in (minimum, maximum))

    def _store(self, bound: Any) -> Any:
        if _is_traceable(bound):
            return jnp.broadcast_to(jnp.asarray(bound), self.batch_shape)
        return np.asarray(bound, np.float32).tolist()

    @property
    def distribution(self) -> distrax.Distribution:
        """The base distribution."""
        return self._distribution

    @property
    def event_shape(self) -> tuple[int, ...]:
        """`()`: events are scalars."""
        return ()

    @property
    def batch_shape(self) -> Sizes:
        """Shape of the batch, which is the shape of one sample."""
        return self._distribution.batch_shape

    def __getitem__(self, index: Any) -> Any:
        # Scalar bounds apply everywhere; array bounds may vary along the indexed axes.
        whole = copy.copy(self)
        varying = [name for name in self._parameters if np.ndim(getattr(self, name))]
        for name in varying:
            setattr(whole, name, jnp.broadcast_to(jnp.asarray(getattr(self, name)), self.batch_shape))
        taken = take(whole, index, *varying)
        taken._distribution = self._distribution[index]
        return taken

    def _interval(self, like: Array) -> tuple[Any, Any]:
        return interval(self._minimum, self._maximum, like)

    def _forward(self, x: Array) -> Array:
        raise NotImplementedError

    def _log_prob(self, value: Array) -> Array:
        raise NotImplementedError

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._forward(self._distribution._sample_n(key, n))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Compute the log-density of `value`, finite at both ends of the interval."""
        check_value(value, self)
        value = jnp.asarray(value, jnp.result_type(value, 1.0))  # integers would round the bounds
        return map_samples(self._log_prob, value.ndim - len(self.batch_shape))(value)

    def mode(self) -> Float[Array, "*batch"]:
        """Return the mapped mode of the base distribution, the action of a greedy policy."""
        return self._forward(self._distribution.mode())

    def kl_divergence(self, other_dist: distrax.DistributionLike, **kwargs: Any) -> Float[Array, "*batch"]:
        """Return the KL divergence of the base distributions: on the same interval, it is the same."""
        if type(other_dist) is not type(self):
            raise NotImplementedError(
                f"{self.name} has no KL divergence to {type(other_dist).__name__}: pass another {self.name}"
            )
        return self._distribution.kl_divergence(other_dist.distribution, **kwargs)
