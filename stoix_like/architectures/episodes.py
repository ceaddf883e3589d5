"""Sums over finished episodes, so that only scalars leave the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stoix_like.architectures.types import EpisodeSums
from stoix_like.base_types import Axes, EpisodeMetrics


def sum_episodes(episodes: EpisodeMetrics) -> EpisodeSums:
    """Sum the episode metrics of a rollout over the episodes that finished in it.

    Args:
        episodes: `[T, N]` metrics of every step.

    Returns:
        The sums, scalars.
    """
    finished = episodes.finished
    returns = episodes.episode_return
    return EpisodeSums(
        number=jnp.sum(finished, dtype=jnp.int32),
        return_sum=jnp.sum(jnp.where(finished, returns, 0.0)),
        return_min=jnp.min(jnp.where(finished, returns, jnp.inf)),
        return_max=jnp.max(jnp.where(finished, returns, -jnp.inf)),
        length_sum=jnp.sum(jnp.where(finished, episodes.episode_length, 0).astype(jnp.float32)),
    )


def no_episodes() -> EpisodeSums:
    """Return the sums over zero episodes."""
    zero, infinity = jnp.zeros(()), jnp.full((), jnp.inf, jnp.float32)
    return EpisodeSums(jnp.zeros((), jnp.int32), zero, infinity, -infinity, zero)


def add_episodes(a: EpisodeSums, b: EpisodeSums) -> EpisodeSums:
    """Combine the sums over two sets of episodes."""
    return EpisodeSums(
        number=a.number + b.number,
        return_sum=a.return_sum + b.return_sum,
        return_min=jnp.minimum(a.return_min, b.return_min),
        return_max=jnp.maximum(a.return_max, b.return_max),
        length_sum=a.length_sum + b.length_sum,
    )


def reduce_episodes(sums: EpisodeSums, axes: Axes) -> EpisodeSums:
    """Combine the sums of all shards.

    Args:
        sums: the sums of one shard.
        axes: the axes that the shards are spread over.

    Returns:
        The sums, identical on every shard.
    """
    number, return_sum, length_sum = axes.sum((sums.number, sums.return_sum, sums.length_sum))
    return EpisodeSums(
        number=number,
        return_sum=return_sum,
        return_min=jax.lax.pmin(sums.return_min, axes.names),
        return_max=jax.lax.pmax(sums.return_max, axes.names),
        length_sum=length_sum,
    )
