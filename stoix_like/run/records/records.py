"""Records: the metrics of a run as plain Python values, for loggers and the summary.

Without a population a metric is a float; with one it is a list of one float per member.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from stoix_like.architectures.evaluator import Episodes
from stoix_like.architectures.sums import FloatSum
from stoix_like.architectures.types import EpisodeSums, IntervalMetrics, RunningSums
from stoix_like.run.population.members import Population
from stoix_like.storage.files import plain
from stoix_like.storage.returns import at_members

NUM_RESAMPLES = 2000
_MAX_RESAMPLED = 2**24  # returns at a time


def episode_statistics(returns: Any, lengths: Any) -> dict[str, Any]:
    """Compute statistics of episodes `[..., E]`: undiscounted returns, and lengths in steps; Python values `[...]`."""
    returns, lengths = np.float64(returns), np.float64(lengths)
    named = {"mean": returns.mean(-1), "std": returns.std(-1), "min": returns.min(-1), "max": returns.max(-1)}
    statistics = {f"episode_return_{name}": values.tolist() for name, values in named.items()}
    return {**statistics, "episode_length_mean": lengths.mean(-1).tolist()}


def mean_interval(values: np.ndarray) -> tuple[float | None, float | None]:
    """Compute the 95 % bootstrap interval of the mean; None for a single value."""
    if len(values) < 2:
        return None, None
    rng = np.random.default_rng(0)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def evaluation(prefix: str, episodes: Episodes, count: int) -> dict[str, Any]:
    """Compute statistics of the first `count` of episodes `[E]` or `[P, E]`, as many from every device, on the host."""
    statistics = episode_statistics(episodes.returns[..., :count], episodes.lengths[..., :count])
    for name, values in episodes.measures.items():
        statistics[name] = np.asarray(values, np.float64)[..., :count].mean(-1).tolist()
    return {f"{prefix}/{name}": values for name, values in statistics.items()}


def training(interval: IntervalMetrics) -> dict[str, Any]:
    """Return the metrics of an interval of updates."""
    groups = {
        "train": dict(interval.metrics) | _episodes(interval.episodes),
        "diagnostics": dict(interval.diagnostics or {}),
    }
    return {
        f"{group}/{name}": plain(np.asarray(values, np.float64))
        for group, metrics in groups.items()
        for name, values in metrics.items()
    }


def running_sums(blocks: RunningSums) -> dict[str, np.ndarray]:
    """Return the sums of an interval after each block by name, `[max_blocks]` or `[P, max_blocks]`."""
    episodes = blocks.episodes
    return {
        "updates": np.asarray(blocks.healthy_updates, np.float64),
        "episodes": np.asarray(episodes.number.value, np.float64),
        "returns": _total(episodes.return_sum),
        "lengths": np.asarray(episodes.length_sum.value, np.float64),
        **{f"train/{name}": _total(sum_) for name, sum_ in blocks.metrics.items()},
    }


def _total(sum_: FloatSum) -> np.ndarray:
    return np.asarray(sum_.total, np.float64) + np.asarray(sum_.low, np.float64)


def blocks(sums: Mapping[str, np.ndarray], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of blocks of updates.

    `sums`: the sums of the interval after each block, `[B]` or `[P, B]`.
    `before`: those before the first block, `[]` or `[P]`; empty at the start of the interval.
    Returns for each block, means over its updates and the episodes that finished in it, as `updates/…`.
    """
    own = {}
    for name, values in sums.items():
        start = np.asarray(before.get(name, np.zeros(values.shape[:-1])), np.float64)
        own[name] = np.diff(values, prepend=start[..., None])
    with np.errstate(divide="ignore", invalid="ignore"):
        means = {name: value / own["updates"] for name, value in own.items() if name.startswith("train/")}
        means["episode_return_mean"] = own["returns"] / own["episodes"]
        means["episode_length_mean"] = own["lengths"] / own["episodes"]
    by_block = {
        f"updates/{name.removeprefix('train/')}": plain(np.moveaxis(values, -1, 0))
        for name, values in (means | {"episodes": own["episodes"]}).items()
    }
    return [dict(zip(by_block, values, strict=True)) for values in zip(*by_block.values(), strict=True)]


def _episodes(sums: EpisodeSums) -> dict[str, Any]:
    number = sums.number.value
    some = number > 0
    values = {
        "episode_return_mean": sums.return_sum.total / np.maximum(number, 1),
        "episode_return_min": sums.return_min,
        "episode_return_max": sums.return_max,
        "episode_length_mean": sums.length_sum.value / np.maximum(number, 1),
    }
    for name, sum_ in sums.measures.items():
        values[name] = _total(sum_) / np.maximum(number, 1)
    return {"episodes": number} | {name: np.where(some, value, np.nan) for name, value in values.items()}


def without_frozen(scores: np.ndarray, failures: Collection[int]) -> np.ndarray:
    """Return the scores of members in an evaluation; those that diverged have the lowest of the others.

    The return of the policy that a member had before it diverged is no result.

    `scores`: `[P]`.
    Returns `[P]`; NaN at those that diverged if no other one has a score.
    """
    frozen = at_members(failures, scores.shape)
    healthy = scores[~frozen & np.isfinite(scores)]
    return np.where(frozen, healthy.min() if healthy.size else np.nan, scores)


def aggregate(scores: Sequence[float], strata: Sequence[int]) -> dict[str, float]:
    """Compute the interquartile mean of a population, with a stratified bootstrap interval.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.

    `scores`: `[P]`, one score per member; NaN counts as the lowest.
    `strata`: `[P]`, the stratum of each member, within which it is resampled.
    """
    from scipy import stats  # takes most of a second, which runs without a population save

    values, groups = np.asarray(scores, np.float64), np.asarray(strata)
    values = np.where(np.isnan(values), -np.inf, values)
    if len(set(groups.tolist())) == len(groups):
        groups = np.zeros_like(groups)
    samples = [values[groups == group] for group in np.unique(groups)]

    def interquartile_mean(*resampled: np.ndarray, axis: int = -1) -> np.ndarray:
        return stats.trim_mean(np.concatenate(resampled, axis=axis), 0.25, axis=axis)

    rng = np.random.default_rng(0)
    # Of many members, few resamples at a time.
    rows = max(_MAX_RESAMPLED // len(values), 1)
    counts = [min(rows, NUM_RESAMPLES - first) for first in range(0, NUM_RESAMPLES, rows)]
    with np.errstate(invalid="ignore"):
        means = [
            interquartile_mean(*(sample[rng.integers(len(sample), size=(count, len(sample)))] for sample in samples))
            for count in counts
        ]
        low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    found = {"iqm": float(interquartile_mean(*samples)), "ci_low": float(low), "ci_high": float(high)}
    # A member without a return that is not trimmed.
    return {name: math.nan if math.isinf(value) else value for name, value in found.items()}


def points(population: Population, members: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one record per hyperparameter setting: its members, and the statistics of their returns."""
    if not population.hyperparams:
        return []
    found = []
    for _, group in itertools.groupby(members, lambda member: population.strata[member["member"]]):
        own = list(group)
        point = {
            **population.of(own[0]["member"]),
            "members": [member["member"] for member in own],
            "seeds": [member["seed"] for member in own],
        }
        for prefix in ("eval", "absolute"):
            name = f"{prefix}/episode_return"
            if f"{name}_mean" in own[0]:
                # A setting is not made better by members that diverge.
                frozen = [prefix == "eval" and member["failure"] is not None for member in own]
                returns = [math.nan if no else member[f"{name}_mean"] for no, member in zip(frozen, own, strict=True)]
                point |= {f"{name}_{key}": value for key, value in _point_statistics(returns).items()}
        found.append(point)
    return found


def _point_statistics(returns: Sequence[float]) -> dict[str, float | None]:
    if len(returns) == 1:
        return {"mean": returns[0], "iqm": returns[0], "ci_low": None, "ci_high": None}
    return {"mean": float(np.mean(returns)), **aggregate(returns, (0,) * len(returns))}


def best_point(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the hyperparameter setting with the highest interquartile mean in the last evaluation, if there is any."""
    name = "eval/episode_return_iqm"
    return max(points, key=lambda point: -math.inf if math.isnan(point[name]) else point[name], default=None)


def score(record: Mapping[str, Any]) -> float:
    """Return the score of a run: the mean return of an evaluation, or the interquartile mean over a population."""
    return record.get("eval/episode_return_iqm", record["eval/episode_return_mean"])


def members(
    population: Population, last: Mapping[str, Any], absolute: Mapping[str, Any], failures: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Return one record per member: its seed, its hyperparameters and its results."""
    alone = population.num_members == 1
    metrics = {name: value for name, value in last.items() if name.startswith("eval/")}
    metrics |= {name: value for name, value in absolute.items() if name.startswith("absolute/")}
    return [
        {
            "member": member,
            "seed": population.seeds[member],
            **population.of(member),
            **{
                name: value[member] if isinstance(value, list) else value
                for name, value in metrics.items()
                if isinstance(value, list) or alone
            },
            "failure": failures.get(member),
        }
        for member in range(population.num_members)
    ]
