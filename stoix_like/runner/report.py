"""From what comes off the device to the numbers that are logged and kept.

Without a population a number is a float; with one it is a list of one float per member.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from stoix_like.loggers import plain
from stoix_like.runner.anakin import EpisodeSums, Window
from stoix_like.runner.evaluator import Episodes
from stoix_like.runner.population import Population

PACKAGES = ("stoix_like", "jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "hydra-core")
NUM_RESAMPLES = 2000


def evaluation(prefix: str, episodes: Episodes, count: int) -> dict[str, Any]:
    """Statistics of the first `count` episodes; there may be more, since each device plays as many.

    Args:
        prefix: what the names begin with, `eval`.
        episodes: returns `[E]` or `[P, E]` and lengths in steps, on the host.
        count: how many were asked for.

    Returns:
        `prefix/episode_return_mean|std|min|max` and `prefix/episode_length_mean`.
    """
    returns, lengths = np.float64(episodes.returns[..., :count]), np.float64(episodes.lengths[..., :count])
    statistics = {
        "episode_return_mean": returns.mean(-1),
        "episode_return_std": returns.std(-1),
        "episode_return_min": returns.min(-1),
        "episode_return_max": returns.max(-1),
        "episode_length_mean": lengths.mean(-1),
    }
    return {f"{prefix}/{name}": values.tolist() for name, values in statistics.items()}


def training(window: Window) -> dict[str, Any]:
    """What a window of updates reports.

    Args:
        window: on the host.

    Returns:
        The system's metrics as `train/…`, and statistics of the episodes: None where none finished.
    """
    return {
        f"train/{name}": plain(np.asarray(values, np.float64))
        for name, values in (dict(window.metrics) | _episodes(window.episodes)).items()
    }


def _episodes(sums: EpisodeSums) -> dict[str, Any]:
    number = np.asarray(sums.number)
    some = number > 0
    values = {
        "episode_return_mean": sums.return_sum / np.maximum(number, 1),
        "episode_return_min": sums.return_min,
        "episode_return_max": sums.return_max,
        "episode_length_mean": sums.length_sum / np.maximum(number, 1),
    }
    return {"episodes": number} | {name: np.where(some, value, np.nan) for name, value in values.items()}


def aggregate(scores: Sequence[float], strata: Sequence[int], seed: int = 0) -> dict[str, float]:
    """The interquartile mean of a population, with a stratified bootstrap interval (Agarwal et al. 2021, section 4).

    Args:
        scores: `[P]`, one score per member.
        strata: `[P]`, members are resampled among those of their own stratum. Where every stratum is a single member,
            nothing would vary, and all members are one stratum.
        seed: of the resampling.

    Returns:
        `iqm`, `ci_low` and `ci_high`, the ends of the 95 % percentile interval.
    """
    values, groups = np.asarray(scores, np.float64), np.asarray(strata)
    if len(set(groups.tolist())) == len(groups):
        groups = np.zeros_like(groups)
    samples = [values[groups == group] for group in np.unique(groups)]

    def interquartile_mean(*resampled: np.ndarray, axis: int = -1) -> np.ndarray:
        return stats.trim_mean(np.concatenate(resampled, axis=axis), 0.25, axis=axis)

    rng = np.random.default_rng(seed)
    resampled = [sample[rng.integers(len(sample), size=(NUM_RESAMPLES, len(sample)))] for sample in samples]
    low, high = np.percentile(interquartile_mean(*resampled), [2.5, 97.5])
    return {"iqm": float(interquartile_mean(*samples)), "ci_low": float(low), "ci_high": float(high)}


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that a result depends on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def score(record: Mapping[str, Any]) -> float:
    """A run in one number: the mean return of an evaluation, or of a population the interquartile mean.

    Args:
        record: of the last evaluation.

    Returns:
        The number.
    """
    return record.get("eval/episode_return_iqm", record["eval/episode_return_mean"])


def members(
    population: Population, last: Mapping[str, Any], absolute: Mapping[str, Any], failures: Mapping[int, str]
) -> list[dict[str, Any]]:
    """One record per member: its seed, its hyperparameters, and what it came to.

    Args:
        population: the members.
        last: the record of the last evaluation.
        absolute: what holds the absolute metric, if anything does.
        failures: by member, what went bad.

    Returns:
        The records.
    """
    alone = population.size == 1
    numbers = {name: value for name, value in last.items() if name.startswith("eval/")}
    numbers |= {name: value for name, value in absolute.items() if name.startswith("absolute/")}
    return [
        {
            "member": member,
            "seed": population.seeds[member],
            **population.of(member),
            **{
                name: value[member] if isinstance(value, list) else value
                for name, value in numbers.items()
                if isinstance(value, list) or alone
            },
            "failure": failures.get(member),
        }
        for member in range(population.size)
    ]


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all.

    Args:
        path: the file; replaced if it is there.
        values: what JSON can hold; NaN and infinities become null.
    """
    write_text(path, json.dumps(plain(values), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Args:
        path: the file; replaced if it is there.
        text: what it is to hold.
    """
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text)
    scratch.replace(path)
