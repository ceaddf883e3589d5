"""The progress of `tune` on the console."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoix_like.callbacks import Callback
from stoix_like.loggers import RunInfo
from stoix_like.loggers.formats import center_name, format_seconds

_SECONDS_BETWEEN_LINES = 5.0


class TuningProgress(Callback):
    """Prints how far a population of a stage is, and how long it will take."""

    def __init__(self, stage: str, seeds: int = 1) -> None:
        self._stage, self._seeds = stage, seeds
        self._evaluations, self._done = 1, 0
        self._printed = 0.0
        self._score = "return" if seeds == 1 else center_name(seeds)

    def on_start(self, info: RunInfo) -> None:
        self._evaluations, self._done = info.num_evaluations, len(info.history)
        settings = f"{info.num_members // self._seeds} setting(s) of {self._seeds} seed(s)"
        _say(f"{self._stage}: {settings}, {info.num_evaluations - 1} evaluations")

    def on_evaluation(self, record: Mapping[str, Any], policy: Any) -> None:
        self._done += 1
        best = interquartile_means(record["eval/episode_return_mean"], self._seeds).max()
        seconds, now = float(record["wall_seconds"]), time.perf_counter()
        is_last = self._done == self._evaluations
        if self._done > 1 and (is_last or now - self._printed > _SECONDS_BETWEEN_LINES):
            left = seconds / self._done * (self._evaluations - self._done)
            _say(
                f"{self._stage}: {self._done - 1} of {self._evaluations - 1} evaluations, best"
                f" {self._score} {best:.4g}, {format_seconds(left)} left"
            )
            self._printed = now


def _say(text: str) -> None:
    # A reader that is gone is no failure of training.
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)


def interquartile_means(scores: Sequence[float] | np.ndarray, seeds: int) -> np.ndarray:
    """Compute the interquartile mean of each setting. `scores`: `[P]`, `seeds` for each; NaN counts as the lowest."""
    by_slot = np.asarray(scores, np.float64).reshape(-1, seeds)
    ordered = np.sort(np.where(np.isnan(by_slot), -np.inf, by_slot), axis=1)
    cut = seeds // 4
    return ordered[:, cut : seeds - cut].mean(axis=1)
