"""The search by Optuna: batches of populations, whose trials differ only in traced hyperparameters."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass
class Populations:
    """The search by Optuna."""

    study: optuna.Study
    sampling: Sampling
    runner: Runner
    trials: int  # of the whole search
    parallel: int  # trials of a batch
    size: int  # trials of a population
    seeds: int  # per trial
    seed: int  # first seed
    objective: str

    def __post_init__(self) -> None:
        self.traced = [parameter.key for parameter in self.sampling.parameters if parameter.traced]
        self.asked: dict[str, list[FrozenTrial]] = {}

    def notes(self) -> list[str]:
        name, trials, parallel = self.sampling.sampler, self.trials, self.parallel
        populations, shapes = self._count_populations(), self.sampling.shapes
        num_shapes = None if shapes is None else len(shapes)
        notes = [describe_programs(self.sampling.parameters, num_shapes, populations, self.seeds)]
        if self.runner.launcher is not None and self.traced and self.size == parallel > 1:
            notes.append(
                f"sweep.launcher={self.runner.launcher} has one job at a time, a population of {self.size} trials:"
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
        shapes = self.sampling.shapes
        if self.sampling.sampler == "grid":
            assert shapes is not None
            places = {identity(shape): number for number, shape in enumerate(shapes)}
            found = grid_populations(self.sampling, (), self.trials, self.size)
            return [(places[identity(shape_of(one[0], self.sampling.parameters))], len(one)) for one in found]
        if not self.traced or shapes is None:
            return [(number, 1) for number in range(self.trials)]
        whole, rest = divmod(self.trials, self.size)
        sizes = [self.size] * whole + [rest] * (rest > 0)
        return [(number % len(shapes), size) for number, size in enumerate(sizes)]

    def next_jobs(self) -> list[Job]:
        ask(self.study, self.sampling, self.trials, self.parallel, self.size)
        self.asked = {trials[0].user_attrs[RUN]: trials for trials in unfinished(self.study)}
        return [self._job(run, trials) for run, trials in self.asked.items()]

    def _job(self, run: str, trials: Sequence[FrozenTrial]) -> Job:
        settings = [trial.params for trial in trials]
        # The hyperparameters of a lone member are constants of its program.
        alone = len(trials) == 1 and self.seeds == 1
        overrides = population_overrides(settings, () if alone else self.traced, self.seeds)
        # A setting that is drawn again has other seeds.
        first = self.seed + min(trial.number for trial in trials) * self.seeds
        return Job(run, [*overrides, f"arch.seed={first}"])

    def tell(self, job: Job) -> None:
        trials = self.asked[job.run]
        returns = self.runner.returns(job, len(trials), self.seeds, self.objective)
        values = interquartile_means(np.ravel(returns), self.seeds).tolist()
        for trial, value in zip(trials, values, strict=True):
            # A process may have been killed after it told the first ones.
            if math.isfinite(value):
                self.study.tell(trial.number, value, skip_if_finished=True)
            else:
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
