"""Sweeps by Optuna, in which trials that differ in floats train as one compiled population: `stoix-like sweep`."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import optuna
from omegaconf import OmegaConf
from optuna.trial import FrozenTrial, Trial, TrialState

from stoix_like.callbacks import Callback, Response
from stoix_like.composition import compose_config, parse_overrides
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError, TrainingError
from stoix_like.overrides import Overrides, is_hydras, to_overrides
from stoix_like.run import experiment
from stoix_like.run.influence import find_influence
from stoix_like.run.population import float_fields
from stoix_like.run.setup import RunSetup, set_up
from stoix_like.schema import at_least, between, from_mapping, one_of
from stoix_like.storage.files import write_json
from stoix_like.storage.recorded_runs import BEST_RETURN, FINISHED, RETURN, flatten, members, read_run
from stoix_like.storage.run_files import read_summary
from stoix_like.tuning.launch import check_launcher, launch
from stoix_like.tuning.results import SweepResult, plain, write_results
from stoix_like.tuning.space import Parameter, parse_space
from stoix_like.tuning.study import RUN, SAMPLERS, STARTUP, ask, finished, open_study, random_share, unfinished

STUDY, SETTINGS = "study.db", "sweep.json"
_CHANGEABLE = ("trials", "parallel", "launcher", "dir")

Train = Callable[[Sequence[FrozenTrial]], tuple[Sequence[float], bool]]
"""Trains one population; returns the mean return of each trial, and whether all were pruned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of a sweep.

    Attributes:
        space: ranges by key, see `space.parse_space`.
        trials: number of trials in the whole sweep.
        parallel: trials drawn at once; those that differ in floats alone are one population.
        seeds: seeds per trial; its value is the mean over them.
        sampler: `tpe`, `cmaes`, `random` or `grid` (five points per continuous range).
        pruner: `hyperband` stops a population once all its trials are pruned; `none` trains every one to its end.
        objective: `final`, the mean return of the last evaluation, or `best`, that of the best policy.
        seed: seed of the sampler.
        launcher: Hydra launcher of runs that cannot be one population, such as `joblib` or `submitit_slurm`; None: one
            after the other in this process.
        dir: directory of the sweep; one that holds a sweep is resumed.
    """

    space: dict[str, Any]
    trials: Annotated[int, between(1, 1_000_000)]
    parallel: Annotated[int, between(1, 100_000)] = 16
    seeds: Annotated[int, between(1, 100_000)] = 1
    sampler: Annotated[str, one_of(*SAMPLERS)] = "tpe"
    pruner: Annotated[str, one_of("hyperband", "none")] = "none"
    objective: Annotated[str, one_of("final", "best")] = "final"
    seed: Annotated[int, at_least(0)] = 0
    launcher: str | None = None
    dir: str = "sweeps/sweep"


def sweep(
    system: str, overrides: Overrides = (), space: Mapping[str, Any] | None = None, **settings: Any
) -> SweepResult:
    """Optimise hyperparameters.

    Args:
        system: name of the system.
        overrides: Hydra overrides of all trials.
        space: ranges by key, such as `{"actor_lr": {"log_uniform": [1e-5, 1e-2]}}`.
        settings: further fields of `SweepConfig`.

    Returns:
        The result.

    Raises:
        ConfigError: a setting is invalid, or the directory holds another sweep.
        TrainingError: no trial has a return.
    """
    config = from_mapping(SweepConfig, {"space": dict(space or {}), **settings}, "sweep")
    return run_sweep(config, [f"system={system}", *to_overrides(overrides)])


def from_command_line(arguments: Sequence[str]) -> SweepResult:
    """Run the sweep of a command line.

    Args:
        arguments: `sweep.key=value` for the fields of `SweepConfig`, and Hydra overrides of all trials.

    Returns:
        The result.
    """
    own = [argument for argument in arguments if argument.startswith("sweep.")]
    parsed = parse_overrides(own)
    values = {override.key_or_group.removeprefix("sweep."): plain(override.value()) for override in parsed}
    config = from_mapping(SweepConfig, values, "sweep")
    return run_sweep(config, [argument for argument in arguments if argument not in own])


def run_sweep(config: SweepConfig, overrides: Sequence[str]) -> SweepResult:
    """Run a sweep, or what is left of it.

    Args:
        config: its settings.
        overrides: Hydra overrides of all trials.

    Returns:
        The result.

    Raises:
        ConfigError: a setting is invalid, or the directory holds another sweep.
        TrainingError: no trial has a return.
    """
    base = compose_config(overrides)
    resolved = typing.cast(dict[str, Any], OmegaConf.to_container(base))
    known = [key for key, _ in flatten(resolved)]
    parameters = parse_space(config.space, known, float_fields(type(parse_config(base).system)))
    return Sweep(config, list(overrides), parameters).run()


class Sweep:
    """A sweep in its directory.

    Args:
        config: its settings.
        overrides: Hydra overrides of all trials.
        parameters: what varies.
    """

    def __init__(self, config: SweepConfig, overrides: list[str], parameters: Sequence[Parameter]) -> None:
        self.config, self.overrides, self.parameters = config, overrides, list(parameters)
        self.directory = Path(config.dir)
        if config.launcher is not None:
            self._check_launcher()
        self._check_directory()
        logging.getLogger("optuna").setLevel(logging.WARNING)
        pruner = optuna.pruners.HyperbandPruner() if config.pruner == "hyperband" else optuna.pruners.NopPruner()
        self.study = open_study(self.directory / STUDY, pruner)

    def _check_launcher(self) -> None:
        if self.config.pruner != "none":
            raise ConfigError(
                f"sweep.pruner={self.config.pruner} stops runs of this process alone: use sweep.pruner=none, or no"
                " sweep.launcher"
            )
        check_launcher(self._launcher_overrides())

    def _check_directory(self) -> None:
        """Create the directory, or check that it holds the same sweep."""
        path = self.directory / SETTINGS
        settings = {"overrides": self.overrides, **dataclasses.asdict(self.config)}
        fixed = {name: value for name, value in settings.items() if name not in _CHANGEABLE}
        if path.exists():
            before = json.loads(path.read_text())
            changed = [name for name, value in fixed.items() if before.get(name) != value]
            if changed:
                raise ConfigError(
                    f"sweep.dir={self.directory} holds a sweep with another {' and '.join(changed)}: choose another"
                    " directory; only trials, parallel and launcher may change"
                )
            return
        # A process that is killed while it writes a file leaves a hidden one.
        if self.directory.is_dir() and not all(file.name.startswith(".") for file in self.directory.iterdir()):
            raise ConfigError(f"sweep.dir={self.directory} is not empty and holds no sweep: choose another directory")
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)

    def run(self, train: Train | None = None) -> SweepResult:
        """Train the trials that are left.

        Args:
            train: trains a population, in place of this package.

        Returns:
            The result.

        Raises:
            TrainingError: no trial has a return.
        """
        config = self.config
        self._note_random()
        while True:
            ask(self.study, self.parameters, config.sampler, config.seed, config.trials, config.parallel)
            if not (groups := unfinished(self.study)):
                break
            self._train_all(groups, train or self._train)
            write_results(self.directory, self.study, self.parameters, self.overrides)
        write_results(self.directory, self.study, self.parameters, self.overrides)
        if not any(trial.state == TrialState.COMPLETE for trial in finished(self.study)):
            raise TrainingError(
                f"none of the {len(finished(self.study))} trials in {self.directory} has a return: their runs failed or"
                " were stopped early; continue with a larger sweep.trials, or search other values in another sweep.dir"
            )
        best = self.study.best_trial
        assert best.value is not None
        return SweepResult(self.directory, self.study, dict(best.params), best.value)

    def _note_random(self) -> None:
        """Report that most of the sweep is a random search."""
        name, trials, parallel = self.config.sampler, self.config.trials, self.config.parallel
        if 2 * (drawn := random_share(name, trials, parallel)) > trials:
            print(
                f"sweep.parallel={parallel}: {drawn} of {trials} trials are drawn at random, because {name} learns"
                f" between batches, from {STARTUP[name]} finished trial(s) on: use a smaller sweep.parallel or more"
                " sweep.trials",
                file=sys.stderr,
            )

    def _train_all(self, groups: Sequence[Sequence[FrozenTrial]], train: Train) -> None:
        """Train populations, one after the other or by the launcher."""
        if self.config.launcher is None:
            for trials in groups:
                self._tell(trials, *train(trials))
            return
        common = [override for override in self.overrides if not is_hydras(override)]
        jobs = [[*common, *self._overrides_of(trials)] for trials in groups]
        run_dirs = [trials[0].user_attrs[RUN] for trials in groups]
        try:
            launch(jobs, run_dirs, self.directory, self._launcher_overrides())
        except Exception:
            # What is finished needs no job when the sweep is resumed.
            self._tell_all([trials for trials in groups if read_summary(self._run_dir(trials))])
            raise
        self._tell_all(groups)

    def _tell_all(self, groups: Sequence[Sequence[FrozenTrial]]) -> None:
        for trials in groups:
            self._tell(trials, *self._read_returns(trials))

    def _run_dir(self, trials: Sequence[FrozenTrial]) -> Path:
        return self.directory / trials[0].user_attrs[RUN]

    def _launcher_overrides(self) -> list[str]:
        return [f"hydra/launcher={self.config.launcher}", *filter(is_hydras, self.overrides)]

    def _train(self, trials: Sequence[FrozenTrial]) -> tuple[Sequence[float], bool]:
        run_dir = self._run_dir(trials)
        pruning = Pruning([Trial(self.study, trial._trial_id) for trial in trials], self.config.seeds)
        given = [*self.overrides, *self._overrides_of(trials), *to_overrides({"arch.resume_from": str(run_dir)})]
        config = parse_config(compose_config(given))._replace(own_callbacks=(pruning,))
        if config.checkpoint.mirror is not None:
            config = config.with_mirror(f"{config.checkpoint.mirror}/{trials[0].user_attrs[RUN]}")
        setup = set_up(config)
        if trials[0].number == 0 and any(parameter.traced for parameter in self.parameters):
            self._note_inert(setup)
        try:
            experiment.run(setup, run_dir)
        except TrainingError as error:
            # Its trials have failed; the others go on.
            print(f"{run_dir}: {error}", file=sys.stderr)
        return self._read_returns(trials)

    def _note_inert(self, setup: RunSetup) -> None:
        """Report what varies without an effect."""
        names = [parameter.field for parameter in self.parameters if parameter.traced]
        influence = find_influence(setup.inference, setup.env, names)
        for note in influence.notes(names, setup.spec.networks, "sweep.space"):
            print(note, file=sys.stderr)

    def _overrides_of(self, trials: Sequence[FrozenTrial]) -> list[str]:
        seeds, params = self.config.seeds, [trial.params for trial in trials]
        traced = [parameter for parameter in self.parameters if parameter.traced]
        fixed = {parameter.key: params[0][parameter.key] for parameter in self.parameters if not parameter.traced}
        if len(trials) == 1 or not traced:
            own = {parameter.key: params[0][parameter.key] for parameter in traced}
            return to_overrides({**fixed, **own, "arch.population.size": seeds * (1 if traced else len(trials))})
        values = {parameter.field: [float(one[parameter.key]) for one in params] for parameter in traced}
        population = {"hyperparams": values, "mode": "zip", "seeds": seeds}
        return to_overrides({**fixed, **{f"arch.population.{name}": value for name, value in population.items()}})

    def _read_returns(self, trials: Sequence[FrozenTrial]) -> tuple[Sequence[float], bool]:
        """Return the mean return of each trial of a run, and whether the run ended because all were pruned."""
        name = BEST_RETURN if self.config.objective == "best" else RETURN
        run = read_run(self._run_dir(trials))
        trained = members(run) if run.status == FINISHED else []
        returns = []
        for place in range(len(trials)):
            own = trained[place * self.config.seeds : (place + 1) * self.config.seeds]
            values = [member.value(run.summary, name) for member in own]
            returns.append(sum(values) / len(values) if values else math.nan)
        return returns, run.summary.get("stopped_by") == Pruning.__name__

    def _tell(self, trials: Sequence[FrozenTrial], returns: Sequence[float], pruned: bool) -> None:
        for trial, value in zip(trials, returns, strict=True):
            state = TrialState.PRUNED if pruned else TrialState.COMPLETE
            if not math.isfinite(value):
                state = TrialState.FAIL
            # A process may have been killed after it told the first ones.
            told = value if state == TrialState.COMPLETE else None
            self.study.tell(trial.number, told, state, skip_if_finished=True)


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
            value = sum(own) / len(own)
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
