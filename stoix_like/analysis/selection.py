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

SELECTED, FRESH_RUNS = "best.json", "fresh"
_FORM: dict[str, Any] = {"trials": int, "trial": int, "value": int | float, "params": {}, "fresh_returns": [NUMBER]}
_MAX_BYTES = 2**24


class SelectedMember(NamedTuple):
    """The best setting of a search.

    Attributes:
        trials: number of trials with a return.
        trial: its number.
        value: its return in the search.
        params: its values by key.
        fresh_returns: its return on each fresh seed, NaN where training diverged; empty without any.
    """

    trials: int
    trial: int
    value: float
    params: Mapping[str, Any]
    fresh_returns: Sequence[float] = ()

    def write(self, directory: Path) -> None:
        """Write the setting to the directory of its search."""
        write_json(directory / SELECTED, self._asdict())


def read_selected(directory: Path) -> SelectedMember | None:
    """Read the best setting of a search.

    Args:
        directory: the directory of the search.

    Returns:
        The setting; None if there is none that can be read.
    """
    with contextlib.suppress(OSError, ValueError):
        found = read_json(directory / SELECTED, _MAX_BYTES, _FORM)
        fresh = [math.nan if one is None else one for one in found.pop("fresh_returns")]
        return SelectedMember(**found, fresh_returns=fresh)
    return None


def without_fresh(runs: Sequence[Run]) -> list[Run]:
    """Leave out the runs of a search on fresh seeds where those that selected their setting are there, too.

    Together they would be one algorithm, whose returns are partly those by which it was selected.

    Args:
        runs: the runs.

    Returns:
        The others; a line says what is left out.
    """
    searches = [_search_of(run.directory) for run in runs]
    others = {
        parent for run, search in zip(runs, searches, strict=True) if search is None for parent in run.directory.parents
    }
    for search in dict.fromkeys(search for search in searches if search in others):
        reason = "fresh seeds do not count with those that selected their setting; give this directory alone"
        print(f"leaving out {search}/{FRESH_RUNS}: {reason}", file=sys.stderr)
    return [run for run, search in zip(runs, searches, strict=True) if search not in others]


def _search_of(directory: Path) -> Path | None:
    """Return the directory of the search of a run on fresh seeds; None for any other run."""
    parents = (parent.parent for parent in directory.parents if parent.name == FRESH_RUNS)
    return next((parent for parent in parents if (parent / SELECTED).exists()), None)


def describe_fresh(returns: Sequence[float]) -> str:
    """Return the interquartile mean of fresh seeds with its 95 % interval, as text.

    Args:
        returns: one per seed; NaN, where training diverged, counts as the lowest.
    """
    found = aggregate(returns, (0,) * len(returns))
    # An end is NaN where it is that of resamples in which enough seeds diverged.
    iqm, *ends = ("diverged" if math.isnan(found[key]) else f"{found[key]:.4g}" for key in ("iqm", "ci_low", "ci_high"))
    interval = f" [{', '.join(ends)}]" if len(returns) > 1 else ""
    lost = sum(map(math.isnan, returns))
    diverged = f", {lost} of which diverged" if lost else ""
    return f"{center_name(len(returns))} {iqm}{interval} on {len(returns)} fresh seed(s){diverged}"
