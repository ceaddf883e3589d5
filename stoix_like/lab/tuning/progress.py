"""The progress of `tune` on the console."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stoix_like.callbacks import Callback, Response
from stoix_like.loggers import RunInfo
from stoix_like.loggers.formats import center_name, format_seconds
from stoix_like.run.population.trials import interquartile_means

_SECONDS_BETWEEN_LINES = 5.0


class TuningProgress(Callback):
    """Prints how far a stage is and how long it will take, and stops it at its deadline.

    `deadline`: seconds of the run, pauses not included, after which it stops; None: none.
    """

    def __init__(self, stage: str, deadline: float | None = None, least: int = 0, seeds: int = 1) -> None:
        self._stage, self._deadline, self._least, self._seeds = stage, deadline, least, seeds
        self._evaluations, self._done = 1, 0
        self._printed = 0.0
        self._score = "return" if seeds == 1 else center_name(seeds)

    def on_start(self, info: RunInfo) -> None:
        self._evaluations, self._done = info.num_evaluations, len(info.history)
        settings = f"{info.num_members // self._seeds} setting(s) of {self._seeds} seed(s)"
        _say(f"{self._stage}: {settings}, {info.num_evaluations - 1} evaluations")

    def on_evaluation(self, record: Mapping[str, Any], policy: Any) -> Response:
        self._done += 1
        best = interquartile_means(record["eval/episode_return_mean"], self._seeds).max()
        seconds, now = float(record["wall_seconds"]), time.perf_counter()
        is_last = self._done == self._evaluations
        if self._done > 1 and (is_last or now - self._printed > _SECONDS_BETWEEN_LINES):
            left = seconds / self._done * (self._evaluations - self._done)
            if self._deadline is not None:
                left = min(left, max(0.0, self._deadline - seconds))
            _say(
                f"{self._stage}: {self._done - 1} of {self._evaluations - 1} evaluations, best"
                f" {self._score} {best:.4g}, {format_seconds(left)} left"
            )
            self._printed = now
        is_over = self._deadline is not None and seconds > self._deadline and self._done > self._least
        return False if is_over else None


def _say(text: str) -> None:
    # A reader that is gone is no failure of training.
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)
