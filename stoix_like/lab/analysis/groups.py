"""Members of runs, grouped into algorithms: those that differ only in their seeds and environments."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoix_like.errors import ConfigError, nearest
from stoix_like.lab.analysis.selection import one_stage
from stoix_like.storage.differences import BUDGETS, names_of_keys, words_of
from stoix_like.storage.recorded_runs import (
    TASK,
    Member,
    Run,
    differing_keys,
    flatten,
    identity,
    is_below,
    read_runs,
    samples,
    settings,
    task_names,
)

SCORES = ("final", "best")
# Keys that are no settings, in turn until no seed occurs twice: fewer and fewer budgets and wrappers of environments.
_HIDDEN = (("env", *BUDGETS), ("env", *BUDGETS[1:]), ("env",), TASK)


class AlgorithmRuns(NamedTuple):
    """A system with its settings, and the members that were trained with it."""

    label: str  # a short name, unique among the algorithms that are compared
    settings: dict[str, Any]  # the settings in which the algorithms differ, by dotted key
    tasks: dict[str, tuple[Member, ...]]  # members by task, an environment with its arguments, each seed once

    @property
    def members(self) -> tuple[Member, ...]:
        """All members."""
        return tuple(itertools.chain(*self.tasks.values()))

    def scores(self, task: str, kind: str = "final") -> np.ndarray:
        """Return the mean episode returns `[S]` of the members on a task; NaN where one diverged.

        `kind`: `final` for the last evaluation, `best` for the best policy's.
        """
        return np.asarray([member.score(kind) for member in self.tasks[task]], np.float64)


def read(paths: str | Path | Iterable[str | Path], by: Sequence[str] = ()) -> list[AlgorithmRuns]:
    """Read runs and group their members by configuration.

    Args:
        paths: run directories, or directories that contain runs; one or several.
        by: dotted keys of the configuration, such as `system.name`; only their values make an algorithm; by default
            everything but the environment, seeds, checkpoints and loggers does, and budgets only where a seed was
            trained with several of them.

    Returns:
        The algorithms in the order of their first runs; runs that cannot be read are reported and left out.

    Raises:
        ConfigError: a path holds no run with an evaluation that can be read, or a seed occurs twice.
    """
    runs = read_evaluated(paths)
    check_keys(by, runs)
    return group(itertools.chain.from_iterable(map(samples, runs)), by)


def read_evaluated(paths: str | Path | Iterable[str | Path]) -> list[Run]:
    """Read runs that have an evaluation, of one stage of each search."""
    found, problems = read_runs(paths)
    runs = one_stage([run for run in found if run.last])
    problems += [f"no evaluation yet in {run.directory}" for run in found if not run.last]
    if not runs:
        raise ConfigError("; ".join(problems))
    for problem in problems:
        print(f"leaving out a run: {problem}", file=sys.stderr)
    return runs


def group(members: Iterable[Member], by: Sequence[str] = ()) -> list[AlgorithmRuns]:
    """Group members by configuration."""
    everyone = list(members)
    on_tasks = task_names([member.run for member in everyone])
    settings = _distinct_settings(everyone, on_tasks, by)
    found: dict[str, tuple[dict[str, Any], dict[str, dict[int, Member]]]] = {}
    for chosen, task, member in zip(settings, on_tasks, everyone, strict=True):
        _, tasks = found.setdefault(identity(chosen), (chosen, {}))
        seeds = tasks.setdefault(task, {})
        if member.seed in seeds:
            raise ConfigError(_twice(seeds[member.seed], member, by))
        seeds[member.seed] = member
    differing = differing_keys([chosen for chosen, _ in found.values()])
    labels = _labels(
        [{key: chosen.get(key) for key in differing} for chosen, _ in found.values()],
        [tasks for _, tasks in found.values()],
    )
    algorithms = []
    for label, (chosen, tasks) in zip(labels, found.values(), strict=True):
        own = {key: chosen[key] for key in differing if key in chosen}
        by_task = {task: tuple(seeds[seed] for seed in sorted(seeds)) for task, seeds in tasks.items()}
        algorithms.append(AlgorithmRuns(label, own, by_task))
    return algorithms


def _twice(first: Member, second: Member, by: Sequence[str]) -> str:
    """Return why two members of an algorithm may not have the same seed, and what to do."""
    advice = "add a key that tells them apart to --by, or " if by else ""
    same = f"values of {' and '.join(by)}" if by else "settings"
    problem = f"seed {first.seed} occurs twice with the same {same}, in {first.run.directory} and"
    if first.run.directory != second.run.directory:
        return f"{problem} {second.run.directory}: a seed counts once, {advice}leave one out"
    differing = [name for name, value in first.hyperparams.items() if second.hyperparams[name] != value]
    if not differing:
        return f"{problem} as members {first.place} and {second.place}: a seed counts once, give each value once"
    keys = " ".join(f"--by system.{name}" for name in differing)
    return f"seed {first.seed} occurs in several hyperparameter settings of {first.run.directory}: add {keys}"


def runs_of(algorithms: Iterable[AlgorithmRuns]) -> list[Run]:
    """Return the runs of algorithms, each once."""
    return list({member.run.directory: member.run for one in algorithms for member in one.members}.values())


def common_tasks(algorithms: Sequence[AlgorithmRuns]) -> list[str]:
    """Return the environments that every algorithm was trained on."""
    tasks = [task for task in algorithms[0].tasks if all(task in algorithm.tasks for algorithm in algorithms)]
    if not tasks:
        listed = "; ".join(f"{algorithm.label} on {', '.join(algorithm.tasks)}" for algorithm in algorithms)
        problem = f"no environment is common to all algorithms ({listed})"
        raise ConfigError(f"{problem}: compare runs of the same environment")
    labels = [algorithm.label for algorithm in algorithms]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ConfigError(
            f"two algorithms are called {twice[0]}: read their runs together, or give one of them another label, by"
            " algorithm._replace(label=…)"
        )
    return tasks


def are_paired(first: AlgorithmRuns, second: AlgorithmRuns, task: str) -> bool:
    """Return whether the members of both are of the same populations and have the same seeds there."""
    runs = [[(member.run.directory, member.seed) for member in one.tasks[task]] for one in (first, second)]
    return runs[0] == runs[1]


def sections(algorithms: Sequence[AlgorithmRuns]) -> list[list[AlgorithmRuns]]:
    """Split algorithms into those that were trained on the same environments."""
    found: dict[tuple[int, ...], list[str]] = {}
    for task in dict.fromkeys(task for algorithm in algorithms for task in algorithm.tasks):
        owners = tuple(index for index, algorithm in enumerate(algorithms) if task in algorithm.tasks)
        found.setdefault(owners, []).append(task)
    return [
        [algorithms[index]._replace(tasks={task: algorithms[index].tasks[task] for task in tasks}) for index in owners]
        for owners, tasks in found.items()
    ]


def _distinct_settings(members: Sequence[Member], tasks: Sequence[str], by: Sequence[str]) -> list[dict[str, Any]]:
    """Return settings of members: of the budgets and wrappers, those that tell the same seeds of a system apart."""
    systems: dict[str, list[int]] = {}
    for place, member in enumerate(members):
        systems.setdefault(member.run.system, []).append(place)
    found: dict[int, dict[str, Any]] = {}
    for places in systems.values():
        for hidden in _HIDDEN:
            found |= {place: _settings(members[place], by, hidden) for place in places}
            if len({(identity(found[place]), tasks[place], members[place].seed) for place in places}) == len(places):
                break
    return [found[place] for place in range(len(members))]


def _settings(member: Member, by: Sequence[str], without: Sequence[str]) -> dict[str, Any]:
    if not by:
        return settings(member, without)
    chosen = settings(member)
    return {key: value for key, value in chosen.items() if is_below(key, by)}


def check_keys(keys: Sequence[str], runs: Sequence[Run], option: str = "--by", leaves: bool = False) -> None:
    """Refuse keys that no configuration of the runs has; with `leaves`, also groups of keys."""
    known = {key for run in runs for key, _ in flatten(run.config)}
    if not leaves:
        known |= {key.rsplit(".", depth)[0] for key in known for depth in range(1, key.count(".") + 1)}
    for key in keys:
        if key not in known:
            raise ConfigError(f"{option} {key} is not a key of these runs: {nearest(key, known)}")


def _labels(differences: Sequence[dict[str, Any]], found: Sequence[dict[str, dict[int, Member]]]) -> list[str]:
    """Return labels, unique on every environment: the system, and in what it differs from its other algorithms there.

    A few keys are named, and as many more as tell all of them apart.
    """
    names = names_of_keys(differences)
    systems = [next(iter(next(iter(tasks.values())).values())).run.system for tasks in found]
    labels = []
    for system, own, tasks in zip(systems, differences, found, strict=True):
        rivals = [
            other
            for name, other, others in zip(systems, differences, found, strict=True)
            if name == system and other is not own and tasks.keys() & others.keys()
        ]
        labels.append(" ".join([system, *words_of(own, rivals, names)]))
    # Several algorithms differ in nothing that is short enough to be told, or share no environment.
    named = list(zip(labels, found, strict=True))
    return [
        f"{label} #{labels[: place + 1].count(label)}"
        if any(label == other and tasks.keys() & others.keys() for other, others in named[:place] + named[place + 1 :])
        else label
        for place, (label, tasks) in enumerate(named)
    ]
