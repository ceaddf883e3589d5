"""A live curve in a Jupyter notebook."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stoix_like.loggers.base import Logger, RunInfo
from stoix_like.loggers.formats import center_name, format_number, format_rate, format_seconds

# Seconds between two drawings, which take the time of some updates.
_PERIOD = 1.0
# Members of a population that have a line of their own.
_MAX_LINES = 20


class NotebookLogger:
    """A learning curve that is drawn again after evaluations, between the header and the summary of another logger."""

    name = "console"

    def __init__(self, texts: Logger) -> None:
        self._texts = texts
        self._records: list[Mapping[str, Any]] = []
        self._info: RunInfo | None = None
        self._handle: Any = None
        self._drawn, self._shown = -_PERIOD, 0

    def start(self, info: RunInfo) -> None:
        """Print the header."""
        self._info, self._records, self._shown = info, list(info.history), len(info.history)
        self._texts.start(info)

    def log(self, record: Mapping[str, Any]) -> None:
        """Add an evaluation to the curve, and draw it unless it was drawn less than a second ago."""
        self._records.append(record)
        if time.monotonic() - self._drawn >= _PERIOD:
            self._draw()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Draw the whole curve, and print the summary."""
        self._draw()
        self._texts.finish(summary)

    def close(self) -> None:
        """Draw what an interrupted run has, and close the other logger."""
        if self._info is not None and len(self._records) > self._shown:
            self._draw()
        self._texts.close()

    def _draw(self) -> None:
        # IPython runs whatever calls this.
        from IPython.display import Image, display

        assert self._info is not None
        buffer = io.BytesIO()
        draw_curve(self._info, self._records).savefig(buffer, format="png", dpi=90)
        image = Image(buffer.getvalue())
        if self._handle is None:
            self._handle = display(image, display_id=True)
        else:
            self._handle.update(image)
        self._drawn, self._shown = time.monotonic(), len(self._records)


def draw_curve(info: RunInfo, records: list[Mapping[str, Any]]) -> Figure:
    """Draw the returns of all evaluations: of a population the interquartile mean, its interval and its members."""
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    steps = np.asarray([record["env_steps"] for record in records])
    means = _column(records, "eval/episode_return_mean")
    if means.ndim == 2:
        axes.plot(steps, means[:, :_MAX_LINES], color="#999999", linewidth=0.6, alpha=0.6)
        low, high = (_column(records, f"eval/episode_return_ci_{end}") for end in ("low", "high"))
        middle = _column(records, "eval/episode_return_iqm")
        label = f"{center_name(means.shape[1])} of the mean episode return"
    else:
        deviation = _column(records, "eval/episode_return_std")
        low, high, middle, label = means - deviation, means + deviation, means, "mean episode return"
    axes.fill_between(steps, low, high, alpha=0.2, linewidth=0)
    axes.plot(steps, middle, marker=".", linewidth=1.5)
    axes.set_xlim(0, max(info.total_timesteps, int(steps[-1])))
    axes.set_xlabel(info.step_unit)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    last = records[-1]
    done = f"{last['env_steps'] / max(info.total_timesteps, 1):.0%}   return {format_number(float(middle[-1]))}"
    pace = f"{format_rate(last.get('steps_per_second'))} steps/s   {format_seconds(last.get('wall_seconds'))}"
    axes.set_title(f"{done}   {pace}", fontsize="medium", loc="left")
    return figure


def _column(records: list[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return the values `[T]` or `[T, P]` of a metric, NaN where it is missing."""
    return np.asarray([record.get(name) for record in records], np.float64)
