"""Maps of samples to the range of an action, which do not change the density.

If log-probabilities are needed, use a distribution on the range itself, such as
`distributions.AffineTanhTransformedDistribution`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import distrax
import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.networks.distributions.base import Seed
from stoix_like.networks.distributions.bounded import Bound, ends, squash, stretch
from stoix_like.networks.heads.base import Bounds


def rescale_to_spec(
    inputs: Float[Array, "*batch"], minimum: Bound | float, maximum: Bound | float
) -> Float[Array, "*batch"]:
    """Map [-1, 1] to [minimum, maximum] linearly; results outside are clipped."""
    return stretch(0.5 * (inputs + 1.0), minimum, maximum)


def clip_to_spec(
    inputs: Float[Array, "*batch"], minimum: Bound | float, maximum: Bound | float
) -> Float[Array, "*batch"]:
    """Clip to [minimum, maximum]."""
    return jnp.clip(inputs, *ends(minimum, maximum, inputs))


def tanh_to_spec(
    inputs: Float[Array, "*batch"], minimum: Bound | float, maximum: Bound | float
) -> Float[Array, "*batch"]:
    """Map real numbers to [minimum, maximum] by tanh, see `distributions.squash`."""
    return squash(inputs, minimum, maximum)


def min_max_normalize(inputs: Float[Array, "*batch D"], epsilon: float = 1e-5) -> Float[Array, "*batch D"]:
    """Scale the last axis to [0, 1].

    Args:
        inputs: `[..., D]`, such as the latent state of MuZero.
        epsilon: added to ranges below it, so that constant rows give zeros.

    Returns:
        `[..., D]`.
    """
    low, high = inputs.min(-1, keepdims=True), inputs.max(-1, keepdims=True)
    width = high - low
    return (inputs - low) / jnp.where(width < epsilon, width + epsilon, width)


class PostProcessedDistribution(distrax.Distribution):
    """A distribution with mapped samples and mode, without a density.

    Args:
        distribution: the distribution to sample from.
        postprocessor: function of samples.
    """

    def __init__(self, distribution: distrax.DistributionLike, postprocessor: Callable[[Array], Array]) -> None:
        self._distribution = distrax.as_distribution(distribution)
        self._postprocessor = postprocessor

    @property
    def distribution(self) -> distrax.Distribution:
        """The distribution before the map."""
        return self._distribution

    @property
    def event_shape(self) -> Any:
        """Shape of an event."""
        return self._distribution.event_shape

    @property
    def batch_shape(self) -> Any:
        """Shape of the batch."""
        return self._distribution.batch_shape

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._postprocessor(self._distribution._sample_n(key, n))

    def mode(self) -> Float[Array, "..."]:
        """Return the mapped mode."""
        return self._postprocessor(self._distribution.mode())

    def log_prob(self, value: Any) -> Array:
        """Refuse: the map changes the density in an unknown way.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "PostProcessedDistribution has no density: use the log_prob of its `distribution` for values before the"
            " map, or a distribution on the range, such as AffineTanhTransformedDistribution"
        )


class ScalePostProcessor(nn.Module):
    """A module that maps the samples of a distribution."""

    minimum: Bounds | Sequence[Any]  # lower bounds, of the shape of an action or a scalar
    maximum: Bounds | Sequence[Any]  # upper bounds, of the shape of an action or a scalar
    scale_fn: Callable[..., Array]  # one of the functions above, `(samples, minimum, maximum) -> samples`

    @nn.compact
    def __call__(self, distribution: Any) -> PostProcessedDistribution:
        """Return the distribution with mapped samples."""
        postprocessor = functools.partial(self.scale_fn, minimum=self.minimum, maximum=self.maximum)
        return PostProcessedDistribution(distribution, postprocessor)
