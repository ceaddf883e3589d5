"""Scores of algorithms on tasks, as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stoix_like.arch_config import ARCHITECTURES, step_unit
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.groups import AlgorithmRuns
from stoix_like.storage.recorded_runs import Member, Run, evolves
from stoix_like.storage.recorded_runs import members as members_of

_KEEP_LAST = [name for name, arch in ARCHITECTURES.items() if arch.keeps_last]


def common_unit(members: Iterable[Member]) -> str:
    """Return what the budgets of members count: `env steps`, `gradient steps`, or `steps` where they differ."""
    units = {step_unit(member.run.config) for member in members}
    return units.pop() if len(units) == 1 else "steps"


def keeps_last(run: Run) -> bool:
    """Return whether the absolute metric of a run measures its last parameters."""
    return run.config["arch"].get("architecture_name") in _KEEP_LAST


def with_scores(algorithms: Sequence[AlgorithmRuns], kind: str, notes: list[str]) -> list[AlgorithmRuns]:
    """Leave out members without a return that did not diverge: their run is incomplete, or measures none."""
    found = []
    for algorithm in algorithms:
        tasks = dict(algorithm.tasks)
        for task, members in tasks.items():
            kept = tuple(member for member in members if member.failure or not math.isnan(member.score(kind)))
            if kept and len(kept) < len(members):
                tasks[task] = kept
                missing = len(members) - len(kept)
                notes.append(f"{algorithm.label} on {task}: {missing} member(s) without a {kind} return are left out")
        found.append(algorithm._replace(tasks=tasks))
    return found


def raw_scores(
    algorithms: Sequence[AlgorithmRuns], tasks: Sequence[str], kind: str, notes: list[str]
) -> dict[str, list[np.ndarray]]:
    """Return the returns of the members of each algorithm on each task. Returns by label, one array `[S]` per task."""
    notes += [note for algorithm in algorithms for task in tasks if (note := _chosen_members(algorithm, task, kind))]
    least = [lowest([algorithm.scores(task, kind) for algorithm in algorithms]) for task in tasks]
    return {
        algorithm.label: [_scores(algorithm, task, kind, low, notes) for task, low in zip(tasks, least, strict=True)]
        for algorithm in algorithms
    }


def _chosen_members(algorithm: AlgorithmRuns, task: str, kind: str) -> str | None:
    """Return of how many members the scores are the best, and the steps of all of them."""
    chosen = [member for member in algorithm.tasks[task] if evolves(member.run)]
    if not chosen:
        return None
    number = " or ".join(dict.fromkeys(f"{len(members_of(member.run))} members" for member in chosen))
    steps = [len(members_of(member.run)) * member.value(member.run.last, "env_steps") for member in chosen]
    spent = "–".join(f"{step:,.0f}" for step in dict.fromkeys((min(steps), max(steps))))
    each = [{one.seed for one in members_of(member.run)} for member in chosen]
    shared = ""
    if len(set().union(*each)) < sum(map(len, each)):
        apart = max(map(len, each))
        shared = f", with seeds in common, so they are not independent (use values of arch.seed at least {apart} apart)"
    by = "" if kind == "best" else ", by these episodes"
    fresh = "" if kind == "best" else "; `stoix-like compare --score best` compares fresh episodes"
    return (
        f"{algorithm.label} on {task}: each score is that of the best of {number}{by}, after {spent}"
        f" {common_unit(chosen)} of all together{shared}{fresh}"
    )


def lowest(scores: Sequence[np.ndarray]) -> float:
    """Return the lowest of all returns that are finite; NaN if none is."""
    values = np.concatenate(scores)
    return float(np.nanmin(values)) if np.isfinite(values).any() else math.nan


def _scores(algorithm: AlgorithmRuns, task: str, kind: str, low: float, notes: list[str]) -> np.ndarray:
    scores = algorithm.scores(task, kind)
    if np.isnan(scores).all() and (math.isnan(low) or not all(member.failure for member in algorithm.tasks[task])):
        hint = "train with arch.absolute_metric=true, or compare final returns" if kind == "best" else "leave it out"
        raise ConfigError(f"{algorithm.label} on {task}: no member has a {kind} return: {hint}")
    return count_diverged(scores, low, f"{algorithm.label} on {task}", notes)


def count_diverged(scores: np.ndarray, low: float, name: str, notes: list[str]) -> np.ndarray:
    """Return scores in which members that diverged count as the lowest return of all algorithms.

    With the lowest of its own, an algorithm would be the better the more of its members diverge.

    `scores`: `[S]`; NaN where a member diverged.
    """
    if number := int(np.isnan(scores).sum()):
        notes.append(f"{name}: {number} of {len(scores)} diverged, counted as the lowest return of all")
    return np.where(np.isnan(scores), low, scores)


def score_tables(
    scores: Mapping[str, list[np.ndarray]], tasks: Sequence[str], notes: list[str]
) -> dict[str, np.ndarray]:
    """Return scores as tables; with several tasks, scaled to [0, 1] by the extremes of each task.

    Returns by label, `[S, K]` scores of S seeds on K tasks; S is the least number of seeds on a task.
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
        size = common_size(label, own, notes)
        tables[label] = np.stack([values[:size] for values in own], axis=1)
    return tables


def common_size(label: str, columns: Sequence[np.ndarray], notes: list[str]) -> int:
    """Return the least number of seeds on a task. `columns`: `[S, ...]` values of the seeds on each task."""
    sizes = sorted(map(len, columns))
    if sizes[0] < sizes[-1]:
        notes.append(f"{label}: {sizes[0]} to {sizes[-1]} seeds per task, aggregates use the first {sizes[0]}")
    return sizes[0]


def _scale(values: np.ndarray, every: np.ndarray) -> np.ndarray:
    low, high = np.min(every), np.max(every)
    return (values - low) / (high - low) if high > low else np.ones_like(values)
