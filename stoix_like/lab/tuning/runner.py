"""Runs of a sweep: one after the other in this process, or as the jobs of a Hydra launcher."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import OmegaConf

from hydra_plugins import stoix_like_ray
from stoix_like.composition import SEARCH, complete_overrides, compose_config, hydra_session
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError, ProcessLostError, TrainingError
from stoix_like.overrides import is_hydras, is_launchers, quoted, to_overrides
from stoix_like.run import experiment
from stoix_like.run import jobs as running
from stoix_like.run.prepare import mirror_job, prepare
from stoix_like.run.set_up.setup import RunSetup, set_up
from stoix_like.storage.files import write_text
from stoix_like.storage.recorded_runs import DIVERGED, FINISHED, members, read_run
from stoix_like.storage.run_files import FAILURE, read_failure, read_summary

# First seeds of the finalists of a search, and of the best setting, relative to `arch.seed`, where a search starts.
FINALISTS, FRESH = 1_000_000, 2_000_000
_MAX_SEED = 2**31
_NO_RESULTS = "it left no results"


class LostRunsError(TrainingError):
    """Runs of a sweep that failed for another reason than training that diverged, and may be tried again."""


class Job(NamedTuple):
    """A run of a sweep."""

    run: str  # its directory, relative to the sweep's
    overrides: Sequence[str]  # Hydra overrides in which it differs from the other runs


def population_overrides(
    settings: Sequence[Mapping[str, Any]], traced: Collection[str], seeds: int, paired: bool = False
) -> list[str]:
    """Return the Hydra overrides of a population."""
    fixed = {key: value for key, value in settings[0].items() if key not in traced}
    varied = [key for key in settings[0] if key in traced]
    values = {key.removeprefix("system."): [float(one[key]) for one in settings] for key in varied}
    population: dict[str, Any] = {"size": seeds * len(settings)}
    if varied:
        population = {"hyperparams": values, "mode": "zip", "seeds": seeds} | ({"paired": True} if paired else {})
    return to_overrides({**fixed, **{f"arch.population.{name}": value for name, value in population.items()}})


def check_seed(seed: int) -> None:
    """Refuse a seed of a search that leaves no valid further seeds for runs."""
    if seed > _MAX_SEED:
        raise ConfigError(f"arch.seed={seed} leaves no room for the further seeds of a search: use at most {_MAX_SEED}")


def check_set_up(overrides: Sequence[str]) -> RunSetup:
    """Build and check a run that is not trained."""
    setup = set_up(parse_config(compose_config(overrides)))
    setup.close()
    return setup


class Runner(NamedTuple):
    """Runner of a sweep, which trains its runs."""

    directory: Path  # the directory of the sweep
    overrides: Sequence[str]  # Hydra overrides of all runs
    launcher: str | None = None  # Hydra launcher; None: one run after the other in this process

    def check(self) -> None:
        """Refuse a launcher that is unknown or not installed, and options of Hydra that have no effect without one."""
        if self.launcher is None:
            hydras = filter(is_hydras, self.overrides)
            if unused := next((override for override in hydras if not override.startswith(f"{SEARCH}=")), None):
                raise ConfigError(f"{unused} has no effect without sweep.launcher: set it, or leave this out")
            return
        config = compose_config(self._launcher_overrides(), return_hydra_config=True)
        if config.hydra.launcher.get("_target_", "").startswith(stoix_like_ray.__name__):
            stoix_like_ray.check_installed()

    def check_population(self, setting: Mapping[str, Any], traced: Collection[str], seeds: int, key: str) -> None:
        """Refuse seeds of a setting that cannot train as one population here; launchers' jobs have other devices."""
        given = [*self.overrides, *population_overrides([setting], traced, seeds, paired=True)]
        if self.launcher is not None:
            parse_config(compose_config([override for override in given if not is_launchers(override)]))
            return
        try:
            check_set_up(given)
        except ConfigError as error:
            check_set_up([*self.overrides, *population_overrides([setting], traced, 1, paired=True)])
            raise ConfigError(f"{key}={seeds} is more than train as one population: use less: {error}") from error

    def train(
        self,
        jobs: Iterable[Job],
        finished: Callable[[Job], None],
        starting: Callable[[Job, RunSetup], None] = lambda job, setup: None,
    ) -> None:
        """Train the runs that are not complete; those that were interrupted are resumed."""
        jobs, lost = list(jobs), list[Job]()
        tried = {job.run for job in jobs if read_failure(self.directory / job.run)}

        def end(job: Job) -> None:
            path = self.directory / job.run / FAILURE
            # A run that ended, without results, by what may not happen again.
            is_lost = DIVERGED not in read_failure(path.parent) and not self.has_results(job.run)
            if is_lost and not path.exists():  # it was tried, and did not record that itself
                with contextlib.suppress(OSError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, f"{_NO_RESULTS}\n")
            if is_lost and job.run not in tried:
                lost.append(job)
            else:
                finished(job)

        left = [job for job in jobs if not self.has_results(job.run)]
        for job in jobs:
            if job not in left:
                finished(job)
            elif self.launcher is None:
                self._train_here(job, starting)
                end(job)
        if left and self.launcher is not None:
            self._launch(left, finished)
            for job in left:
                end(job)
        if lost:
            first = self.directory / lost[0].run
            reason = (read_failure(first) or _NO_RESULTS).splitlines()[0]
            raise LostRunsError(
                f"{len(lost)} of {len(jobs)} runs failed, first {first} ({reason}): the same command tries them once"
                " more"
            )

    def has_results(self, run: str) -> bool:
        """Return whether a run has results, and not from parameters that were lost after its last checkpoint."""
        summary = read_summary(self.directory / run)
        with contextlib.suppress(ConfigError):  # of a configuration that cannot be read
            # Without any checkpoint, the run could not continue.
            return bool(summary) and (
                summary.get("checkpoint/env_steps") is None or read_run(self.directory / run).status == FINISHED
            )
        return False

    def returns(self, job: Job, settings: int, seeds: int, objective: str) -> list[list[float]]:
        """Return the returns that a run has reached."""
        values = [math.nan] * (settings * seeds)
        if self.has_results(job.run):
            values = [member.score(objective) for member in members(read_run(self.directory / job.run))]
        return [values[place * seeds : (place + 1) * seeds] for place in range(settings)]

    def train_again(
        self,
        name: str,
        settings: Sequence[Mapping[str, Any]],
        traced: Collection[str],
        seeds: int,
        first_seed: int,
        objective: str,
    ) -> list[list[float]]:
        """Train settings that differ only in traced hyperparameters on other seeds, as one population."""
        # None is no value of a member.
        varied = [key for key in settings[0] if key in traced and settings[0][key] is not None]
        population = population_overrides(settings, varied, seeds, paired=True)
        job = Job(f"{name}/00", (*population, f"arch.seed={first_seed}"))
        self.train([job], lambda job: None)
        return self.returns(job, len(settings), seeds, objective)

    def _train_here(self, job: Job, starting: Callable[[Job, RunSetup], None]) -> None:
        run_dir = self.directory / job.run
        given = [*self.overrides, *job.overrides, *to_overrides({"arch.resume_from": str(run_dir)})]
        prepared = prepare(mirror_job(parse_config(compose_config(given)), job.run), run_dir)
        starting(job, prepared.setup)
        try:
            experiment.run(prepared)
        except ProcessLostError:
            raise  # No other run can start without that process.
        except (TrainingError, jax.errors.JaxRuntimeError, MemoryError) as error:
            # The others continue, also after one that exhausts the memory.
            _check_devices()
            print(f"{run_dir}: {error}", file=sys.stderr)

    def _launcher_overrides(self) -> list[str]:
        # Hydra would replace the handlers of the program's own log.
        silent = "hydra/hydra_logging=none"
        return [f"hydra/launcher={self.launcher}", silent, *filter(is_hydras, self.overrides)]

    def _launch(self, jobs: Sequence[Job], finished: Callable[[Job], None]) -> None:
        common = [override for override in self.overrides if not is_hydras(override)]
        given = [*self._launcher_overrides(), f"hydra.sweep.dir={quoted(str(self.directory))}", "hydra.mode=MULTIRUN"]
        config = compose_config(given, return_hydra_config=True)
        OmegaConf.set_readonly(config, False)
        OmegaConf.update(config, "hydra.job.config_name", "config", force_add=True)
        OmegaConf.update(config, "hydra.overrides.hydra", given)
        with hydra_session():
            # A callback that does nothing stands for Hydra's own list of them, which has the same methods.
            context = HydraContext(GlobalHydra.instance().config_loader(), Callback())  # type: ignore[arg-type]
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=context, task_function=running.train, config=config
            )
            placed = [
                [*complete_overrides([*common, *job.overrides]), f"hydra.sweep.subdir={quoted(job.run)}"]
                for job in jobs
            ]
            try:
                for launched in launcher.launch(placed, initial_job_idx=0):
                    _ = launched.return_value
            except Exception as error:
                # What is finished needs no job when the sweep is resumed.
                for job in (job for job in jobs if self.has_results(job.run)):
                    finished(job)
                if isinstance(error, ConfigError) or os.environ.get("HYDRA_FULL_ERROR"):
                    raise
                raise running.failure(error) from error


def _check_devices() -> None:
    """Raise the error of a device that was lost."""
    for device in jax.local_devices():
        try:
            jax.block_until_ready(jax.device_put(np.zeros(()), device))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
