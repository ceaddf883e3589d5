"""The search by successive halving: one population per shape, which stops and starts trials by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from stoix_like.errors import ConfigError
from stoix_like.lab.tuning.confirm import FRESH
from stoix_like.lab.tuning.parameters import Parameter
from stoix_like.lab.tuning.runner import Job, Runner
from stoix_like.lab.tuning.shapes import Shape, describe_programs
from stoix_like.lab.tuning.study import PLACE, RUN
from stoix_like.overrides import to_overrides
from stoix_like.storage.recorded_runs import TRIALS
from stoix_like.storage.run_files import read_summary

HALVING = "halving"
# What became of a trial, as an attribute: `complete`, `stopped` at a rung, `diverged`, or `unfinished` at the end.
ENDED = "ended"
# First seeds of further runs: beyond the finalists' and the fresh ones, and relative to each other.
_FURTHER, _STRIDE = FRESH + 1_000_000, 1_000_000


class Halvings:
    """The search by successive halving."""

    def __init__(
        self,
        study: optuna.Study,
        parameters: Sequence[Parameter],
        shapes: Sequence[Shape],
        runner: Runner,
        *,
        trials: int,
        size: int,
        copies: int,
        seeds: int,
        seed: int,
    ) -> None:
        self._study, self._parameters, self._shapes, self._runner = study, list(parameters), list(shapes), runner
        self._size, self._copies, self._seeds, self._seed = size, copies, seeds, seed
        self._traced = [parameter for parameter in parameters if parameter.traced]
        self._rounds = trials / (size * copies * len(shapes))
        runs = [shape for shape in self._shapes for _ in range(copies)]
        self._jobs = {f"runs/{number:05d}": self._job(number, shape) for number, shape in enumerate(runs)}
        self._without_result: set[str] = set()

    def notes(self) -> list[str]:
        populations = [(number, self._size) for number in range(len(self._shapes))] * self._copies
        notes = [describe_programs(self._parameters, len(self._shapes), populations, self._seeds)]
        rounds = f"{len(self._jobs)} run(s) of {self._size} trials at a time last {self._rounds:.3g} whole trials"
        few = "; trials are stopped only while others could complete in their place: use more sweep.trials"
        return [*notes, rounds + (few if self._rounds < 2 else "")]

    def next_jobs(self) -> list[Job]:
        self._tell_complete()
        return [job for run, job in self._jobs.items() if run not in self._without_result and not self._trials(run)]

    def tell(self, job: Job) -> None:
        if not self._trials(job.run):
            self._without_result.add(job.run)
        self._tell_complete()

    def _tell_complete(self) -> None:
        """Write the trials of complete runs to the study, in the order of the runs."""
        for run, job in self._jobs.items():
            found = self._trials(run)
            if not found and run not in self._without_result:
                return
            # A process may have been killed after it wrote the first ones.
            written = sum(trial.user_attrs.get(RUN) == run for trial in self._study.get_trials(deepcopy=False))
            for trial in found[written:]:
                self._study.add_trial(self._frozen(job, trial))

    def _trials(self, run: str) -> list[Mapping[str, Any]]:
        """Return the trials of a run; none before it is complete."""
        if not self._runner.has_results(run):
            return []
        return list(read_summary(self._runner.directory / run).get(TRIALS, ()))

    def _frozen(self, job: Job, trial: Mapping[str, Any]) -> optuna.trial.FrozenTrial:
        """Return a trial for the study: pruned if it was stopped, or had too little time left."""
        number = int(job.run.rpartition("/")[2])
        params = dict(self._shapes[number // self._copies])
        for parameter in self._traced:
            params[parameter.key] = _member_of(parameter, trial["hyperparameters"][parameter.field])
        returns = dict(enumerate(trial["evaluations"], start=1))
        state = {"complete": TrialState.COMPLETE, "diverged": TrialState.FAIL}.get(trial["state"], TrialState.PRUNED)
        value = trial["evaluations"][-1] if state == TrialState.COMPLETE else None
        if state == TrialState.COMPLETE and value is None:
            state = TrialState.FAIL
        return optuna.trial.create_trial(
            state=state,
            value=value,
            params={parameter.key: params[parameter.key] for parameter in self._parameters},
            distributions={parameter.key: parameter.distribution for parameter in self._parameters},
            intermediate_values={step: value for step, value in returns.items() if value is not None},
            user_attrs={RUN: job.run, PLACE: trial["number"], ENDED: trial["state"]},
        )

    def _job(self, number: int, shape: Shape) -> Job:
        population = {
            "size": self._size * self._seeds,
            "seeds": self._seeds,
            "hyperparams": {parameter.field: _distribution(parameter) for parameter in self._traced},
            "halving.rounds": self._rounds,
        }
        own = {**shape, **{f"arch.population.{name}": value for name, value in population.items()}}
        # Settings are drawn by the seed, too: no run repeats another's.
        own["arch.seed"] = self._seed + (_FURTHER + (number - 1) * _STRIDE if number else 0)
        return Job(f"runs/{number:05d}", to_overrides(own))


def divide(given: int | None, trials: int, parallel: int, num_shapes: int) -> tuple[int, int]:
    """Divide a search by successive halving into populations.

    `given`: `sweep.population`; None: `parallel`, or its largest divisor with which runs last two whole trials.
    """
    divisors = [size for size in range(parallel, 1, -1) if parallel % size == 0] or [2]
    size = given or next((size for size in divisors if trials >= 2 * size * num_shapes), divisors[-1])
    copies = 1 if given is None else max(1, parallel // (size * num_shapes))
    slots = size * copies * num_shapes
    if size < 2:
        raise ConfigError(f"sweep.population={size}: successive halving compares trials of one population: use 16")
    if trials < slots:
        raise ConfigError(
            f"sweep.trials={trials} is less than one whole trial in each of {slots} slots, {num_shapes} shape(s) ×"
            f" {size * copies}: use at least {4 * slots}, or a smaller sweep.population"
        )
    return size, copies


def _distribution(parameter: Parameter) -> dict[str, list[float]]:
    """Return the range of a parameter, as a distribution of a population."""
    distribution = parameter.distribution
    if isinstance(distribution, CategoricalDistribution):
        return {"choice": [float(value) for value in distribution.choices]}  # type: ignore[arg-type]
    assert isinstance(distribution, FloatDistribution)
    return {"log_uniform" if distribution.log else "uniform": [distribution.low, distribution.high]}


def _member_of(parameter: Parameter, value: float) -> Any:
    """Return the value of a range that a hyperparameter has, whatever its last digit."""
    distribution = parameter.distribution
    if isinstance(distribution, CategoricalDistribution):
        return min(distribution.choices, key=lambda choice: abs(float(choice) - value))  # type: ignore[arg-type]
    assert isinstance(distribution, FloatDistribution)
    return min(max(value, distribution.low), distribution.high)
