"""Sums over finished episodes, so that only scalars leave the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.architectures.sums import add_counts, add_float, count_nothing, count_over_shards, digits, sum_nothing
from stoix_like.architectures.types import EpisodeSums
from stoix_like.base_types import Axes, EpisodeMetrics
from stoix_like.envs.wrappers.episodes import AGENT_RETURN

EPISODE_STATISTICS = (
    "episodes", "episode_return_mean", "episode_return_min", "episode_return_max", "episode_length_mean",
)  # fmt: skip
"""Names of the logged metrics of training episodes, besides their measures; metrics of systems have others."""


def no_episodes(measures: Iterable[str] = ()) -> EpisodeSums:
    """Return the sums over zero episodes."""
    infinity = jnp.full((), jnp.inf, jnp.float32)
    named = {name: sum_nothing() for name in measures}
    return EpisodeSums(count_nothing(), sum_nothing(), infinity, -infinity, count_nothing(), named)


def of_games(rows: EpisodeMetrics, num_agents: int) -> EpisodeMetrics:
    """Return the metrics of games from their agents' rows.

    `rows`: `[..., N * A]`, equal for the agents of a game but for its measures.
    Returns `[..., N]`. Measures are means over agents; the return of each agent is one more.
    """
    if num_agents == 1:
        return rows
    returns, lengths, finished = (leaf[..., ::num_agents] for leaf in rows[:3])
    by_agent = {name: value.reshape(*value.shape[:-1], -1, num_agents) for name, value in rows.measures.items()}
    measures = {name: jnp.mean(value, axis=-1) for name, value in by_agent.items()}
    if AGENT_RETURN in by_agent:
        measures |= {f"agent_{agent}_return": by_agent[AGENT_RETURN][..., agent] for agent in range(num_agents)}
    return EpisodeMetrics(returns, lengths, finished, measures)


def add_episodes(sums: EpisodeSums, episodes: EpisodeMetrics) -> EpisodeSums:
    """Add the episodes that finished in a rollout. `episodes`: `[T, N]` metrics of every step, from `of_games`."""
    finished, returns = episodes.finished, episodes.episode_return
    counts = digits(finished), digits(jnp.where(finished, episodes.episode_length, 0))
    steps = *counts, jnp.where(finished, returns, jnp.inf), jnp.where(finished, returns, -jnp.inf)
    none, before = no_episodes(), (sums.number, sums.length_sum, sums.return_min, sums.return_max)
    nothing = (none.number, none.length_sum, none.return_min, none.return_max)
    # One reduction, where each of them would be a kernel of its own.
    totals = jax.lax.reduce(steps, nothing, _join, range(finished.ndim))
    number, length_sum, return_min, return_max = _join(before, totals)
    return_sum = add_float(sums.return_sum, jnp.sum(jnp.where(finished, returns, 0.0)))
    measures = {
        name: add_float(sums.measures[name], jnp.sum(jnp.where(finished, value, 0.0)))
        for name, value in episodes.measures.items()
    }
    return EpisodeSums(number, return_sum, return_min, return_max, length_sum, measures)


def _join(a: Any, b: Any) -> Any:
    counts = (add_counts(x, y) for x, y in zip(a[:2], b[:2], strict=True))
    return *counts, jnp.minimum(a[2], b[2]), jnp.maximum(a[3], b[3])


def reduce_episodes(sums: EpisodeSums, axes: Axes) -> EpisodeSums:
    """Combine the sums of all shards."""
    return EpisodeSums(
        number=count_over_shards(sums.number, axes),
        return_sum=axes.sum(sums.return_sum),
        return_min=jax.lax.pmin(sums.return_min, axes.names),
        return_max=jax.lax.pmax(sums.return_max, axes.names),
        length_sum=count_over_shards(sums.length_sum, axes),
        measures=axes.sum(sums.measures),
    )
