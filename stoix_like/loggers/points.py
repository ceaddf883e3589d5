"""The hyperparameter settings of a population as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoix_like.loggers.formats import MIN_IQM, columns, format_number

MAX_ROWS = 12
_RESULTS = ("members", "seeds")


def describe(point: Mapping[str, Any]) -> str:
    """Return the hyperparameters of a setting, `actor_lr=0.001, gamma=0.99`."""
    return ", ".join(f"{name}={point[name]:.3g}" for name in _varied(point))


def table(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the last evaluation of each setting, the best one first."""
    name = "eval/episode_return"
    ranked = sorted(points, key=lambda point: _rank(point[f"{name}_iqm"]), reverse=True)
    rows = [[*_varied(points[0]), "mean", "IQM", "95 % interval", "seeds"]]
    for point in ranked[:MAX_ROWS]:
        mean, iqm, low, high = (format_number(point[f"{name}_{key}"]) for key in ("mean", "iqm", "ci_low", "ci_high"))
        iqm = iqm if len(point["seeds"]) >= MIN_IQM else "-"
        interval = "-" if low == high == "-" else f"[{low}, {high}]"
        values = (f"{point[hyperparam]:.3g}" for hyperparam in _varied(point))
        rows.append([*values, mean, iqm, interval, _seeds(point["seeds"])])
    lines = columns(rows, str.rjust)
    left_out = len(ranked) - MAX_ROWS
    return [*lines, f"{left_out:,} more in summary.json"] if left_out > 0 else lines


def _varied(point: Mapping[str, Any]) -> list[str]:
    return [name for name in point if name not in _RESULTS and "/" not in name]


def _rank(value: float | None) -> float:
    # NaN, and null in a file, are worse than any number.
    return value if value is not None and value == value else float("-inf")


def _seeds(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"
