"""Sweeps by Optuna, in which trials that differ in floats train as one compiled population: `stoix-like sweep`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import sys
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from omegaconf import OmegaConf
from optuna.trial import FrozenTrial, TrialState

from stoix_like.composition import compose_config, parse_overrides, with_search
from stoix_like.config import RunConfig, parse_config
from stoix_like.errors import ConfigError, TrainingError
from stoix_like.lab.analysis.selection import FRESH_RUNS
from stoix_like.lab.tuning import study
from stoix_like.lab.tuning.parameters import KEY, Parameter, as_json, parse_space
from stoix_like.lab.tuning.progress import interquartile_means
from stoix_like.lab.tuning.results import (
    SweepResult,
    check_overrides,
    is_set_by_search,
    of_trials,
    plain,
    write_results,
)
from stoix_like.lab.tuning.runner import FRESH, Job, Runner, check_seed, population_overrides
from stoix_like.lab.tuning.shapes import Shape, describe_programs, list_shapes, population_size, shape_of
from stoix_like.overrides import Overrides, check_given_once, to_overrides
from stoix_like.run.host.plan import make_plan
from stoix_like.run.population.members import float_fields
from stoix_like.run.set_up import influence
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.schema import between, from_mapping, one_of
from stoix_like.storage.contents import parse_json, reading
from stoix_like.storage.files import check_place, locked, write_json
from stoix_like.storage.recorded_runs import flatten, identity
from stoix_like.storage.run_files import LOCK, METRICS

STUDY, SETTINGS = "study.db", "sweep.json"
_CHANGEABLE = ("trials", "parallel", "population", "fresh_seeds", "launcher", "dir")
# Composing the configuration of one takes about 0.1 s.
_MAX_CHECKED = 100
# Drawing takes seconds once there are many trials: at most this share of the time.
_DRAWING = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep.

    Attributes:
        space: ranges by key, see `parameters.parse_space`.
        trials: number of trials in the whole sweep.
        parallel: trials drawn at once, as a batch.
        population: trials of a batch that train as one population, with one value of every parameter that is not
            traced; None: `parallel`, or its largest divisor with which every shape is tried.
        shapes: number of combinations of values that are not traced, drawn without repetition; None: all of choices,
            and 8 where integers have ranges.
        seeds: seeds per trial; its value is the interquartile mean over them.
        fresh_seeds: seeds on which the best trial is trained again after the search; 0: none.
        sampler: `tpe`, `cmaes`, `random` or `grid` (five points per continuous range).
        objective: `final`, the mean return of the last evaluation, or `best`, the best policy's.
        seed: seed of the sampler.
        launcher: Hydra launcher of the populations, such as `joblib` or `submitit_slurm`; None: one after the other
            in this process.
        dir: directory of the sweep; one that holds a sweep is resumed.
    """

    space: dict[str, Any]
    trials: Annotated[int, between(1, 1_000_000)]
    parallel: Annotated[int, between(1, 100_000)] = 16
    population: Annotated[int, between(1, 100_000)] | None = None
    shapes: Annotated[int, between(1, 10_000)] | None = None
    seeds: Annotated[int, between(1, 100_000)] = 1
    fresh_seeds: Annotated[int, between(0, 100_000)] = 5
    sampler: Annotated[str, one_of(*study.SAMPLERS)] = "tpe"
    objective: Annotated[str, one_of("final", "best")] = "final"
    seed: Annotated[int, between(0, 2**32 - 1)] = 0
    launcher: str | None = None
    dir: str = "sweeps/sweep"


def sweep(
    system: str,
    overrides: Overrides = (),
    space: Mapping[str, Any] | None = None,
    *,
    config_dir: str | Path | None = None,
    **settings: Any,
) -> SweepResult:
    """Optimise hyperparameters.

    Args:
        system: name of the system.
        overrides: Hydra overrides of all trials.
        space: ranges by key, such as `{"actor_lr": {"log_uniform": [1e-5, 1e-2]}}`.
        config_dir: directory of your YAML files, laid out like the package's `configs`.
        settings: further fields of `SweepConfig`.

    Returns:
        The result.

    Raises:
        ConfigError: a setting is invalid, or the directory holds another sweep.
        TrainingError: no trial has a return.
    """
    given = {key: os.fspath(one) if isinstance(one, os.PathLike) else plain(one) for key, one in settings.items()}
    config = from_mapping(SweepConfig, {"space": as_json(space or {}), **given}, "sweep")
    extra = [] if config_dir is None else [config_dir]
    others = to_overrides(overrides)
    check_given_once(others, system=system)
    return run_sweep(config, with_search([f"system={system}", *others], extra))


def from_command_line(arguments: Sequence[str]) -> SweepResult:
    """Run the sweep of a command line."""
    own = [argument for argument in arguments if argument.startswith("sweep.")]
    parsed = parse_overrides(own)
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: a sweep has one value of {override.key_or_group}: choose one")
    values = {override.key_or_group.removeprefix("sweep."): plain(override.value()) for override in parsed}
    config = from_mapping(SweepConfig, values, "sweep")
    return run_sweep(config, [argument for argument in arguments if argument not in own])


def run_sweep(config: SweepConfig, overrides: Sequence[str], seconds: float = math.inf) -> SweepResult:
    """Run a sweep, or what is left of it; after `seconds`, no other batch starts."""
    check_overrides(overrides, "sweep.dir", launches=True)
    runner = Runner(Path(config.dir), overrides, config.launcher)
    overrides = of_trials(overrides)
    base = compose_config(overrides)
    resolved, parsed = typing.cast(dict[str, Any], OmegaConf.to_container(base)), parse_config(base)
    known = [key for key, _ in flatten(resolved)]
    parameters = parse_space(config.space, known, float_fields(type(parsed.system)))
    shapes = list_shapes(parameters, config.sampler, config.shapes, config.seed)
    for parameter in parameters:
        for value in parameter.grid(2)[:_MAX_CHECKED]:
            _check(overrides, {parameter.key: value})
    for shape in itertools.islice(shapes or (), _MAX_CHECKED):
        # What does not divide over one device does not over several.
        _check(overrides, shape, lambda config: make_plan(config, num_devices=1))
    if config.objective == "best" and not parsed.arch.absolute_metric:
        raise ConfigError("sweep.objective=best needs arch.absolute_metric=true: set it, or use sweep.objective=final")
    return Sweep(config, parameters, shapes, parsed.arch.seed, runner, seconds).run()


def _check(
    overrides: Sequence[str], values: Mapping[str, Any], further: Callable[[RunConfig], Any] = lambda config: None
) -> None:
    """Refuse values that no run can have, by their limits and a further check."""
    own = to_overrides(values)
    try:
        further(parse_config(compose_config([*overrides, *own])))
    except ConfigError as error:
        raise ConfigError(f"{KEY}: {' '.join(own)} cannot be trained: {error}") from error


def notes_on_programs(config: SweepConfig, sampling: study.Sampling, size: int) -> list[str]:
    """Return how many programs a sweep compiles, and what costs more than it needs to."""
    name, trials, parallel = sampling.sampler, config.trials, config.parallel
    populations = _list_populations(sampling, trials, size)
    num_shapes = None if sampling.shapes is None else len(sampling.shapes)
    notes = [describe_programs(sampling.parameters, num_shapes, populations, config.seeds)]
    if config.launcher is not None and any(one.traced for one in sampling.parameters) and size == parallel > 1:
        notes.append(
            f"sweep.launcher={config.launcher} has one job at a time, a population of {size} trials: use a smaller"
            " sweep.population, or a larger sweep.parallel"
        )
    if 2 * (drawn := study.random_share(name, trials, parallel)) > trials:
        notes.append(
            f"sweep.parallel={parallel}: {drawn} of {trials} trials are drawn at random, because {name} learns"
            f" between batches, from {study.STARTUP[name]} finished trial(s) on: use a smaller sweep.parallel"
            " or more sweep.trials"
        )
    return notes


def _list_populations(sampling: study.Sampling, trials: int, size: int) -> list[tuple[str, int]]:
    """Return the shape, as text, and the size of each population of a sweep."""
    if sampling.sampler == "grid":
        found = study.grid_populations(sampling, (), trials, size)
        return [(identity(shape_of(one[0], sampling.parameters)), len(one)) for one in found]
    if sampling.shapes is None:
        return [(str(number), 1) for number in range(trials)]
    starts = enumerate(range(0, trials, size))
    return [(str(number % len(sampling.shapes)), min(size, trials - start)) for number, start in starts]


class Sweep:
    """A sweep in its directory."""

    def __init__(
        self,
        config: SweepConfig,
        parameters: Sequence[Parameter],
        shapes: Sequence[Shape] | None,
        seed: int,
        runner: Runner,
        seconds: float = math.inf,
    ) -> None:
        self._end = time.perf_counter() + seconds
        self.config, self.parameters, self.seed, self.runner = config, list(parameters), seed, runner
        # How a launcher runs them changes no trial.
        self.directory, self.overrides = runner.directory, of_trials(runner.overrides)
        self._check_settings()
        logging.getLogger("optuna").setLevel(logging.WARNING)
        self._check_directory()
        self.traced = [parameter.key for parameter in parameters if parameter.traced]
        self.sampling = study.Sampling(self.parameters, shapes, config.sampler, config.seed)
        self.size = population_size(config.population, config.trials, config.parallel, len(shapes or ()))
        self.asked: dict[str, list[FrozenTrial]] = {}

    def _check_settings(self) -> None:
        config = self.config
        if any(parameter.key == "arch.seed" for parameter in self.parameters):
            raise ConfigError(f"{KEY}.arch.seed: a seed is not optimised: use sweep.seeds")
        if own := [parameter.key for parameter in self.parameters if is_set_by_search(parameter.key)]:
            raise ConfigError(f"{KEY}.{own[0]}: the search sets this key: leave it out")
        if config.population is not None and config.parallel % config.population:
            raise ConfigError(
                f"sweep.population={config.population} must divide sweep.parallel={config.parallel}: use"
                f" sweep.parallel={config.population * max(1, round(config.parallel / config.population))}"
            )
        if config.shapes is not None and config.sampler == "grid":
            raise ConfigError(f"sweep.shapes={config.shapes} does not fit sweep.sampler=grid, which tries all: omit it")
        check_seed(self.seed)
        self.runner.check()

    def _check_directory(self) -> None:
        """Create the directory, or check that it holds the same sweep."""
        if not (self.directory / SETTINGS).exists():
            # A process that is killed while it writes a file leaves a hidden one.
            if self.directory.is_dir() and not all(file.name.startswith(".") for file in self.directory.iterdir()):
                raise ConfigError(
                    f"sweep.dir={self.directory} is not empty and holds no sweep: choose another directory"
                )
            check_place(self.directory, "sweep.dir")
            self.directory.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._check_recorded(self.directory / SETTINGS)
            self.study = study.open_study(self.directory / STUDY)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked(self.directory / LOCK, f"sweep.dir={self.directory} is in use: another process sweeps there")

    def _check_recorded(self, path: Path) -> None:
        """Record what the sweep is, or compare it with what is recorded."""
        settings = {"overrides": self.overrides, **dataclasses.asdict(self.config)}
        fixed = {name: value for name, value in settings.items() if name not in _CHANGEABLE}
        if path.exists():
            with reading(path, "choose another directory"):
                before = parse_json(path.read_text(encoding="utf-8"), {}, SETTINGS)
            before["overrides"] = of_trials(before.get("overrides", ()))
            changed = [name for name, value in fixed.items() if before.get(name) != value]
            if changed:
                raise ConfigError(
                    f"sweep.dir={self.directory} holds a sweep with another {' and '.join(changed)}: choose another"
                    f" directory; only {', '.join(_CHANGEABLE[:-2])} and {_CHANGEABLE[-2]} may change"
                )
            return
        write_json(path, settings)

    def run(self) -> SweepResult:
        """Train the trials that are left, and the best one again on fresh seeds."""
        with self._locked():
            try:
                return self._run()
            except ConfigError:
                # Make room for the corrected command of a sweep that was refused before its first run.
                for name in () if (self.directory / "runs").exists() else (SETTINGS, STUDY, LOCK):
                    (self.directory / name).unlink(missing_ok=True)
                raise

    def _run(self) -> SweepResult:
        jobs, fresh_seeds = self._next_jobs(), self.config.fresh_seeds
        if jobs:
            programs, *notes = notes_on_programs(self.config, self.sampling, self.size)
            after = f"; at the end, 1 program for {fresh_seeds} fresh seed(s)" if fresh_seeds else ""
            print("\n".join([programs + after, *notes]), file=sys.stderr)
            if fresh_seeds:  # What cannot train as one population is refused before the search has been paid for.
                setting = self.study.get_trials(deepcopy=False)[0].params
                self.runner.check_population(setting, self.traced, fresh_seeds, "sweep.fresh_seeds")
        drawing = trained = 0.0
        while jobs:
            started = time.perf_counter()
            self.runner.train(jobs, self._tell, self._note_inert)
            now = time.perf_counter()
            trained += now - started
            is_due = drawing <= _DRAWING * trained
            write_results(self.directory, self.study, self.parameters, self.overrides, draws=is_due)
            if is_due:
                drawing, trained = time.perf_counter() - now, 0.0
            jobs = self._next_jobs() if time.perf_counter() < self._end else []
        if (best := study.best_trial(self.study)) is None:
            write_results(self.directory, self.study, self.parameters, self.overrides)
            raise TrainingError(
                f"none of the {len(study.finished(self.study))} trials in {self.directory} has a return: their runs"
                " failed or were stopped early; continue with a larger sweep.trials, or search other values in another"
                " sweep.dir"
            )
        assert best.value is not None
        fresh = self._confirm(best) if fresh_seeds else []
        write_results(self.directory, self.study, self.parameters, self.overrides, fresh)
        return SweepResult(self.directory, self.study, dict(best.params), best.value, fresh)

    def _next_jobs(self) -> list[Job]:
        study.ask(self.study, self.sampling, self.config.trials, self.config.parallel, self.size)
        self.asked = {trials[0].user_attrs[study.RUN]: trials for trials in study.unfinished(self.study)}
        return [self._job(run, trials) for run, trials in self.asked.items()]

    def _job(self, run: str, trials: Sequence[FrozenTrial]) -> Job:
        seeds = self.config.seeds
        # The hyperparameters of a lone member are constants of its program.
        alone = len(trials) == 1 and seeds == 1
        overrides = population_overrides([trial.params for trial in trials], () if alone else self.traced, seeds)
        # A setting that is drawn again has other seeds.
        first = self.seed + min(trial.number for trial in trials) * seeds
        return Job(run, [*overrides, f"arch.seed={first}"])

    def _tell(self, job: Job) -> None:
        trials, seeds = self.asked[job.run], self.config.seeds
        returns = self.runner.returns(job, len(trials), seeds, self.config.objective)
        values = interquartile_means(np.ravel(returns), seeds).tolist()
        for trial, value in zip(trials, values, strict=True):
            told = {"values": value} if math.isfinite(value) else {"state": TrialState.FAIL}
            # A process may have been killed after it told the first ones.
            self.study.tell(trial.number, **told, skip_if_finished=True)

    def _confirm(self, best: FrozenTrial) -> list[float]:
        """Return the returns of the best setting on fresh seeds: those that are trained, and what is missing."""
        # A setting may have been drawn more than once.
        number = min(trial.number for trial in study.finished(self.study) if trial.params == best.params)
        found: list[float] = []
        while (start := len(found)) < self.config.fresh_seeds:
            begun = self.directory.glob(f"{FRESH_RUNS}/{number:05d}-{start}-*")
            stops = {int(part.name.rpartition("-")[2]): any(part.glob(f"*/{METRICS}")) for part in begun}
            # Started runs are read or resumed, except runs without evaluations for more seeds than are needed.
            wanted = self.config.fresh_seeds
            stop = min([stop for stop, evaluated in stops.items() if evaluated or stop <= wanted] or [wanted])
            name, first = f"{FRESH_RUNS}/{number:05d}-{start}-{stop}", self.seed + FRESH + start
            of_runs = self.traced, stop - start, first, self.config.objective
            found += self.runner.train_again(name, [best.params], *of_runs)[0]
        return found[: self.config.fresh_seeds]

    def _note_inert(self, job: Job, setup: RunSetup) -> None:
        """Report what varies without an effect."""
        if job.run != study.FIRST_RUN:
            return
        names = [parameter.field for parameter in self.parameters if parameter.traced]
        for note in influence.notes(influence.effective(setup.parts, setup.env, names), names, KEY):
            print(note, file=sys.stderr)
