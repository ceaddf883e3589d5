"""Sums over finished episodes, so that only scalars leave the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stoix_like.architectures.sums import (
    Count,
    add_counts,
    add_float,
    count,
    count_nothing,
    count_over_shards,
    sum_nothing,
)
from stoix_like.architectures.types import EpisodeSums
from stoix_like.base_types import Axes, EpisodeMetrics


def no_episodes() -> EpisodeSums:
    """Return the sums over zero episodes."""
    infinity = jnp.full((), jnp.inf, jnp.float32)
    return EpisodeSums(count_nothing(), sum_nothing(), infinity, -infinity, count_nothing())


def add_episodes(sums: EpisodeSums, episodes: EpisodeMetrics) -> EpisodeSums:
    """Add the episodes that finished in a rollout.

    Args:
        sums: the sums so far.
        episodes: `[T, N]` metrics of every step.

    Returns:
        The sums, scalars.
    """
    finished, returns = episodes.finished, episodes.episode_return
    counts = count(jnp.stack([finished, jnp.where(finished, episodes.episode_length, 0)]), range(1, 1 + finished.ndim))
    extremes = jnp.where(finished[None], jnp.stack([-returns, returns]), -jnp.inf).max(
        tuple(range(1, 1 + finished.ndim))
    )
    return EpisodeSums(
        number=add_counts(sums.number, Count(counts.high[0], counts.low[0])),
        return_sum=add_float(sums.return_sum, jnp.sum(jnp.where(finished, returns, 0.0))),
        return_min=jnp.minimum(sums.return_min, -extremes[0]),
        return_max=jnp.maximum(sums.return_max, extremes[1]),
        length_sum=add_counts(sums.length_sum, Count(counts.high[1], counts.low[1])),
    )


def reduce_episodes(sums: EpisodeSums, axes: Axes) -> EpisodeSums:
    """Combine the sums of all shards.

    Args:
        sums: the sums of one shard.
        axes: the axes that the shards are spread over.

    Returns:
        The sums, identical on every shard.
    """
    return EpisodeSums(
        number=count_over_shards(sums.number, axes),
        return_sum=axes.sum(sums.return_sum),
        return_min=jax.lax.pmin(sums.return_min, axes.names),
        return_max=jax.lax.pmax(sums.return_max, axes.names),
        length_sum=count_over_shards(sums.length_sum, axes),
    )
