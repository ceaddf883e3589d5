"""Beta distributions."""

from __future__ import annotations

from typing import Any

import distrax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from stoix_like.networks.distributions.base import Seed, Sizes, check_value
from stoix_like.networks.distributions.bounded import Bounded, map_samples, stretch


class ClippedBeta(distrax.Beta):
    """A Beta distribution with samples strictly inside (0, 1), where its log-density is finite.

    Constructed like `distrax.Beta`, from two positive concentrations `alpha` and `beta`.
    """

    def __init__(self, alpha: ArrayLike, beta: ArrayLike) -> None:
        super().__init__(*jnp.broadcast_arrays(alpha, beta))

    @property
    def batch_shape(self) -> Sizes:
        """Shape of the batch; `vmap` changes the shape of the parameters, not the one that distrax keeps."""
        return self._alpha.shape

    def _clip(self, value: Array) -> Array:
        margin = float(jnp.finfo(value.dtype).eps)
        return jnp.clip(value, margin, 1.0 - margin)

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._clip(super()._sample_n(key, n))

    def _sample_n_and_log_prob(self, key: Seed, n: int) -> tuple[Array, Array]:
        samples = self._sample_n(key, n)
        return samples, self.log_prob(samples)

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Compute the log-density of `value`, clipped to the range of the samples."""
        check_value(value, self)
        value = jnp.asarray(value)
        return map_samples(super().log_prob, value.ndim - len(self.batch_shape))(self._clip(value))

    def mode(self) -> Float[Array, "*batch"]:
        """Return the most likely value, or the mean where both concentrations are at most one."""
        rise, fall = jnp.maximum(self._alpha - 1.0, 0.0), jnp.maximum(self._beta - 1.0, 0.0)
        no_peak = rise + fall == 0.0
        return jnp.where(no_peak, self.mean(), rise / jnp.where(no_peak, 1.0, rise + fall))

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Compute the differential entropy in nats of the unclipped distribution; ignores `seed`."""
        return super().entropy()

    def __getitem__(self, index: Any) -> ClippedBeta:
        taken = super().__getitem__(index)
        return ClippedBeta(taken.alpha, taken.beta)


class AffineBeta(Bounded):
    """A distribution of x on (0, 1), such as a `ClippedBeta`, stretched to [minimum, maximum]; see `Bounded`.

    y = minimum + (maximum - minimum) x
    """

    def _forward(self, x: Array) -> Array:
        return stretch(x, self._minimum, self._maximum)

    def _log_prob(self, value: Array) -> Array:
        low, width = self._interval(value)
        return self._distribution.log_prob((value - low) / width) - jnp.log(width)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Compute the differential entropy in nats, `H(x) + log(maximum - minimum)`, exactly; ignores `seed`."""
        entropy = self._distribution.entropy()
        return entropy + jnp.log(self._interval(entropy)[1])

    def mean(self) -> Float[Array, "*batch"]:
        """Compute the expectation."""
        return self._forward(self._distribution.mean())

    def variance(self) -> Float[Array, "*batch"]:
        """Compute the variance."""
        variance = self._distribution.variance()
        return variance * jnp.square(self._interval(variance)[1])
