"""Numbers, rates, durations and tables as short texts."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The interquartile mean of fewer scores is their mean.
MIN_IQM = 4
MAX_POINTS = 12
_OF_POINTS = ("members", "seeds")


def center_name(size: int) -> str:
    """Return the name of an interquartile mean: `IQM`, or `mean` for so few scores that it is the mean."""
    return "IQM" if size >= MIN_IQM else "mean"


def format_number(value: Any) -> str:
    """Format a number with its significant digits. `value`: a number; any other value, such as None, is missing."""
    if not isinstance(value, int | float):
        return "-"
    size = abs(value)
    if math.isfinite(size) and 0 < size < 0.01:
        return f"{value:.2g}"
    return f"{value:,.2f}" if size < 1000 else f"{value:,.0f}" if size < 1e7 else f"{value:.2e}"


def format_rate(value: Any) -> str:
    """Format a rate with three significant digits."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    for unit, size in (("M", 1e6), ("k", 1e3)):
        # In the smaller unit, 999.5 and above would round to four digits.
        if value >= 0.9995 * size:
            return f"{_three_digits(value / size)}{unit}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def format_seconds(value: Any) -> str:
    """Format a duration. `value`: a number of seconds; any other value is missing."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_timing(timing: Mapping[str, float]) -> str:
    """Format seconds by phase, the longest first, and their `total`; phases with an underscore are parts of others."""
    estimates = {name: value for name, value in timing.items() if name.startswith("training_")}
    inner = ", ".join(f"{name.removeprefix('training_')} {value:.1f}" for name, value in estimates.items())
    phases = {name: value for name, value in timing.items() if name != "total" and "_" not in name}
    ranked = sorted(phases.items(), key=lambda phase: phase[1], reverse=True)
    words = [f"{name} {value:.1f}" for name, value in ranked if value >= 0.05]
    listed = ", ".join(f"{word} ({inner})" if inner and word.startswith("training ") else word for word in words)
    return f"{timing['total']:.1f} s: {listed}"


def short_path(path: pathlib.Path) -> str:
    """Return a path below the working directory relative to it."""
    here = pathlib.Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def columns(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.ljust) -> list[str]:
    """Align rows of cells in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(align(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def describe_point(point: Mapping[str, Any]) -> str:
    """Return the hyperparameters of a setting of a population, `actor_lr=0.001, gamma=0.99`."""
    return ", ".join(f"{name}={point[name]:.3g}" for name in _varied(point))


def table_of_points(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the last evaluation of each setting of a population, the best one first."""
    name = "eval/episode_return"
    ranked = sorted(points, key=lambda point: _rank(point[f"{name}_iqm"]), reverse=True)
    rows = [[*_varied(points[0]), "mean", "IQM", "95 % interval", "seeds"]]
    for point in ranked[:MAX_POINTS]:
        mean, iqm, low, high = (format_number(point[f"{name}_{key}"]) for key in ("mean", "iqm", "ci_low", "ci_high"))
        iqm = iqm if len(point["seeds"]) >= MIN_IQM else "-"
        interval = "-" if low == high == "-" else f"[{low}, {high}]"
        values = (f"{point[hyperparam]:.3g}" for hyperparam in _varied(point))
        first, last = point["seeds"][0], point["seeds"][-1]
        rows.append([*values, mean, iqm, interval, str(first) if first == last else f"{first}–{last}"])
    lines = columns(rows, str.rjust)
    left_out = len(ranked) - MAX_POINTS
    return [*lines, f"{left_out:,} more in summary.json"] if left_out > 0 else lines


def _varied(point: Mapping[str, Any]) -> list[str]:
    return [name for name in point if name not in _OF_POINTS and "/" not in name]


def _rank(value: float | None) -> float:
    # NaN, and null in a file, are worse than any number.
    return value if value is not None and value == value else float("-inf")
