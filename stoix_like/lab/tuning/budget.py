"""Budgets of `tune`: what fits into a wall time, or into a number of steps."""

from __future__ import annotations

import dataclasses
import itertools
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoix_like.callbacks import Callback, Response
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.lab.tuning.parameters import Parameter
from stoix_like.lab.tuning.runner import population_overrides
from stoix_like.loggers.console import ConsoleConfig
from stoix_like.loggers.formats import format_seconds
from stoix_like.loggers.make import LoggerConfig
from stoix_like.run import experiment
from stoix_like.run.prepare import prepare

SLOTS = (16, 8, 4)
"""Numbers of settings that train at a time, the preferred one first."""
SEEDS = (8, 4)
"""Seeds of each finalist, and fresh seeds, likewise: final returns of few seeds flatter settings that are unstable."""
_LEAST_SECONDS = 120.0  # compiling and timing alone take about half of that
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_FORMS = "a wall time, 10min or 2h, or a number of environment steps (arch=offline: gradient steps), 5e7"
# With one round, the search would only draw at random.
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 64
# Intervals of the run that is timed, and how long they are timed for.
_LEAST_INTERVALS, _SHORT_INTERVALS, _SECONDS_TIMED = 2, 200, 4.0
# Evaluations take longer once episodes do, and another process may slow this one down.
_MARGIN = 0.85


class Budget(NamedTuple):
    """A budget: one of both."""

    seconds: float | None = None  # wall time
    steps: float | None = None  # environment steps, or gradient steps of `arch=offline`, over all members


class BudgetStages(NamedTuple):
    """Plan of a search within a budget."""

    slots: int  # settings that train at a time
    rounds: int  # batches of the search, of one trial per slot
    deadline: float | None = None  # seconds after which no other batch starts; None: none
    seeds: int = SEEDS[0]  # seeds of each finalist, and fresh seeds


class Cost(NamedTuple):
    """Time that training a population takes."""

    start: float  # seconds until the first evaluation is done, compilation included
    round: float  # seconds of one trial per slot


def parse_budget(text: str | float) -> Budget:
    """Read a budget."""
    found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*(s|min|h|)\s*", str(text))
    if found is None:
        raise ConfigError(f"budget={text} must be {_FORMS}")
    if not found[2]:
        return Budget(steps=float(found[1]))
    if (seconds := float(found[1]) * _UNITS[found[2]]) < _LEAST_SECONDS:
        raise ConfigError(f"budget={text} is too short: compiling alone takes about a minute, use at least 2min")
    return Budget(seconds=seconds)


def tail_rounds(slots: int, seeds: int) -> float:
    """Return the rounds that follow a search: finalists on further seeds, then the last two settings on fresh ones."""
    return (count_finalists(slots) + 2) * seeds / slots


def count_finalists(slots: int) -> int:
    """Return the number of settings that compete on further seeds, the configured one included."""
    return max(2, slots // 4)


def plan_steps(steps: float, trial_steps: int, slots: int | None, unit: str) -> BudgetStages:
    """Divide a number of steps. `slots`: settings that train at a time; None: as many as fit."""
    for seeds, number in itertools.product(SEEDS, (slots,) if slots else SLOTS):
        rounds = steps / (number * trial_steps) - tail_rounds(number, seeds)
        if rounds >= _LEAST_ROUNDS:
            return BudgetStages(number, min(int(rounds), _MOST_ROUNDS), seeds=seeds)
    least = trial_steps * number * (_LEAST_ROUNDS + tail_rounds(number, seeds))
    raise ConfigError(
        f"budget={steps:g} {unit} are too few to tune trials of arch.total_timesteps={trial_steps:,}: use"
        f" at least {least:.3g}, or a smaller arch.total_timesteps"
    )


def plan_seconds(seconds: float, cost: Cost, slots: int, spent: float) -> BudgetStages | None:
    """Divide a wall time, `spent` seconds less; return None if the search would be too short."""
    for seeds in SEEDS:
        left = seconds - spent - _tail_seconds(cost, slots, seeds)
        one = _round_seconds(cost)
        if left >= _LEAST_ROUNDS * one:
            # The deadline ends the search, and leaves room for its last round.
            return BudgetStages(slots, _MOST_ROUNDS, left - one, seeds)
    return None


def least_seconds(cost: Cost, slots: int, spent: float) -> float:
    """Return the smallest wall time that `plan_seconds` has a plan for."""
    return spent + _tail_seconds(cost, slots, SEEDS[-1]) + _LEAST_ROUNDS * _round_seconds(cost)


def describe_seconds(seconds: float, cost: Cost, plan: BudgetStages, spent: float) -> str:
    """Return where a wall time goes, as text. `spent`: seconds that have passed."""
    later = _tail_seconds(cost, plan.slots, plan.seeds)
    search = min(seconds - spent - later, plan.rounds * _round_seconds(cost))
    return (
        f"of {format_seconds(seconds)}, {format_seconds(spent)} went into compiling and timing;"
        f" {format_seconds(search)} for the search, {format_seconds(later)} for finalists and {plan.seeds} fresh seeds;"
        f" one round of {plan.slots} settings takes {cost.round:.3g} s"
    )


def describe_steps(steps: float, trial_steps: int, plan: BudgetStages, unit: str) -> str:
    """Return where a number of steps goes, as text."""
    one = plan.slots * trial_steps
    return (
        f"of {steps:.3g} {unit}, {plan.rounds * one:.3g} for the search and"
        f" {tail_rounds(plan.slots, plan.seeds) * one:.3g} for finalists and {plan.seeds} fresh seeds; one round of"
        f" {plan.slots} settings takes {one:.3g}"
    )


def _tail_seconds(cost: Cost, slots: int, seeds: int) -> float:
    """Return the seconds of what is not the search itself."""
    rounds = tail_rounds(slots, seeds)
    return cost.round * rounds / _MARGIN + 0.5 * (2.0 + rounds) * cost.start


def _round_seconds(cost: Cost) -> float:
    # Later runs have the programs of the first one, from the cache of the compiler.
    return cost.round / _MARGIN + 0.5 * cost.start


class _Stopwatch(Callback):
    """Stops a run once its intervals and evaluations have been timed."""

    def __init__(self) -> None:
        self.started = 0.0
        self.evaluations = 0

    def on_evaluation(self, record: Mapping[str, Any], policy: Any) -> Response:
        self.evaluations += 1
        if self.evaluations == 1:
            self.started = time.perf_counter()
        timed = self.evaluations > _LEAST_INTERVALS
        return False if timed and time.perf_counter() - self.started > _SECONDS_TIMED else None


def measure(overrides: Sequence[str], parameters: Sequence[Parameter], slots: int, beside: Path) -> Cost:
    """Train a population of random settings for a few seconds, in a directory that is removed, on the disk `beside`."""
    rng = np.random.default_rng(0)
    columns = {parameter.key: rng.permutation(parameter.grid(slots)) for parameter in parameters}
    settings = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    own = population_overrides(settings, columns, seeds=1)
    watch, started = _Stopwatch(), time.perf_counter()
    config = parse_config(compose_config([*overrides, *own]))
    evaluations = config.arch.num_evaluation
    arch = dataclasses.replace(config.arch, num_evaluation=max(evaluations, _SHORT_INTERVALS))
    # It is no run of the search: nothing of it is shown, copied or sent.
    checkpoint = dataclasses.replace(config.checkpoint, mirror=None)
    logger = LoggerConfig(
        console=ConsoleConfig(enabled=False),
        every_updates=config.logger.every_updates,
        diagnostics=config.logger.diagnostics,
    )
    own_code: dict[str, Any] = {"loggers": {}, "callbacks": (), "custom_callbacks": (watch,)}
    config = config._replace(arch=arch, checkpoint=checkpoint, logger=logger, **own_code)
    disk = next(place for place in beside.absolute().parents if place.is_dir())
    with tempfile.TemporaryDirectory(prefix=".stoix_like-", dir=disk) as directory:
        prepared = prepare(config, Path(directory) / "run")
        summary = experiment.run(prepared).summary
    num_updates, timing = prepared.setup.plan.num_updates, summary["timing"]
    start = watch.started - started
    update = timing["training"] / max(1, summary["updates"])
    # Logging and checkpoints go with an evaluation.
    evaluation = sum(timing.get(phase, 0.0) for phase in ("evaluation", "logging", "checkpoints")) / watch.evaluations
    return Cost(start, update * num_updates + evaluation * min(evaluations, num_updates))
