"""Scores of algorithms on tasks, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoix_like.analysis.groups import AlgorithmRuns
from stoix_like.errors import ConfigError


def raw_scores(
    algorithms: Sequence[AlgorithmRuns], tasks: Sequence[str], kind: str, notes: list[str]
) -> dict[str, list[np.ndarray]]:
    """Return the returns of the members of each algorithm on each task.

    Args:
        algorithms: the algorithms.
        tasks: environments that are common to all of them.
        kind: `final` or `best`.
        notes: receives a sentence where members without a return count as the lowest one of their algorithm, and where
            best policies are untrained.

    Returns:
        By label, one array `[S]` per task.

    Raises:
        ConfigError: no member of an algorithm has a return.
    """
    return {algorithm.label: [_scores(algorithm, task, kind, notes) for task in tasks] for algorithm in algorithms}


def _scores(algorithm: AlgorithmRuns, task: str, kind: str, notes: list[str]) -> np.ndarray:
    scores = algorithm.scores(task, kind)
    missing = np.isnan(scores)
    if missing.all():
        hint = "train with arch.absolute_metric=true, or compare final returns" if kind == "best" else "leave it out"
        raise ConfigError(f"{algorithm.label} on {task}: no member has a {kind} return: {hint}")
    if missing.any():
        notes.append(f"{algorithm.label} on {task}: {missing.sum()} member(s) without a return count as the lowest one")
    return np.where(missing, np.nanmin(scores), scores)


def score_tables(
    scores: Mapping[str, list[np.ndarray]], tasks: Sequence[str], notes: list[str]
) -> dict[str, np.ndarray]:
    """Return scores as tables; those of several tasks are scaled to [0, 1] by the extremes of each task.

    Args:
        scores: from `raw_scores`.
        tasks: the environments.
        notes: receives a sentence where scores are scaled or seeds are left out.

    Returns:
        By label, `[S, K]` scores of S seeds on K tasks; S is the least number of seeds on a task.
    """
    columns: Mapping[str, list[np.ndarray]] = scores
    if len(tasks) > 1:
        every = [np.concatenate([found[index] for found in scores.values()]) for index in range(len(tasks))]
        columns = {
            label: [_scale(values, found) for values, found in zip(own, every, strict=True)]
            for label, own in scores.items()
        }
        notes.append("aggregates over several tasks: returns scaled by the lowest and the highest of each task")
    tables = {}
    for label, own in columns.items():
        sizes = sorted(map(len, own))
        if sizes[0] < sizes[-1]:
            notes.append(f"{label}: {sizes[0]} to {sizes[-1]} seeds per task, aggregates use the first {sizes[0]}")
        tables[label] = np.stack([values[: sizes[0]] for values in own], axis=1)
    return tables


def _scale(values: np.ndarray, every: np.ndarray) -> np.ndarray:
    low, high = np.min(every), np.max(every)
    return (values - low) / (high - low) if high > low else np.ones_like(values)
