"""The scale of returns, by which policy gradients are divided, as functions of its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.base_types import Axes, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, Range, above, between


@dataclass(frozen=True, kw_only=True)
class ReturnScaleConfig(Part):
    """Hyperparameters of the scale of advantages."""

    return_decay: Annotated[float, Range(0.0, 1.0, without_high=True)]  # decay of the percentiles per gradient step
    return_percentile_low: Annotated[float, between(0.0, 100.0)]  # the lower one, in percent
    return_percentile_high: Annotated[float, between(0.0, 100.0)]  # the upper one, in percent
    min_return_range: Annotated[float, above(0.0)]  # smallest distance that advantages are divided by

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check the order of the percentiles."""
        if self.return_percentile_low >= self.return_percentile_high:
            raise ConfigError(
                f"system.return_percentile_low={self.return_percentile_low} must be less than"
                f" system.return_percentile_high={self.return_percentile_high}"
            )


class ReturnScale(NamedTuple):
    """Functions of the moving percentiles of returns."""

    init: Callable[[], Float[Array, "2"]]  # `() -> percentiles [2]`, zeros
    # `(percentiles, returns [...]) -> percentiles`, merges the batch of all shards.
    update: Callable[[Float[Array, "2"], Float[Array, "..."]], Float[Array, "2"]]
    scale: Callable[[Float[Array, "2"]], Float[Array, ""]]  # `(percentiles) -> scale`, a scalar


def make_return_scale(config: ReturnScaleConfig, axes: Axes) -> ReturnScale:
    """Build the scale of returns by their range without outliers.

        scale = max(min_return_range, EMA(Per(R, high)) - EMA(Per(R, low)))

    Small returns are not scaled up, so that noise where there is no reward stays small. The means start at 0 without a
    correction: the first scales are too small rather than too large.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, equation 7.
    """

    def update(percentiles: Array, returns: Array) -> Array:
        for name in axes.names:
            returns = jax.lax.all_gather(returns, name)
        levels = jnp.stack([jnp.asarray(config.return_percentile_low), jnp.asarray(config.return_percentile_high)])
        found = jnp.percentile(jax.lax.stop_gradient(returns), levels.astype(returns.dtype))
        return config.return_decay * percentiles + (1.0 - config.return_decay) * found

    def scale(percentiles: Array) -> Array:
        return jnp.maximum(config.min_return_range, percentiles[1] - percentiles[0])

    return ReturnScale(lambda: jnp.zeros(2, jnp.float32), update, scale)
