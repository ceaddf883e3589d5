"""The best setting of a search: by which return it was selected, and what it returns on fresh seeds."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoix_like.loggers.formats import center_name
from stoix_like.run.records.records import aggregate
from stoix_like.storage.contents import NUMBER, read_json
from stoix_like.storage.files import write_json
from stoix_like.storage.recorded_runs import Run

SELECTED, TUNE, FRESH_RUNS = "best.json", "tune.json", "fresh"
# Directories of runs of a search: in each, what the one before selected trains again. Of `tune`, the trials are in
# `search`, and on a mirror in `runs`, where a sweep has them.
_STAGES = ("search", "runs", "finalists", FRESH_RUNS)
_FORM: dict[str, Any] = {"trials": int, "trial": int | None, "value": NUMBER, "params": {}, "fresh_returns": [NUMBER]}
_MAX_BYTES = 2**24


class SelectedMember(NamedTuple):
    """The best setting of a search."""

    trials: int  # number of trials with a return
    trial: int | None  # its number; None: it is the configured setting
    value: float  # the return by which it was selected; NaN where training diverged
    params: Mapping[str, Any]  # its values by key
    fresh_returns: Sequence[float] = ()  # its return on each fresh seed, NaN where training diverged; empty without any

    def write(self, directory: Path) -> None:
        """Write the setting to the directory of its search."""
        write_json(directory / SELECTED, self._asdict())


def read_selected(directory: Path) -> SelectedMember | None:
    """Read the best setting of a search. Returns the setting; None if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        found = read_json(directory / SELECTED, _MAX_BYTES, _FORM)
        value, *fresh = (math.nan if one is None else one for one in (found.pop("value"), *found.pop("fresh_returns")))
        return SelectedMember(**found, value=value, fresh_returns=fresh)
    return None


def one_stage(runs: Sequence[Run]) -> list[Run]:
    """Leave out runs of a search that are not comparable with its other ones, where both are there.

    Of a sweep, these are the runs on fresh seeds: with the runs that selected their setting, they would be one
    algorithm, partly scored by the returns that selected it. Of `tune`, where fresh seeds have the configured setting,
    too, they are all stages but the last one.
    """
    parents = [set(run.directory.parents) for run in runs]
    left_out: dict[Path, str] = {}
    everywhere = dict.fromkeys(parent for run in runs for parent in run.directory.parents)
    # By the names of its runs, a search is known in any copy.
    for directory in (run.directory for run in runs):
        is_tune = directory.match("finalists/[0-9]/00") or directory.match(f"{FRESH_RUNS}/[0-9]/00")
        if not (is_tune or directory.match(f"{FRESH_RUNS}/[0-9]*-[0-9]*-[0-9]*/00")):
            continue
        stages = [place for name in _STAGES if (place := directory.parents[2] / name) in everywhere]
        if is_tune:
            left_out |= dict.fromkeys(stages[:-1], f"what it selected trains again in {stages[-1].name}/")
        elif len(stages) > 1:
            left_out[stages[-1]] = "fresh seeds do not count with those that selected their setting"
    for directory, reason in left_out.items():
        print(f"leaving out {directory}: {reason}; pass only this directory to see it", file=sys.stderr)
    return [run for run, own in zip(runs, parents, strict=True) if not own & left_out.keys()]


def describe_fresh(returns: Sequence[float]) -> str:
    """Return the interquartile mean of fresh seeds with its 95 % interval, as text."""
    found = aggregate(returns, (0,) * len(returns))
    # An end is NaN where it comes from resamples in which enough seeds diverged.
    iqm, *ends = ("diverged" if math.isnan(found[key]) else f"{found[key]:.4g}" for key in ("iqm", "ci_low", "ci_high"))
    interval = f" [{', '.join(ends)}]" if len(returns) > 1 else ""
    lost = sum(map(math.isnan, returns))
    diverged = f", {lost} of which diverged" if lost else ""
    return f"{center_name(len(returns))} {iqm}{interval} on {len(returns)} fresh seed(s){diverged}"
