"""Pruning of the trials of a population."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import Trial

from stoix_like.callbacks import Callback, Response
from stoix_like.run.records import interquartile_mean


class Pruning(Callback):
    """Reports the returns of trials to the study, and stops their run once all of them are pruned.

    Args:
        trials: one per hyperparameter setting of the population.
        seeds: seeds per setting.
    """

    def __init__(self, trials: Sequence[Trial], seeds: int) -> None:
        self._trials, self._seeds, self._step = list(trials), seeds, 0

    def on_evaluation(self, record: Mapping[str, Any], policy: Any) -> Response:
        """See `Callback.on_evaluation`."""
        returns = record["eval/episode_return_mean"]
        returns = returns if isinstance(returns, list) else [returns]
        pruned = []
        for place, trial in enumerate(self._trials):
            own = returns[place * self._seeds : (place + 1) * self._seeds]
            value = interquartile_mean(own)
            # A resumed run repeats the evaluations after its last checkpoint.
            if math.isfinite(value) and self._step not in self._reported(trial):
                trial.report(value, self._step)
            pruned.append(self._step > 0 and trial.should_prune())
        self._step += 1
        return False if all(pruned) else None

    def _reported(self, trial: Trial) -> Mapping[int, float]:
        return trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {"step": self._step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Callback.restore`."""
        self._step = state["step"]
