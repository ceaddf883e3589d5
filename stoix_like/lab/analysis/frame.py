"""All evaluations of some runs as one tidy table."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoix_like.errors import require
from stoix_like.storage.recorded_runs import Member, Run, evolves, members, read_runs, task_names
from stoix_like.storage.run_files import METRICS, UPDATES, read_records

if TYPE_CHECKING:
    import pandas as pd

_NAMES = ("name", "module")
_SHARED = ("population/", "eval/episode_return_iqm", "eval/episode_return_ci_")


def load(run_dirs: str | Path | Iterable[str | Path], updates: bool = False) -> pd.DataFrame:
    """Load the evaluations of runs into a table with one row per member and evaluation.

    Args:
        run_dirs: run directories, or directories that contain runs; one or several.
        updates: load the training metrics between evaluations instead, one row per `logger.every_updates` updates.

    Returns:
        A table with the columns `run` (the directory), `system`, `environment`, `member`, `seed`, one column
        `system.<name>` for each hyperparameter of a system (the members' own where they differ), `env_steps` of each
        member, `wall_seconds` since the start, and one column per metric; NaN where a metric is missing.

    Raises:
        ConfigError: a path holds no run that can be read.
        MissingExtraError: pandas is not installed.
    """
    pandas = require("pandas", "analysis.load", "analysis")
    runs, problems = read_runs(run_dirs)
    for problem in problems:
        print(f"leaving out a run: {problem}", file=sys.stderr)
    named = zip(runs, task_names(runs), strict=True)
    rows = [row for run, task in named for row in _rows(run, task, UPDATES if updates else METRICS)]
    table: pd.DataFrame = pandas.DataFrame(rows)
    return table


def _rows(run: Run, task: str, file: str) -> list[dict[str, Any]]:
    records = [record for record in read_records(run.directory / file) if "env_steps" in record]
    sources: list[dict[str, Any]] = records
    if evolves(run) and file == UPDATES:
        # Selections follow evaluations, so that updates have the hyperparameters of the next one.
        history = [one for one in run.history if "env_steps" in one]
        sources = [next((one for one in history if one["env_steps"] >= record["env_steps"]), {}) for record in records]
    scalars = (bool, int, float, str, type(None))
    own = run.config["system"].items()
    system = {name: value for name, value in own if name not in _NAMES and isinstance(value, scalars)}
    return [
        {
            "run": str(run.directory),
            "system": run.system,
            "environment": task,
            "member": member.place,
            "seed": member.seed,
            **{f"system.{name}": value for name, value in {**system, **_hyperparams(member, source)}.items()},
            **{name: member.value(record, name) for name in record if not name.startswith(_SHARED)},
            "env_steps": int(record["env_steps"]),
        }
        for member in members(run)
        for record, source in zip(records, sources, strict=True)
    ]


def _hyperparams(member: Member, record: dict[str, Any]) -> dict[str, float]:
    """Return the hyperparameters of a member at the time of a record: population-based training moves them."""
    if not evolves(member.run):
        return member.hyperparams
    varied = (member.run.config["arch"]["population"]["hyperparams"] or {}).keys()
    return {name: member.value(record, f"hyperparams/{name}") for name in varied}
