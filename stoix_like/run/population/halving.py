"""Successive halving within a population: the slots of trials that lose at a rung start other trials.

Seeds and hyperparameters of members are arguments of the compiled programs, so a new trial compiles nothing: the
program that initialises a few members runs with the new seeds and settings, as often as it takes, and puts them in the
places of the others. Decisions depend only on the records of the run (`run.population.trials`), and the setting of a
trial on `arch.seed` and its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from stoix_like.architectures.types import LearnerState
from stoix_like.callbacks import Callback, StopAtReturn, StopWithoutImprovement
from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError
from stoix_like.run.host.plan import Plan
from stoix_like.run.host.saved_state import Best
from stoix_like.run.population.members import KEY, Population, bounded, check_ends, convert_values, draw, ends
from stoix_like.run.population.selection import Selected
from stoix_like.run.population.trials import Rules, Trials, interquartile_means
from stoix_like.storage.recorded_runs import TRIALS

Restart = Callable[[LearnerState, Population, Sequence[int]], LearnerState]
"""`(state, population, members) -> state`, in which some members start from scratch; donates the state."""

_HALVING = f"{KEY}.halving"


class Halving:
    """Successive halving."""

    entry = "population/next_trials"
    restarts = True

    def __init__(self, run: RunConfig, plan: Plan, restart: Restart) -> None:
        self._run, self._plan, self._start_anew = run, plan, restart
        self._seeds = run.arch.population.seeds
        self._trials = Trials(make_rules(run, plan))

    def is_due(self, evaluation: int) -> bool:
        """Return whether there is a selection after the evaluation with this number: not after the one at step 0."""
        return evaluation > 0

    def describe(self, population: Population) -> dict[str, Any]:
        """Return the trial of each slot, for the record of an evaluation."""
        return {TRIALS: list(population.strata[:: self._seeds])}

    def improved(
        self,
        population: Population,
        scores: np.ndarray,
        failures: Collection[int],
        history: Sequence[Mapping[str, Any]],
        best: Best,
    ) -> np.ndarray:
        """Return the members with a trial that has just become complete, and is the best one of its slot."""
        trials, rules = self._trials.take(history).by_number, self._trials.rules
        failed = {member // self._seeds for member in failures}
        complete = [
            slot not in failed and len(trials[number].scores if number in trials else ()) + 1 == rules.evaluations
            for slot, number in enumerate(population.strata[:: self._seeds])
        ]
        own = interquartile_means(scores, self._seeds)
        before = interquartile_means(best.trained_returns(self._plan.warmup_steps), self._seeds)
        return np.repeat(complete & (own > before), self._seeds)

    def __call__(self, state: LearnerState, population: Population, history: Sequence[Mapping[str, Any]]) -> Selected:
        """Start other trials in the slots of those that are over."""
        trials = self._trials.take(history)
        slots = trials.to_replace(len(self._plan.evaluations) - (len(history) - 1))
        numbers = list(population.strata[:: self._seeds])
        for slot, number in zip(slots, itertools.count(max(self._trials.by_number) + 1), strict=False):
            numbers[slot] = number
        members = [slot * self._seeds + index for slot in slots for index in range(self._seeds)]
        if members:
            population = self._restart(population, slots, numbers)
            state = self._start_anew(state, population, members)
        return Selected(state, population, {self.entry: numbers}, members)

    def _restart(self, population: Population, slots: Sequence[int], numbers: Sequence[int]) -> Population:
        """Return the members, with the seeds and the settings of the trials that start in some slots."""
        seeds, strata = list(population.seeds), list(population.strata)
        columns = {name: list(values) for name, values in population.hyperparams.items()}
        for slot in slots:
            own = slice(slot * self._seeds, (slot + 1) * self._seeds)
            seeds[own] = seeds_of(self._run, numbers[slot])
            strata[own] = [numbers[slot]] * self._seeds
            for name, value in draw_setting(self._run, numbers[slot]).items():
                columns[name][own] = [value] * self._seeds
        hyperparams = {name: tuple(values) for name, values in columns.items()}
        return Population(tuple(seeds), hyperparams, tuple(strata))


def make_rules(run: RunConfig, plan: Plan) -> Rules:
    """Return what decides about the trials of a run."""
    config = run.arch.population.halving
    return Rules(plan.trial_evaluations, run.arch.population.seeds, config.eta, config.rungs)


def seeds_of(run: RunConfig, number: int) -> range:
    """Return the seeds of the members of a trial."""
    population = run.arch.population
    first = run.arch.seed + (0 if population.is_paired else number * population.seeds)
    return range(first, first + population.seeds)


def draw_setting(run: RunConfig, number: int) -> dict[str, float]:
    """Draw the setting of a trial that starts in the slot of another one."""
    rng = np.random.default_rng(np.random.SeedSequence([run.arch.seed, number]))
    found = {}
    for name, (key, distribution) in sorted(_distributions(run).items()):
        (found[name],) = convert_values(run.system, name, draw(rng, key, distribution, 1))
    return found


def check(run: RunConfig, population: Population, plan: Plan, on_host: bool) -> None:
    """Refuse settings with which trials could not be compared, or not start from scratch."""
    config = run.arch.population.halving
    if config.rounds is None:
        if config.bounds:
            raise ConfigError(
                f"{_HALVING}.bounds={config.bounds} are the ranges of successive halving, which is off: set"
                f" {_HALVING}.rounds=8"
            )
        return
    rounds = f"{_HALVING}.rounds={config.rounds:g}"
    if run.arch.population.evolves:
        raise ConfigError(
            f"{rounds} does not fit {KEY}.pbt.every_evals, which changes members as well: set one to null"
        )
    if not population.hyperparams:
        raise ConfigError(
            f"{rounds} compares hyperparameters: give {KEY}.hyperparams ranges,"
            " {actor_lr: {log_uniform: [1e-5, 1e-2]}}"
        )
    if population.num_members == run.arch.population.seeds:
        raise ConfigError(f"{rounds} needs several trials at a time: set {KEY}.size={8 * run.arch.population.seeds}")
    if on_host:
        raise ConfigError(
            f"{rounds}: the environments of {run.environment_name} run on the host, where members cannot restart one by"
            " one: use an environment that is written in jax"
        )
    if run.arch.stop_at_return is not None:
        raise ConfigError(
            f"{rounds} does not fit arch.stop_at_return={run.arch.stop_at_return:g}, which would stop all trials at"
            " once: set it to null"
        )
    if run.arch.init_from is not None:
        raise ConfigError(f"{rounds} does not fit arch.init_from: trials that start later would start from nothing")
    _check_rungs(run, plan)
    _check_seeds(run, population, plan)
    _check_ranges(run, plan)


def check_callbacks(run: RunConfig, callbacks: Sequence[Callback]) -> None:
    """Refuse callbacks that judge all trials as one."""
    rounds = run.arch.population.halving.rounds
    for callback in callbacks if rounds is not None else ():
        if isinstance(callback, StopAtReturn | StopWithoutImprovement):
            raise ConfigError(
                f"{_HALVING}.rounds={rounds:g} does not fit the callback {type(callback).__name__}, which would stop"
                " all trials at once: omit it"
            )


def _check_rungs(run: RunConfig, plan: Plan) -> None:
    config, rules = run.arch.population.halving, make_rules(run, plan)
    levels = (*rules.levels, rules.evaluations)
    if any(low >= high for low, high in itertools.pairwise(levels)):
        least = config.eta**config.rungs
        by_budget = f"arch.total_timesteps for {least} updates"
        more = f"arch.num_evaluation={least}" if least <= plan.trial_updates else by_budget
        raise ConfigError(
            f"{_HALVING}.rungs={config.rungs} are too many for {rules.evaluations} evaluation(s) of a trial of"
            f" {plan.trial_updates} updates: set {more}, or fewer rungs"
        )


def _check_seeds(run: RunConfig, population: Population, plan: Plan) -> None:
    most = len(plan.evaluations) * population.num_members + population.num_members
    if run.arch.seed + most > 2**32:
        raise ConfigError(
            f"arch.seed={run.arch.seed} is too large for the seeds of up to {most} members, which must be below 2**32:"
            f" use at most {2**32 - most}"
        )


def _check_ranges(run: RunConfig, plan: Plan) -> None:
    limits = {}
    for name, (key, distribution) in _distributions(run).items():
        draw(np.random.default_rng(0), key, distribution, 1)
        ((kind, arguments),) = distribution.items()
        values = convert_values(run.system, name, arguments if kind == "choice" else ends(f"{key}.{kind}", arguments))
        limits[name] = key, min(values), max(values)
    check_ends(run, limits, plan.check)


def _distributions(run: RunConfig) -> dict[str, tuple[str, Any]]:
    """Return by name what the hyperparameters of later trials are drawn from, each with its key."""
    config = run.arch.population
    bounds = config.halving.bounds or {}
    found = bounded(config, bounds, f"{_HALVING}.bounds")
    for name, (key, values) in found.items():
        if name not in bounds and isinstance(values, (list, tuple)):
            raise ConfigError(
                f"{key}={list(values)} has no values for later trials: set {_HALVING}.bounds.{name}"
                " to {uniform: [low, high]}, {log_uniform: [low, high]} or {choice: [...]}"
            )
    return found
