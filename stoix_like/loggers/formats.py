"""Numbers, rates, durations and tables as short texts."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The interquartile mean of fewer scores is their mean.
MIN_IQM = 4


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
    """Format where the time of a run went, the longest phase first.

    `timing`: seconds by phase, and `total`; phases with an underscore are parts of others and left out.
    """
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
