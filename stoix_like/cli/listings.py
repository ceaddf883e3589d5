"""Listings of the command line: systems, environments, networks and their parts, experiments and runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING

from stoix_like.composition import group_choices
from stoix_like.loggers.formats import columns, format_seconds, short_path

if TYPE_CHECKING:
    from stoix_like.storage.recorded_runs import Run

PROBES = "probe"
_WIDTH = 100


def lines(what: str, everything: bool = False) -> list[str]:
    """List the choices of one kind, each as an override, with indented lines about it."""
    listings: dict[str, Callable[[], list[str]]] = {
        "systems": lambda: _with_comments("system"),
        "envs": lambda: _envs(everything),
        "networks": lambda: [*_network_names(), "", *_with_comments("network")],
        "experiments": _experiments,
        "heads": lambda: _parts("head"),
        "torsos": lambda: _parts("torso"),
        "cells": lambda: _parts("cell"),
    }
    return listings[what]()


def _envs(everything: bool) -> list[str]:
    from stoix_like.envs.ids import scenario_override
    from stoix_like.envs.suites import list_scenarios

    choices = group_choices("env")
    if not everything:
        choices = [choice for choice in choices if choice.partition("/")[0] != PROBES]
    listed = [f"env={choice}" for choice in choices]
    for suite, scenarios in list_scenarios().items():
        if everything or suite != PROBES:
            listed += [scenario_override(suite, scenario) for scenario in scenarios]
    return listed


def _with_comments(group: str) -> list[str]:
    from stoix_like.run.set_up.suggestions import about

    return [line for name in group_choices(group) for line in (f"{group}={name}", f"  {about(group, name)}")]


def _network_names() -> list[str]:
    """Return the names of networks in a few lines, grouped by a name that says what they see."""
    kinds: dict[str, list[str]] = {}
    for name in group_choices("network"):
        kind, _, rest = name.partition("_")
        kinds.setdefault(kind, []).append(f"_{rest}" if rest else kind)
    width = max(map(len, kinds)) + 2
    wrap = TextWrapper(_WIDTH, subsequent_indent=" " * width, break_on_hyphens=False)
    return [line for kind, names in kinds.items() for line in wrap.wrap(f"{kind:<{width}}{'  '.join(names)}")]


def _parts(kind: str) -> list[str]:
    from stoix_like.networks.from_config.modules import choices
    from stoix_like.networks.requirements import STOCHASTIC_POLICY

    keys = {"torso": "actor_network.pre_torso._target_", "cell": "actor_network.rnn_layer.cell_type"}
    heads = _head_paths() if kind == "head" else {}
    listed = []
    for name, part in sorted(choices(kind).items()):
        about = (part.__doc__ or "").strip().partition("\n")[0]
        # Functions build the policy head of an action space.
        outputs = getattr(part, "outputs", "") if isinstance(part, type) else STOCHASTIC_POLICY
        key = keys.get(kind) or heads.get(outputs)
        listed += [f"network.{key}={name}", f"  {about}"] if key else []
    return listed


def _head_paths() -> dict[str, str]:
    """Return where the systems of this package take heads, by what these compute."""
    from stoix_like.run.set_up.suggestions import schemas

    taken = set[tuple[str, str]]()
    for schema in schemas().values():
        for path, needed in getattr(schema, "network_heads", {}).items():
            taken |= {(path, outputs) for outputs in (needed.outputs, *needed.alternatives)}
    # Where several networks take such heads, the last of these.
    paths = ("q_network.critic_head", "critic_network.critic_head", "actor_network.action_head")
    return {outputs: f"{path}._target_" for path in paths for taker, outputs in taken if taker == path}


def _experiments() -> list[str]:
    from stoix_like.run.set_up.suggestions import experiments

    return [line for each in experiments() for line in (f"+experiment={each.name}", f"  {each.about}")]


def run_lines(paths: Sequence[Path]) -> list[str]:
    """List runs, the newest last, with status, return, budget, time, and the settings that tell them apart."""
    from stoix_like.storage.differences import tell_apart
    from stoix_like.storage.recorded_runs import read_runs, started, task_names

    found, problems = read_runs(paths)
    runs = sorted(found, key=started)
    tasks = task_names(runs)
    head = ("started", "status", "system", "environment", "seeds", "mean return", "steps", "budget", "time")
    rows = [(*head, "directory", "settings"), *map(_run_row, runs, tasks, tell_apart(runs, tasks))]
    told = any(row[-1] for row in rows[1:])
    return [*columns(rows if told else [row[:-1] for row in rows]), *(f"unreadable: {problem}" for problem in problems)]


def _run_row(run: Run, task: str, settings: str) -> tuple[str, ...]:
    from stoix_like.storage.recorded_runs import budget, members, started

    last, own = run.last, members(run)
    varied = ",".join(sorted({name for member in own for name in member.hyperparams}))
    seconds = run.summary.get("wall_seconds", last.get("wall_seconds", 0.0)) or 0.0
    return (
        f"{started(run):%Y-%m-%d %H:%M}",
        run.status,
        run.system,
        task,
        _seeds([member.seed for member in own]),
        _mean([member.score("final") for member in own]),
        f"{last.get('env_steps', 0):,}",
        f"{budget(run):,}",
        format_seconds(seconds),
        short_path(run.directory),
        " ".join(filter(None, (settings, varied and f"varied={varied}"))),
    )


def _mean(returns: Sequence[float]) -> str:
    """Return the interquartile mean of the returns, as the console does; of fewer than four, it is the mean.

    A member without a return counts as the lowest of the others, see `run.records.records.without_frozen`.
    """
    known = [value for value in returns if not math.isnan(value)]
    if not known:
        return "–"
    cut = len(returns) // 4
    ranked = sorted([*known, *[min(known)] * (len(returns) - len(known))])
    kept = ranked[cut : len(ranked) - cut]
    return f"{sum(kept) / len(kept):.4g}{' (IQM)' if cut else ''}"


def _seeds(seeds: Sequence[int]) -> str:
    """Return the seeds of the members, and how many settings share them."""
    if len(seeds) == 1:
        return str(seeds[0])
    distinct = sorted(set(seeds))
    shared = f" × {len(seeds) // len(distinct)}" if len(distinct) < len(seeds) else ""
    return (f"{distinct[0]}–{distinct[-1]}" if len(distinct) > 1 else str(distinct[0])) + shared
