"""Listings of the command line: systems, environments, networks, experiments and runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stoix_like.composition import group_choices
from stoix_like.loggers.formats import columns

if TYPE_CHECKING:
    from stoix_like.storage.recorded_runs import Run

PROBES = "probe"


def lines(what: str, everything: bool = False) -> list[str]:
    """List the choices of one kind, each as an override, with indented lines about it.

    Args:
        what: `systems`, `envs`, `networks` or `experiments`.
        everything: of the environments, also list the probes.

    Returns:
        Lines of text.
    """
    listings: dict[str, Callable[[], list[str]]] = {
        "systems": lambda: _with_comments("system"),
        "envs": lambda: _envs(everything),
        "networks": lambda: _with_comments("network"),
        "experiments": _experiments,
    }
    return listings[what]()


def _envs(everything: bool) -> list[str]:
    from stoix_like.envs.suites import list_scenarios

    choices = group_choices("env")
    if not everything:
        choices = [choice for choice in choices if choice.partition("/")[0] != PROBES]
    listed = [f"env={choice}" for choice in choices]
    for suite, scenarios in list_scenarios().items():
        if everything or suite != PROBES:
            listed += [f"env={suite} env.scenario.name={scenario}" for scenario in scenarios]
    return listed


def _with_comments(group: str) -> list[str]:
    from stoix_like.run.suggestions import about

    return [line for name in group_choices(group) for line in (f"{group}={name}", f"  {about(group, name)}")]


def _experiments() -> list[str]:
    from stoix_like.run.suggestions import experiments

    return [line for each in experiments() for line in (f"+experiment={each.name}", f"  {each.about}")]


def run_lines(directory: Path) -> list[str]:
    """List the runs in a directory, the newest last, with status, return, budget and time.

    Args:
        directory: contains runs, at any depth.

    Returns:
        Lines of text.

    Raises:
        ConfigError: the directory does not exist or holds no run.
    """
    from stoix_like.storage.recorded_runs import find_runs, read_run, started

    runs = sorted(map(read_run, find_runs([directory])), key=started)
    head = ("started", "status", "system", "environment", "seeds", "return", "steps", "budget", "time", "directory")
    return columns([head, *map(_run_row, runs)])


def _run_row(run: Run) -> tuple[str, ...]:
    from stoix_like.storage.recorded_runs import RETURN, members, started

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
