"""The scale of returns, by which policy gradients are divided, as functions of its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.base_types import Axes
from stoix_like.utils.jax_utils import Scalar


class ReturnScale(NamedTuple):
    """Functions of the moving percentiles of returns.

    Attributes:
        init: `() -> percentiles [2]`, zeros.
        update: `(percentiles, returns [...]) -> percentiles`, merges the batch of all shards.
        scale: `(percentiles) -> scale`, a scalar.
    """

    init: Callable[[], Float[Array, "2"]]
    update: Callable[[Float[Array, "2"], Float[Array, "..."]], Float[Array, "2"]]
    scale: Callable[[Float[Array, "2"]], Float[Array, ""]]


def make_percentile_scale(decay: Scalar, low: Scalar, high: Scalar, limit: Scalar, axes: Axes) -> ReturnScale:
    """Build the scale of returns by their range without outliers.

        scale = max(limit, EMA(Per(R, high)) - EMA(Per(R, low)))

    Small returns are not scaled up, so that noise where there is no reward stays small. The means start at 0 without a
    correction: the first scales are too small rather than too large.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, equation 7.

    Args:
        decay: weight of the old percentiles in the new ones, in [0, 1].
        low: lower percentile, in 0 … 100.
        high: upper percentile, in 0 … 100.
        limit: smallest scale, in the units of returns.
        axes: the mapped axes that a batch is spread over.

    Returns:
        The functions.
    """

    def init() -> Array:
        return jnp.zeros(2)

    def update(percentiles: Array, returns: Array) -> Array:
        for name in axes.names:
            returns = jax.lax.all_gather(returns, name)
        found = jnp.percentile(jax.lax.stop_gradient(returns), jnp.stack([jnp.asarray(low), jnp.asarray(high)]))
        return decay * percentiles + (1.0 - decay) * found

    def scale(percentiles: Array) -> Array:
        return jnp.maximum(limit, percentiles[1] - percentiles[0])

    return ReturnScale(init, update, scale)
