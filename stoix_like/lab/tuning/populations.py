"""The search by Optuna: batches of populations, whose trials differ only in traced hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from stoix_like.lab.tuning.progress import interquartile_means
from stoix_like.lab.tuning.runner import Job, Runner, population_overrides
from stoix_like.lab.tuning.shapes import describe_programs, shape_of
from stoix_like.lab.tuning.study import RUN, STARTUP, Sampling, ask, grid_populations, random_share, unfinished
from stoix_like.storage.recorded_runs import identity


class Populations:
    """The search by Optuna."""

    def __init__(
        self,
        study: optuna.Study,
        sampling: Sampling,
        runner: Runner,
        *,
        trials: int,
        parallel: int,
        size: int,
        seeds: int,
        seed: int,
        objective: str,
    ) -> None:
        self._study, self._sampling, self._runner = study, sampling, runner
        self._trials, self._parallel, self._size = trials, parallel, size
        self._seeds, self._seed, self._objective = seeds, seed, objective
        self._traced = [parameter.key for parameter in sampling.parameters if parameter.traced]
        self._asked: dict[str, list[FrozenTrial]] = {}

    def notes(self) -> list[str]:
        name, trials, parallel = self._sampling.sampler, self._trials, self._parallel
        populations = self._count_populations()
        shapes = self._sampling.shapes
        notes = [
            describe_programs(
                self._sampling.parameters, None if shapes is None else len(shapes), populations, self._seeds
            )
        ]
        if self._traced and name != "grid" and len(populations) > 1 and trials % self._size:
            notes.append(
                f"sweep.trials={trials} is not a multiple of {self._size}: the last population has"
                f" {trials % self._size} trial(s), and so its own program; use {trials - trials % self._size} or"
                f" {trials - trials % self._size + self._size}"
            )
        if self._runner.launcher is not None and self._traced and self._size == parallel > 1:
            notes.append(
                f"sweep.launcher={self._runner.launcher} has one job at a time, a population of {self._size} trials:"
                " use a smaller sweep.population, or a larger sweep.parallel"
            )
        if 2 * (drawn := random_share(name, trials, parallel)) > trials:
            notes.append(
                f"sweep.parallel={parallel}: {drawn} of {trials} trials are drawn at random, because {name} learns"
                f" between batches, from {STARTUP[name]} finished trial(s) on: use a smaller sweep.parallel or more"
                " sweep.trials"
            )
        return notes

    def _count_populations(self) -> list[tuple[int, int]]:
        """Return the number of a shape and the size of each population of the sweep."""
        shapes = self._sampling.shapes
        if self._sampling.sampler == "grid":
            assert shapes is not None
            places = {identity(shape): number for number, shape in enumerate(shapes)}
            found = grid_populations(self._sampling, (), self._trials, self._size)
            return [(places[identity(shape_of(one[0], self._sampling.parameters))], len(one)) for one in found]
        if not self._traced or shapes is None:
            return [(number, 1) for number in range(self._trials)]
        whole, rest = divmod(self._trials, self._size)
        sizes = [self._size] * whole + [rest] * (rest > 0)
        return [(number % len(shapes), size) for number, size in enumerate(sizes)]

    def next_jobs(self) -> list[Job]:
        ask(self._study, self._sampling, self._trials, self._parallel, self._size)
        self._asked = {trials[0].user_attrs[RUN]: trials for trials in unfinished(self._study)}
        return [self._job(run, trials) for run, trials in self._asked.items()]

    def _job(self, run: str, trials: Sequence[FrozenTrial]) -> Job:
        settings = [trial.params for trial in trials]
        # The hyperparameters of a lone member are constants of its program.
        alone = len(trials) == 1 and self._seeds == 1
        overrides = population_overrides(settings, () if alone else self._traced, self._seeds)
        # A setting that is drawn again has other seeds.
        first = self._seed + min(trial.number for trial in trials) * self._seeds
        return Job(run, [*overrides, f"arch.seed={first}"])

    def tell(self, job: Job) -> None:
        trials = self._asked[job.run]
        returns = self._runner.returns(job, len(trials), self._seeds, self._objective)
        values = interquartile_means(np.ravel(returns), self._seeds).tolist()
        for trial, value in zip(trials, values, strict=True):
            # A process may have been killed after it told the first ones.
            if math.isfinite(value):
                self._study.tell(trial.number, value, skip_if_finished=True)
            else:
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
