"""The trials of successive halving, and which of them continue: a function of the history of a run.

A trial is one hyperparameter setting, trained by the members of one slot. At a rung, a number of evaluations, it
continues if it is among the best 1/eta of all trials that have reached that rung so far: the stopping rule of
asynchronous successive halving, within a population that is evaluated at once.

Source: Li et al. 2020, "A system for massively parallel hyperparameter tuning", algorithm 2, without its pauses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stoix_like.loggers import plain
from stoix_like.storage.recorded_runs import TRIALS


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of successive halving."""

    evaluations: int  # evaluations of a whole trial
    seeds: int = 1  # members that train a trial
    eta: int = 3  # the share of trials that continue at a rung is 1/eta
    rungs: int = 2  # number of rungs

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Evaluations of a trial at each rung, the lowest one first."""
        return tuple(max(1, round(self.evaluations / self.eta**power)) for power in range(self.rungs, 0, -1))


@dataclasses.dataclass
class Trial:
    """A trial."""

    number: int  # its number, in the order of the starts
    slot: int  # the slot that trains it
    hyperparams: dict[str, float]  # its setting
    # Interquartile mean over its members at each evaluation, -inf without a return.
    scores: list[float] = dataclasses.field(default_factory=list)
    diverged: bool = False  # whether one of its members diverged
    last: int = 0  # number of its last evaluation, counted over the whole run


class Trials:
    """The trials of a history."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.by_number: dict[int, Trial] = {}
        self._current: list[int] = []
        self._results: dict[int, list[float]] = {}
        # Nothing is trained before the first evaluation.
        self._taken = 1

    def take(self, history: Sequence[Mapping[str, Any]]) -> Trials:
        """Take the records that are new."""
        for evaluation in range(self._taken, len(history)):
            self._take(evaluation, history[evaluation])
        self._taken = max(self._taken, len(history))
        return self

    def _take(self, evaluation: int, record: Mapping[str, Any]) -> None:
        scores = interquartile_means(record["eval/episode_return_mean"], self.rules.seeds)
        failed = {member // self.rules.seeds for member in record["population/failed"]}
        self._current = list(record[TRIALS])
        for slot, number in enumerate(self._current):
            if number not in self.by_number:
                first = slot * self.rules.seeds
                values = {
                    name.removeprefix("hyperparams/"): value[first]
                    for name, value in record.items()
                    if name.startswith("hyperparams/")
                }
                self.by_number[number] = Trial(number, slot, values)
            trial = self.by_number[number]
            trial.diverged, trial.last = slot in failed, evaluation
            trial.scores.append(float(scores[slot]))
            # The returns of a frozen policy are no result.
            result = -math.inf if trial.diverged else trial.scores[-1]
            self._results.setdefault(len(trial.scores), []).append(result)

    def is_complete(self, trial: Trial) -> bool:
        """Return whether a trial has spent its budget."""
        return len(trial.scores) >= self.rules.evaluations and not trial.diverged

    def to_replace(self, left: int) -> list[int]:
        """Return the slots that start another trial: their trial is complete, diverged, or lost at a rung."""
        current = [self.by_number[number] for number in self._current]
        levels = {len(trial.scores) for trial in current} if left >= self.rules.evaluations else set()
        least = {level: self._least(level) for level in levels.intersection(self.rules.levels)}

        def loses(trial: Trial) -> bool:
            score = trial.scores[-1]
            # Trials with equal results continue together: these are no reason to stop either of them.
            return len(trial.scores) in least and (score == -math.inf or score < least[len(trial.scores)])

        return [trial.slot for trial in current if trial.diverged or self.is_complete(trial) or loses(trial)]

    def _least(self, level: int) -> float:
        """Return the least result at a rung with which a trial continues."""
        results = sorted(self._results[level], reverse=True)
        return results[max(1, len(results) // self.rules.eta) - 1]

    def finalists(self) -> list[Trial]:
        """Return the best complete trial of each slot; of a slot without any, its last trial."""
        complete: dict[int, list[Trial]] = {}
        for trial in filter(self.is_complete, self.by_number.values()):
            complete.setdefault(trial.slot, []).append(trial)
        lasts = (self.by_number[number] for number in self._current)
        return [max(complete.get(last.slot, ()), key=lambda trial: trial.scores[-1], default=last) for last in lasts]

    def best(self, among: Sequence[Trial]) -> Trial:
        """Return the best of some trials: complete ones before all others, and those that diverged last."""
        return max(among, key=lambda trial: (self.is_complete(trial), not trial.diverged, trial.scores[-1]))

    def state(self, trial: Trial) -> str:
        """Return what became of a trial: `complete`, `stopped`, `diverged` or `unfinished`."""
        if trial.diverged:
            return "diverged"
        if self.is_complete(trial):
            return "complete"
        return "unfinished" if trial.number in self._current else "stopped"

    def summary(self) -> list[dict[str, Any]]:
        """Return one record per trial: its number, setting, returns and state, in JSON values."""
        return [
            {
                "number": trial.number,
                "hyperparameters": trial.hyperparams,
                "evaluations": plain(np.where(np.isinf(trial.scores), np.nan, trial.scores)),
                "state": self.state(trial),
            }
            for trial in sorted(self.by_number.values(), key=lambda trial: trial.number)
        ]


def interquartile_means(scores: Sequence[float] | np.ndarray, seeds: int) -> np.ndarray:
    """Compute the interquartile mean of each slot: a quarter of its members is trimmed at either end.

    `scores`: `[P]`, members of a slot one after the other; NaN counts as the lowest.
    Returns `[P / seeds]`.
    """
    by_slot = np.asarray(scores, np.float64).reshape(-1, seeds)
    ordered = np.sort(np.where(np.isnan(by_slot), -np.inf, by_slot), axis=1)
    cut = seeds // 4
    return ordered[:, cut : seeds - cut].mean(axis=1)
