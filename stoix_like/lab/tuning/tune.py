"""From an environment and a budget to a tuned configuration.

Three stages, each of which resumes: a sweep by TPE over the default space of the system; its best settings
and the configured one on further seeds, which select one; that one and the configured one on fresh seeds, which select
nothing.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optuna

from stoix_like.arch_config import ArchConfig
from stoix_like.composition import compose_config, group_choices, parse_overrides, with_search
from stoix_like.config import RunConfig, flatten, parse_config
from stoix_like.envs.custom import as_overrides
from stoix_like.errors import ConfigError, TrainingError
from stoix_like.lab.analysis import statistics
from stoix_like.lab.analysis.figures import save
from stoix_like.lab.analysis.selection import TUNE, SelectedMember, describe_fresh
from stoix_like.lab.tuning import budget as budgets
from stoix_like.lab.tuning.budget import Budget, BudgetStages
from stoix_like.lab.tuning.default_space import default_space
from stoix_like.lab.tuning.parameters import Parameter, as_json, parse_space
from stoix_like.lab.tuning.progress import TuningProgress, interquartile_means
from stoix_like.lab.tuning.results import as_experiment, check_overrides, draw, importance, of_trials, train_line
from stoix_like.lab.tuning.runner import FINALISTS, FRESH, LostRunsError, Runner, check_seed, check_set_up
from stoix_like.lab.tuning.study import complete, finished
from stoix_like.lab.tuning.sweep import SweepConfig, run_sweep
from stoix_like.overrides import Overrides, check_given_once, to_overrides
from stoix_like.run.population.members import float_fields
from stoix_like.schema import get_value
from stoix_like.storage.contents import parse_json, reading
from stoix_like.storage.files import check_place, locked, write_json, write_text
from stoix_like.storage.run_files import LOCK, read_summary

if TYPE_CHECKING:
    import pandas as pd

PICTURE, TUNED, RETURNS = "tuned.png", "configs/experiment/tuned.yaml", "fresh.csv"
_PROGRESS = f"{TuningProgress.__module__}.{TuningProgress.__qualname__}"
# Of every run: its last evaluation counts, and the progress is printed once.
_QUIET = ("arch.absolute_metric=false", "logger.console.enabled=false")
_EVALUATIONS = "arch.num_evaluation"
_SIGNIFICANT = 0.05


class TuneResult(NamedTuple):
    """Result of `tune`."""

    directory: Path  # its directory
    study: optuna.Study  # the Optuna study of the search
    # Values of the tuned setting by key; those of the configured one where no other was better.
    params: dict[str, float]
    improved: bool  # whether another setting was better
    selected_return: float  # interquartile mean of the further seeds that selected it
    fresh_returns: list[float]  # final return of the tuned setting, by fresh seed
    default_returns: list[float]  # with the configured setting, on the same seeds

    @property
    def overrides(self) -> list[str]:
        """The tuned setting as Hydra overrides."""
        return to_overrides(self.params)

    @property
    def frame(self) -> pd.DataFrame:
        """The trials of the search as a data frame."""
        return self.study.trials_dataframe(("number", "value", "params", "state"))


class Request(NamedTuple):
    """Request to `tune`."""

    overrides: list[str]  # Hydra overrides of all trials
    space: dict[str, Any]  # ranges by name
    budget: str  # as it was given

    @property
    def of_runs(self) -> list[str]:
        """Hydra overrides of all runs: the trials', and what the command decides."""
        return [*self.overrides, *_QUIET, *_evaluations(self.overrides)]


def tune(
    env: Any,
    system: str = "ppo/ff_ppo",
    budget: str | float = "10min",
    overrides: Overrides = (),
    *,
    space: Mapping[str, Any] | None = None,
    slots: int | None = None,
    directory: str | Path | None = None,
    config_dir: str | Path | None = None,
) -> TuneResult:
    """Tune the hyperparameters of a system for an environment.

    Args:
        env: name of an environment, as listed by `stoix-like list envs`; or your class or function, which can be
            imported, or its import path.
        system: name of the system.
        budget: wall time, `"10min"`, or environment steps of the whole search, `5e7`; with `arch=offline`, gradient
            steps.
        overrides: Hydra overrides of all trials; hyperparameters that are given there are not searched.
        space: ranges by name, in place of or in addition to those of the default space; None as a range removes one.
        slots: settings that train at a time; by default 16, or 8 or 4 where the budget needs it.
        directory: where to write; what was interrupted there continues. By default `sweeps/tune/<system>/<env>`.
        config_dir: directory of your YAML files, laid out like the package's `configs`.

    Returns:
        The study, the overrides of the tuned setting, and returns on fresh seeds.

    Raises:
        ConfigError: a setting is invalid, the budget is too small, or the directory holds something else.
        TrainingError: no trial has a return.
    """
    started = time.perf_counter()
    if slots is not None and slots < 2:
        raise ConfigError(f"slots={slots} must be at least 2: the search compares settings")
    given = with_search(to_overrides(overrides), [] if config_dir is None else [Path(config_dir).expanduser()])
    check_given_once(given, system=system, env=env)
    check_overrides(given, "--out", launches=False)
    chosen = _environment(env)
    limits = budgets.parse_budget(budget)
    base = [f"system={system}", *chosen, *given]
    config = parse_config(compose_config([*base, *_evaluations(base)]))
    where = Path(directory or f"sweeps/tune/{config.system_name}/{config.env.scenario.task_name}")
    check_seed(config.arch.seed)
    ranges = _space(base, given, space)
    parameters = _parameters(config, ranges)
    request = Request(base, ranges, str(budget))
    default = {parameter.key: float(get_value(config.system, parameter.field)) for parameter in parameters}
    plan = _read_plan(where, request, slots)
    if plan is None:
        check_place(where, "--out")
        # Before the time of a step is measured.
        _check_search(request, slots or min(budgets.SLOTS), budgets.SEEDS[-1])
        plan = _make_plan(request, limits, parameters, slots, config.arch, started, where)
        _check_search(request, plan.slots, plan.seeds)
        where.mkdir(parents=True, exist_ok=True)
    with locked(where / LOCK, f"--out={where} is in use: another process tunes there"):
        # Another process may have written its plan meanwhile.
        plan = _read_plan(where, request, slots) or _write_plan(where, request, plan)
        trial = f"arch.total_timesteps={config.arch.total_timesteps:,}"
        print(f"{where}: {len(ranges)} hyperparameters, {plan.slots} at a time, up to {plan.rounds} rounds of {trial}")
        return _Tuning(where, request, config, plan, parameters, default).run()


@dataclasses.dataclass
class _Tuning:
    """The stages of `tune` in their directory."""

    directory: Path
    request: Request
    config: RunConfig
    plan: BudgetStages
    parameters: Sequence[Parameter]
    default: dict[str, float]  # the configured setting

    def run(self) -> TuneResult:
        """Train what is left of the stages, and write what was found."""
        study = self._search()
        best, selected = self._select(study)
        improved = best != self.default
        fresh = self._retrain("fresh", [self.default, best] if improved else [best], FRESH)
        result = TuneResult(self.directory, study, best, improved, selected, fresh[-1], fresh[0])
        self._write(result)
        return result

    def _search(self) -> optuna.Study:
        slots = self.plan.slots
        trials, place = slots * self.plan.rounds, self.directory / "search"
        config = SweepConfig(space=self.request.space, trials=trials, parallel=slots, fresh_seeds=0, dir=str(place))
        # The runs of a command that was interrupted took their part of the time.
        spent = sum(read_summary(run).get("wall_seconds", 0.0) for run in place.glob("runs/*"))
        try:
            study = run_sweep(config, self._overrides("search"), (self.plan.deadline or math.inf) - spent).study
        except LostRunsError:
            raise
        except TrainingError as error:
            raise TrainingError(
                f"no setting of the search in {self.directory} has a return after arch.total_timesteps: give a larger"
                " budget or other ranges, and another directory"
            ) from error
        # What the time left out stays out when the command is given again.
        self.plan = self.plan._replace(rounds=-(-len(finished(study)) // slots))
        _write_plan(self.directory, self.request, self.plan)
        return study

    def _select(self, study: optuna.Study) -> tuple[dict[str, float], float]:
        """Train the best settings and the configured one on further seeds; return the best, and its return there."""
        ranked = sorted(complete(study), key=lambda trial: -(trial.value or 0.0))
        others = ranked[: budgets.count_finalists(self.plan.slots) - 1]
        settings = [self.default, *(dict(trial.params) for trial in others)]
        returns = self._retrain("finalists", settings, FINALISTS)
        centers = list(map(_center, returns))
        best = centers.index(max(centers))
        return settings[best], centers[best]

    def _retrain(self, stage: str, settings: Sequence[Mapping[str, float]], first_seed: int) -> list[list[float]]:
        """Train settings on seeds, in populations of the size of the search where that holds their seeds."""
        together = _together(self.plan.slots, self.plan.seeds)
        runner, seed = Runner(self.directory, self._overrides(stage)), self.config.arch.seed + first_seed
        traced = [parameter.key for parameter in self.parameters]
        found = []
        for start in range(0, len(settings), together):
            name, own = f"{stage}/{start // together}", settings[start : start + together]
            found += runner.train_again(name, own, traced, self.plan.seeds, seed, "final")
        return found

    def _overrides(self, stage: str) -> list[str]:
        progress = {"_target_": _PROGRESS, "stage": stage, "seeds": 1 if stage == "search" else self.plan.seeds}
        callbacks = to_overrides({"callbacks": [*self.config.callbacks, progress]})
        return [*self.request.of_runs, *callbacks]

    def _write(self, result: TuneResult) -> None:
        """Write the tuned setting, also as an experiment, the returns on fresh seeds, and the picture."""
        by_name = _by_name(result)
        about = [f"{name}: {describe_fresh(returns)}" for name, returns in by_name.items()]
        (self.directory / TUNED).parent.mkdir(parents=True, exist_ok=True)
        write_text(self.directory / TUNED, as_experiment(self.request.overrides, result.params, about))
        rows = [f"{name},{seed},{value!r}\n" for name, returns in by_name.items() for seed, value in enumerate(returns)]
        write_text(self.directory / RETURNS, "".join(["setting,fresh_seed,return\n", *rows]))
        trials = complete(result.study)
        number = next((trial.number for trial in trials if trial.params == result.params), None)
        selected = SelectedMember(len(trials), number, result.selected_return, result.params, result.fresh_returns)
        selected.write(self.directory)
        if len(trials) > 1:
            save(draw(result.study, self.parameters, by_name), self.directory / PICTURE)


def _by_name(result: TuneResult) -> dict[str, list[float]]:
    tuned = {"tuned": result.fresh_returns} if result.improved else {}
    return {"configured": result.default_returns, **tuned}


def _verdict(result: TuneResult) -> str:
    if not result.improved:
        return "verdict: no setting was better than the configured one on the seeds of the finalists"
    tuned, configured = result.fresh_returns, result.default_returns
    diverged = [name for name, returns in _by_name(result).items() if math.isinf(_center(returns))]
    if diverged:
        kept = ": keep the configured setting" if "tuned" in diverged else ""
        return f"verdict: {' and '.join(diverged)} diverged{kept}"
    difference = _center(tuned) - _center(configured)
    test, p, direction = _compare(np.asarray(tuned), np.asarray(configured))
    if difference <= 0.0:
        words = "the tuned setting is not better, keep the configured one"
    elif p < _SIGNIFICANT and direction > 0.0:
        words = "the tuned setting is better"
    else:
        words = "no evidence that the tuned setting is better"
    return f"verdict: {words}: {difference:+.4g} ({statistics.TITLES[test]}: p = {p:.2g})"


def _compare(tuned: np.ndarray, configured: np.ndarray) -> tuple[str, float, float]:
    """Return the name of a test, its p-value, and a positive number if it favours the tuned setting.

    Seeds that diverged have no mean, and constant returns no variance: these are compared by their ranks.
    """
    test = "mann_whitney" if math.isnan(statistics.p_value("welch", tuned, configured)) else "welch"
    lowest = np.nanmin([*tuned, *configured]) - 1.0
    returns = [np.nan_to_num(one, nan=lowest) for one in (tuned, configured)]
    return test, statistics.p_value(test, *returns), statistics.direction(test, *returns)


def _center(returns: Sequence[float]) -> float:
    """Return the interquartile mean; -inf, worse than any other, of a setting that diverges."""
    return float(interquartile_means(returns, len(returns))[0])


def describe_tuned(result: TuneResult) -> str:
    """Return what was found as text."""
    shares = ", ".join(f"{key.removeprefix('system.')} {share:.0%}" for key, share in importance(result.study).items())
    lines = [f"importance: {shares or 'undecided'}"]
    lines += [f"{name + ':':<11} {describe_fresh(returns)}" for name, returns in _by_name(result).items()]
    lines += [f"selected by: return {result.selected_return:.4g}, the best of the finalists"]
    lines += [" ".join(f"{key}={value:.4g}" for key, value in result.params.items())]
    return "\n".join([*lines, _verdict(result), train_line(result.directory / TUNED)])


def _environment(env: Any) -> list[str]:
    """Return the overrides that choose an environment."""
    if not isinstance(env, str):
        found = as_overrides(env)
        if "env._target_=''" in found:
            raise ConfigError("env: tuning resumes in other processes: pass a class or function that can be imported")
        return found
    is_path = "." in env and "/" not in env and env not in group_choices("env")
    return [f"env._target_={env}" if is_path else f"env={env}"]


def _evaluations(overrides: Sequence[str]) -> list[str]:
    """Return the override with few evaluations, the last of which counts; none where the user has set their number."""
    is_given = any(one.key_or_group == _EVALUATIONS for one in parse_overrides(overrides))
    return [] if is_given else [f"{_EVALUATIONS}=4"]


def _space(base: Sequence[str], given: Sequence[str], space: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the default space with the changes of the user."""
    fixed = {one.key_or_group.removeprefix("system.") for one in parse_overrides(list(given))}
    setup = check_set_up(base)
    if not isinstance(space, Mapping | None):
        raise ConfigError(f"space={space} must be ranges by name, {{clip_eps: {{uniform: [0.1, 0.3]}}}}")
    own = {name.removeprefix("system."): one for name, one in as_json(dict(space or {})).items()}
    ranges: dict[str, Any] = {**default_space(setup, fixed), **own}
    ranges = {name: one for name, one in ranges.items() if one is not None}
    if not ranges:
        raise ConfigError(f"{setup.config.system_name} has no hyperparameters to search: give ranges, space={{…}}")
    return ranges


def _parameters(config: RunConfig, ranges: Mapping[str, Any]) -> list[Parameter]:
    """Return what varies, and refuse what one program cannot vary or what has no configured value to start from."""
    known = [key for key, _ in flatten(config.resolved)]
    parameters = parse_space(ranges, known, float_fields(type(config.system)))
    for parameter in parameters:
        if not parameter.traced or not parameter.is_numeric:
            raise ConfigError(
                f"space.{parameter.field}: one program varies only ranges of floats: use stoix-like sweep"
            )
        if get_value(config.system, parameter.field) is None:
            raise ConfigError(f"space.{parameter.field}: {parameter.key} is null: set it to a number")
    return parameters


def _read_plan(directory: Path, request: Request, slots: int | None) -> BudgetStages | None:
    """Return the plan that the directory holds; None if it holds nothing."""
    path = directory / TUNE
    if path.exists():
        with reading(path, "choose another directory"):
            before = parse_json(path.read_text(encoding="utf-8"), {"request": {}, "plan": {}}, TUNE)
            plan = BudgetStages(**before["plan"])
            recorded = before["request"] | {"overrides": of_trials(before["request"].get("overrides", ()))}
        if recorded != request._asdict():
            changed = [name for name, value in request._asdict().items() if recorded.get(name) != value]
            problem = f"another search, with another {' and '.join(changed)}"
            raise ConfigError(f"{directory} holds {problem}: choose another directory")
        if slots not in (None, plan.slots):
            problem = f"a search with slots={plan.slots}, not {slots}"
            raise ConfigError(f"{directory} holds {problem}: choose another directory")
        return plan
    # A process that is killed while it writes a file leaves a hidden one.
    if directory.is_dir() and not all(file.name.startswith(".") for file in directory.iterdir()):
        raise ConfigError(f"{directory} is not empty and holds nothing of this command: choose another directory")
    return None


def _check_search(request: Request, slots: int, seeds: int) -> None:
    """Refuse what the search, or training its best settings on further seeds, would refuse."""
    population = {"size": slots, "hyperparams": request.space}
    own = to_overrides({f"arch.population.{name}": value for name, value in population.items()})
    check_set_up([*request.of_runs, *own])
    try:
        check_set_up([*request.of_runs, f"arch.population.size={_together(slots, seeds) * seeds}"])
    except ConfigError as error:
        check_set_up(request.of_runs)  # what keeps any run from training is said as it is
        raise ConfigError(f"slots={slots}: finalists train in populations of {seeds} seeds: {error}") from error


def _together(slots: int, seeds: int) -> int:
    """Return the number of settings that train on further seeds as one population."""
    return max(1, slots // seeds)


def _write_plan(directory: Path, request: Request, plan: BudgetStages) -> BudgetStages:
    write_json(directory / TUNE, {"request": request._asdict(), "plan": plan._asdict()})
    return plan


def _make_plan(
    request: Request,
    limits: Budget,
    parameters: Sequence[Parameter],
    slots: int | None,
    arch: ArchConfig,
    started: float,
    directory: Path,
) -> BudgetStages:
    trial_steps, unit = arch.total_timesteps, arch.step_unit.replace("env ", "environment ")
    if limits.steps is not None:
        plan = budgets.plan_steps(limits.steps, trial_steps, slots, unit)
        print(budgets.describe_steps(limits.steps, trial_steps, plan, unit))
        return plan
    assert limits.seconds is not None
    numbers, takes, least = (slots,) if slots else budgets.SLOTS, "", 0.0
    for place, number in enumerate(numbers, start=1):
        print(f"compiling and timing {number} settings at a time, up to a minute …", flush=True)
        cost = budgets.measure(request.of_runs, parameters, number, directory)
        spent = time.perf_counter() - started
        if best := budgets.plan_seconds(limits.seconds, cost, number, spent):
            print(budgets.describe_seconds(limits.seconds, cost, best, spent))
            return best
        takes = f"one round of {number} trials of arch.total_timesteps={trial_steps:,} takes {cost.round:.0f} s here"
        takes += f", after {spent:.0f} s of compiling and timing and before finalists and fresh seeds"
        # Fewer slots cost less, but hardly less than in proportion.
        costs = {one: cost._replace(round=cost.round * one / number) for one in numbers[place - 1 :]}
        least = min(budgets.least_seconds(one, fewer, spent) for fewer, one in costs.items())
        if least > 1.5 * limits.seconds:
            break
    raise ConfigError(
        f"budget={request.budget} is too short: {takes}: use at least {math.ceil(least / 60)}min, or a smaller"
        " arch.total_timesteps"
    )
