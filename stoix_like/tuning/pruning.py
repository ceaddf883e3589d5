"""Pruning of the trials of a population."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.trial import Trial, TrialState

from stoix_like.callbacks import Callback, Response
from stoix_like.loggers import RunInfo
from stoix_like.run.trials import interquartile_means
from stoix_like.storage.recorded_runs import RETURN


class Pruning(Callback):
    """Stops a run once all of its trials are pruned.

    The returns are reported to a copy of the study in memory, because a transaction of a database takes milliseconds,
    and a population has thousands of returns.

    Args:
        study: the study, whose pruner decides.
        numbers: trials, one per hyperparameter setting of the population.
        seeds: seeds per setting.
    """

    def __init__(self, study: optuna.Study, numbers: Sequence[int], seeds: int) -> None:
        self._study, self._numbers, self._seeds = study, numbers, seeds
        self._trials: list[Trial] = []
        self._step = 0

    def on_start(self, info: RunInfo) -> None:
        """See `Callback.on_start`."""
        self.replay(info.history)

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Start from the evaluations of a run.

        Args:
            history: one record per evaluation.
        """
        copy = optuna.create_study(
            study_name=self._study.study_name, direction=self._study.direction, pruner=self._study.pruner
        )
        bare = optuna.trial.create_trial(state=TrialState.RUNNING)
        # A process may have been killed after it wrote some of them.
        copy.add_trials(
            bare if trial.number in self._numbers else trial for trial in self._study.get_trials(deepcopy=False)
        )
        ids = [trial._trial_id for trial in copy.get_trials(deepcopy=False)]
        self._trials, self._step = [Trial(copy, ids[number]) for number in self._numbers], 0
        for record in history:
            self.on_evaluation(record, None)

    def on_evaluation(self, record: Mapping[str, Any], policy: Any) -> Response:
        """See `Callback.on_evaluation`."""
        values = interquartile_means(np.asarray(record[RETURN], np.float64), self._seeds).tolist()
        pruned = []
        for trial, value in zip(self._trials, values, strict=True):
            if math.isfinite(value):
                trial.report(value, self._step)
            pruned.append(self._step > 0 and trial.should_prune())
        self._step += 1
        return False if all(pruned) else None

    def write(self) -> None:
        """Write what the pruner needs of the trials to the study: their last returns, and what it remembers of them."""
        written = self._study.get_trials(deepcopy=False)
        for trial in self._trials:
            before, now = written[trial.number], trial.study.get_trials(deepcopy=False)[trial.number]
            if before.state != TrialState.RUNNING:
                continue
            for name, value in now.system_attrs.items():
                self._study._storage.set_trial_system_attr(before._trial_id, name, value)
            if now.last_step is not None and now.last_step not in before.intermediate_values:
                last = now.intermediate_values[now.last_step]
                Trial(self._study, before._trial_id).report(last, now.last_step)
