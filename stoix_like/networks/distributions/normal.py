"""Normal distributions."""

from __future__ import annotations

import math
from typing import Any

import distrax
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from stoix_like.networks.distributions.base import Seed, Sizes, check_value, take
from stoix_like.utils.jax_utils import prepend_dims

Normal = distrax.Normal


class MultivariateNormalDiag(distrax.Distribution):
    """A normal distribution over arrays with independent entries.

    `loc`, `scale_diag`: `[..., A]` means, and `[..., A]` or `[A]` standard deviations.
    `event_ndims`: number of trailing axes of one event: 1 for vectors.
    """

    def __init__(self, loc: Float[Array, "..."], scale_diag: Float[Array, "..."], event_ndims: int = 1) -> None:
        self._loc = loc
        self._scale_diag = jnp.broadcast_to(scale_diag, loc.shape)
        self._event_ndims = event_ndims

    def _sum_over_event(self, per_entry: Array) -> Array:
        return per_entry.sum(tuple(range(-self._event_ndims, 0)))

    @property
    def loc(self) -> Float[Array, "*batch_and_event"]:
        """Means."""
        return self._loc

    @property
    def scale_diag(self) -> Float[Array, "*batch_and_event"]:
        """Standard deviations."""
        return self._scale_diag

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one event."""
        return self._loc.shape[self._loc.ndim - self._event_ndims :]

    @property
    def batch_shape(self) -> Sizes:
        """Shape of the batch."""
        return self._loc.shape[: self._loc.ndim - self._event_ndims]

    def _sample_n(self, key: Seed, n: int) -> Array:
        noise = jax.random.normal(key, (n, *self._loc.shape), self._loc.dtype)
        return self._loc[None] + self._scale_diag[None] * noise

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Compute the log-density, `-1/2 sum_i ((x_i - mu_i) / s_i)^2 + log(2 pi s_i^2)`."""
        check_value(value, self)
        loc, scale = (prepend_dims(parameter, jnp.ndim(value)) for parameter in (self._loc, self._scale_diag))
        log_prob = -0.5 * jnp.square((value - loc) / scale) - jnp.log(scale) - 0.5 * math.log(2.0 * math.pi)
        return self._sum_over_event(log_prob)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Compute the differential entropy in nats, `1/2 sum_i log(2 pi e s_i^2)`, exactly; ignores `seed`."""
        return self._sum_over_event(jnp.log(self._scale_diag) + 0.5 * math.log(2.0 * math.pi * math.e))

    def kl_divergence(self, other_dist: Any, **kwargs: Any) -> Float[Array, "*batch"]:
        """Compute the KL divergence in nats.

        KL = sum_i log(s'_i / s_i) + (s_i^2 + (mu_i - mu'_i)^2) / (2 s'_i^2) - 1/2
        """
        difference = (self._loc - other_dist.loc) / other_dist.scale_diag
        log_ratio = jnp.log(self._scale_diag) - jnp.log(other_dist.scale_diag)
        return self._sum_over_event(0.5 * jnp.square(difference) + 0.5 * jnp.expm1(2.0 * log_ratio) - log_ratio)

    def mean(self) -> Float[Array, "*batch_and_event"]:
        """Return the means."""
        return self._loc

    def mode(self) -> Float[Array, "*batch_and_event"]:
        """Return the means, the most likely event."""
        return self._loc

    def stddev(self) -> Float[Array, "*batch_and_event"]:
        """Return the standard deviations."""
        return self._scale_diag

    def variance(self) -> Float[Array, "*batch_and_event"]:
        """Return the variances."""
        return jnp.square(self._scale_diag)

    def __getitem__(self, index: Any) -> MultivariateNormalDiag:
        return take(self, index, "_loc", "_scale_diag")


class StateDependentNoise(MultivariateNormalDiag):
    """A normal distribution with a random linear function of features as noise (gSDE).

        a = mu + eps^T phi + m xi,   eps_ij ~ N(0, s_ij^2),   xi_j ~ N(0, 1)
        hence   a_j ~ N(mu_j, sum_i phi_i^2 s_ij^2 + m^2)

    The same key at successive steps draws the same `eps` and `xi`, which makes the noise a smooth function of the
    state. The term `m xi` keeps samples consistent with the density where the features vanish.

    Source: Raffin et al., Smooth Exploration for Robotic Reinforcement Learning (2022), equations 4-6.

    `loc`: mu; the action axes are the axes of `noise_scale`, s, after the first.
    `features`: phi.
    `min_scale`: m, lower limit of the standard deviation, in units of the action.
    """

    def __init__(
        self,
        loc: Float[Array, "*batch_and_action"],
        features: Float[Array, "*batch D"],
        noise_scale: Float[Array, "D *action"],
        min_scale: int | float | Array = 1e-3,
    ) -> None:
        # m is one more feature, a constant, with a scale of 1.
        floor = jnp.broadcast_to(jnp.asarray(min_scale, features.dtype), (*features.shape[:-1], 1))
        features = jnp.concatenate([features, floor], axis=-1)
        flat_scale = noise_scale.reshape(features.shape[-1] - 1, -1)
        flat_scale = jnp.concatenate([flat_scale, jnp.ones_like(flat_scale[:1])])
        variance = jnp.square(features) @ jnp.square(flat_scale)
        super().__init__(loc, jnp.sqrt(variance).reshape(loc.shape), noise_scale.ndim - 1)
        self._features = features
        # With the batch axes, so that `vmap` over the batch maps over the scales, too.
        self._noise_scale = jnp.broadcast_to(flat_scale, (*features.shape[:-1], *flat_scale.shape))

    def _sample_n(self, key: Seed, n: int) -> Array:
        noise = jax.random.normal(key, (n, *self._noise_scale.shape), self._loc.dtype) * self._noise_scale[None]
        noise = jnp.einsum("...i,n...ij->n...j", self._features, noise)
        return self._loc[None] + noise.reshape(n, *self._loc.shape)

    def __getitem__(self, index: Any) -> StateDependentNoise:
        return take(self, index, "_loc", "_scale_diag", "_features", "_noise_scale")
