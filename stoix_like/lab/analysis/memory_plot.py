"""Returns over the length of a task, for several recurrent cells: `stoix-like plot --kind memory`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stoix_like.errors import ConfigError
from stoix_like.lab.analysis import plots
from stoix_like.lab.analysis.groups import check_keys, read_evaluated
from stoix_like.lab.analysis.scores import count_diverged, lowest
from stoix_like.storage.differences import BUDGETS
from stoix_like.storage.recorded_runs import Member, differing_keys, flatten, samples, settings, task_settings

CELL = "network.actor_network.rnn_layer.cell_type"
_ARGUMENTS = "env.kwargs."
_MOST_KEYS = 3

Curves = dict[str, dict[float, np.ndarray]]
"""By label of a cell and length of the task, one return per seed."""


def returns_over_lengths(members: Iterable[Member], key: str, kind: str, by: Sequence[str] = ()) -> dict[str, Curves]:
    """Group the returns of members by environment, cell and length.

    Members that diverged count as the lowest return of all cells at their length; a note says so.

    Returns by environment and label, the returns `[S]` by length.
    """
    found, notes = _members_of_points(members, key, by), list[str]()
    curves: dict[str, Curves] = {}
    for (task, label, length), seeds in sorted(found.items()):
        point = f"{label} with {key}={length:g}"
        alone = [settings(member, ("env", *BUDGETS)) | task_settings(member.run) for member in seeds.values()]
        if differing := differing_keys(alone):
            raise ConfigError(
                f"the seeds of {point} differ in {', '.join(differing[:_MOST_KEYS])}: tell them apart by --by"
                f" {differing[0]}, or leave some out"
            )
        same = {place: own.values() for place, own in found.items() if place[::2] == (task, length)}
        scores = {place: np.asarray([member.score(kind) for member in own]) for place, own in same.items()}
        low, returns = lowest([*scores.values()]), scores[task, label, length]
        for member, value in zip(seeds.values(), returns, strict=True):
            if np.isnan(value) and (np.isnan(low) or not member.failure):
                raise ConfigError(f"{point} has no {kind} return in {member.run.directory}: leave it out")
        curves.setdefault(task, {}).setdefault(label, {})[length] = count_diverged(returns, low, point, notes)
    for note in notes:
        print(note, file=sys.stderr)
    return curves


def _members_of_points(
    members: Iterable[Member], key: str, by: Sequence[str]
) -> dict[tuple[str, str, float], dict[int, Member]]:
    """Return the members by seed, for each environment, label and length."""
    everyone = [
        (member, dict(flatten(member.run.config)) | {f"system.{k}": v for k, v in member.hyperparams.items()})
        for member in members
    ]
    several = len({member.run.system for member, _ in everyone}) > 1
    found: dict[tuple[str, str, float], dict[int, Member]] = {}
    for member, config in everyone:
        length = config.get(key)
        if not isinstance(length, (int, float)):
            raise ConfigError(f"--x {key}: {member.run.directory} has no such number: leave the run out")
        words = [member.run.system] * several + [str(config.get(CELL, "none"))]
        label = " ".join(words + [f"{name}={config.get(name)}" for name in by])
        seeds = found.setdefault((member.run.environment, label, float(length)), {})
        if member.seed in seeds:
            raise ConfigError(
                f"seed {member.seed} of {label} occurs twice with {key}={length}, in {seeds[member.seed].run.directory}"
                f" and {member.run.directory}: leave one of them out, or tell them apart by --by KEY"
            )
        seeds[member.seed] = member
    return found


def varied_length(members: Sequence[Member]) -> str:
    """Return the only number among the arguments of the environment that differs between members."""
    values: dict[str, set[Any]] = {}
    for member in members:
        for key, value in flatten(member.run.config):
            if key.startswith(_ARGUMENTS) and type(value) in (int, float):
                values.setdefault(key, set()).add(value)
    varied = sorted(key for key, found in values.items() if len(found) > 1)
    if len(varied) == 1:
        return varied[0]
    problem = f"{', '.join(varied)} differ" if varied else f"no number in {_ARGUMENTS}* differs between these runs"
    raise ConfigError(f"{problem}: name the length of the task by --x, such as --x {_ARGUMENTS}length")


def draw_memory(
    paths: str | Path | Iterable[str | Path], key: str | None = None, kind: str = "final", by: Sequence[str] = ()
) -> Figure:
    """Draw the return over the length of a task: a panel per environment, a line per cell, a band over seeds.

    `key`: dotted key of the length; None: the number in `env.kwargs` that differs.
    `kind`: `final` or `best`, the return of a seed.
    `by`: further dotted keys that tell lines apart.
    """
    runs = read_evaluated(paths)
    check_keys(by, runs, leaves=True)
    check_keys([] if key is None else [key], runs, "--x", leaves=True)
    members = list(itertools.chain.from_iterable(map(samples, runs)))
    key = key or varied_length(members)
    tasks = returns_over_lengths(members, key, kind, by)
    panels = [partial(plots.length_curves, curves, task, key, kind) for task, curves in tasks.items()]
    return plots.arrange(panels)
