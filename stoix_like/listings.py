"""Listings of the command line: systems, environments, networks, experiments and runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from stoix_like.config import config_dir, group_choices

if TYPE_CHECKING:
    from stoix_like.recorded_runs import Run

PROBES = "probe"


class Experiment(NamedTuple):
    """An experiment: tuned settings of a system for an environment.

    Attributes:
        name: name of the file.
        about: the comment at its head: what it trains, and the return that it reached.
        system: choice of the system.
        env: choice of the environment.
        keys: dotted keys that it sets.
    """

    name: str
    about: str
    system: str
    env: str
    keys: frozenset[str]


def lines(what: str, everything: bool = False) -> list[str]:
    """List the choices of one kind, each as an override, with indented lines about it.

    Args:
        what: `systems`, `envs`, `networks` or `experiments`.
        everything: of the environments, also list the probes.

    Returns:
        Lines of text.
    """
    listings: dict[str, Callable[[], list[str]]] = {
        "systems": lambda: [f"system={choice}" for choice in group_choices("system")],
        "envs": lambda: _envs(everything),
        "networks": _networks,
        "experiments": _experiments,
    }
    return listings[what]()


def _envs(everything: bool) -> list[str]:
    from stoix_like.envs.factory import list_scenarios

    choices = group_choices("env")
    if not everything:
        choices = [choice for choice in choices if choice.partition("/")[0] != PROBES]
    listed = [f"env={choice}" for choice in choices]
    for suite, scenarios in list_scenarios().items():
        if everything or suite != PROBES:
            listed += [f"env={suite} env.scenario.name={scenario}" for scenario in scenarios]
    return listed


def _networks() -> list[str]:
    from stoix_like.run.suggestions import fitting_systems

    listed = []
    for network in group_choices("network"):
        listed += [f"network={network}", f"  fits {', '.join(fitting_systems(network))}"]
    return listed


def _experiments() -> list[str]:
    listed = []
    for experiment in experiments():
        listed += [f"+experiment={experiment.name}", f"  {experiment.about}"]
    return listed


def run_lines(directory: Path) -> list[str]:
    """List the runs in a directory, the newest last, with status, return, budget and time.

    Args:
        directory: contains runs, at any depth.

    Returns:
        Lines of text.

    Raises:
        ConfigError: the directory does not exist or holds no run.
    """
    from stoix_like.recorded_runs import find_runs, read_run, started

    runs = sorted(map(read_run, find_runs([directory])), key=started)
    head = ("started", "status", "system", "environment", "seeds", "return", "steps", "budget", "time", "directory")
    return columns([head, *map(_run_row, runs)])


def _run_row(run: Run) -> tuple[str, ...]:
    from stoix_like.recorded_runs import RETURN, members, started

    last = run.history[-1] if run.history else {}
    returns = [value for value in (member.value(last, RETURN) for member in members(run)) if math.isfinite(value)]
    arch, own = run.config["arch"], members(run)
    seconds = run.summary.get("wall_seconds", last.get("wall_seconds", 0.0)) or 0.0
    return (
        f"{started(run):%Y-%m-%d %H:%M}",
        run.status,
        run.system,
        run.environment,
        _seeds([member.seed for member in own]),
        f"{sum(returns) / len(returns):.4g}" if returns else "–",
        f"{last.get('env_steps', 0):,}",
        f"{int(arch['total_timesteps']):,}",
        f"{int(seconds) // 60}:{int(seconds) % 60:02d}",
        str(_relative(run.directory)),
    )


def _seeds(seeds: Sequence[int]) -> str:
    """Return the seeds of the members, and how many settings share them."""
    if len(seeds) == 1:
        return str(seeds[0])
    distinct = sorted(set(seeds))
    shared = f" × {len(seeds) // len(distinct)}" if len(distinct) < len(seeds) else ""
    return (f"{distinct[0]}–{distinct[-1]}" if len(distinct) > 1 else str(distinct[0])) + shared


def _relative(directory: Path) -> Path:
    """Return a path below the working directory relative to it."""
    here = Path.cwd().resolve()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows of cells in columns.

    Args:
        rows: cells; all rows have the same number.

    Returns:
        One line per row.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def experiments() -> list[Experiment]:
    """Read the experiments of this package."""
    return [_read_experiment(name) for name in group_choices("experiment")]


def tuned_experiment(system: str, task: str) -> str | None:
    """Return the experiment that tunes a system for an environment, where it changes more than the budget.

    Args:
        system: name of the system, `sac/ff_sac`.
        task: name of the task, by default that of the environment in its suite, `Pendulum-v1`.

    Returns:
        The name of the experiment, or None.
    """
    for experiment in experiments():
        tunes = experiment.keys - {"arch.total_timesteps"}
        if tunes and experiment.system == system and _task(experiment.env) == task:
            return experiment.name
    return None


def _task(env: str) -> str:
    scenario = _load("env", env)["scenario"]
    return str(scenario.get("task_name", scenario["name"]))


def _read_experiment(name: str) -> Experiment:
    text = (config_dir() / "experiment" / f"{name}.yaml").read_text()
    comments = [line[2:] for line in text.split("defaults:")[0].splitlines() if not line.startswith("# @")]
    about = " ".join(comment.replace(f": +experiment={name}", ":") for comment in comments).rstrip(":")
    loaded = _with_bases(name)
    system, env = (
        next(_overridden(part, group, "") for part in loaded if _overridden(part, group, ""))
        for group in ("system", "env")
    )
    keys = frozenset(key for part in loaded for key in _keys({k: v for k, v in part.items() if k != "defaults"}))
    return Experiment(name, about, system, env, keys)


def _with_bases(name: str) -> list[dict[str, Any]]:
    """Load an experiment and those that it builds on, the nearest first."""
    loaded = _load("experiment", name)
    bases = [entry for entry in loaded["defaults"] if isinstance(entry, str) and entry != "_self_"]
    return [loaded, *(part for base in bases for part in _with_bases(base))]


def _overridden(loaded: dict[str, Any], group: str, default: str) -> str:
    """Return what a defaults list chooses for another group."""
    for entry in loaded.get("defaults", ()):
        if isinstance(entry, dict) and f"override /{group}" in entry:
            return entry[f"override /{group}"]
    return default


def _keys(node: dict[str, Any], path: Sequence[str] = ()) -> list[str]:
    found = []
    for name, value in node.items():
        found += _keys(value, (*path, name)) if isinstance(value, dict) else [".".join((*path, name))]
    return found


def _load(group: str, name: str) -> dict[str, Any]:
    return yaml.safe_load((config_dir() / group / f"{name}.yaml").read_text())
