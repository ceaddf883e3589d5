"""Run directories, read without executing anything that they name."""

from __future__ import annotations

import datetime
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoix_like.arch_config import PopulationConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import from_mapping
from stoix_like.storage import remote
from stoix_like.storage.config_file import plain_config
from stoix_like.storage.contents import NUMBER, check_form, reading
from stoix_like.storage.run_files import (
    CONFIG,
    LOCK,
    METRICS,
    UPDATES,
    is_locked,
    read_failure,
    read_last_record,
    read_records,
    read_summary,
)

FINISHED, RUNNING, STOPPED, FAILED = "finished", "running", "stopped", "failed"
DIVERGED = "training diverged"
RETURN = "eval/episode_return_mean"
BEST_RETURN = "absolute/episode_return_mean"
EPISODE_RETURNS = "absolute_episode_returns"
"""Of the absolute metric, `[E]` or `[P][E]`; without a slash, it is neither a curve nor a metric of each member."""
HYPERPARAMS = "hyperparams/"
# Directories inside a run, which hold no runs and many files.
_PARTS = ("checkpoints", "checkpoints-damaged", "evaluations", "tensorboard", "wandb", ".hydra")
# A mapping that one override sets as a whole.
WHOLE = "arch.population.hyperparams"
# Callbacks by which searches print their progress, which are no setting of a run.
_OF_SEARCHES = ("stoix_like.lab.tuning.", "stoix_like.tuning.")
_LAST = {"env_steps": int, RETURN: (NUMBER, [NUMBER])}
# What an environment is, apart from the wrappers around it.
TASK = ("env.env_name", "env.scenario", "env._target_", "env.kwargs", "env.params")
# Keys that change no result but through the seed.
SEEDS_AND_OUTPUT = (
    "arch.seed",
    "arch.population",
    "arch.compile_cache",
    "arch.profile",
    "arch.resume_from",
    "checkpoint",
    "logger",
)


class Run(NamedTuple):
    """A run."""

    directory: Path  # the run directory
    config: dict[str, Any]  # its resolved configuration, in plain values, without the callbacks of a search
    last: dict[str, Any]  # the record of its last evaluation; empty before the first one. Per-member values are lists
    summary: dict[str, Any]  # its results; empty before it has finished

    @property
    def history(self) -> Iterator[dict[str, Any]]:
        """One record per evaluation, read from the run directory."""
        return read_records(self.directory / METRICS)

    def series(self, metric: str) -> Series:
        """Return a metric over time, of evaluations or, as `updates/…`, between them."""
        path = self.directory / (UPDATES if metric.startswith("updates/") else METRICS)
        return _read_series(path, metric, path.stat().st_mtime_ns) if path.is_file() else Series([], [], [])

    @property
    def system(self) -> str:
        """Name of the system, `ppo/ff_ppo`."""
        return str(self.config["system"]["name"])

    @property
    def environment(self) -> str:
        """Name of the environment, `gymnax/CartPole-v1`."""
        env = self.config["env"]
        name = env["scenario"].get("task_name") or env["scenario"]["name"]
        return str(self.summary.get("environment", f"{env['env_name']}/{name}"))

    @property
    def status(self) -> str:
        """`finished`, `running`, `failed` (it ended with an error) or `stopped` (it can be resumed)."""
        failed = bool(read_failure(self.directory))
        # A run without a usable checkpoint of its end has results, and has failed.
        if self.summary and not (failed and self.summary.get("checkpoint/env_steps") != self.summary.get("env_steps")):
            return FINISHED
        if is_locked(self.directory):
            return RUNNING
        return FAILED if failed else STOPPED


class Member(NamedTuple):
    """One seed of a run."""

    run: Run
    place: int  # place in the population; 0 without one
    seed: int  # its seed
    hyperparams: dict[str, float]  # those in which it differs from the run's configuration
    failure: str | None = None  # what became non-finite, or None

    def value(self, record: Mapping[str, Any], name: str) -> float:
        """Return the value of a metric in a record, NaN if it is missing; values of the whole population are shared."""
        return self.number(record.get(name))

    def number(self, value: Any) -> float:
        """Return the member's number of a value that may be a list of all members'; NaN if it is missing."""
        if isinstance(value, list):
            value = value[self.place] if self.place < len(value) else None
        return float(value) if isinstance(value, (int, float)) else float("nan")

    def score(self, kind: str) -> float:
        """Return the mean episode return of the last evaluation, or of the best policy."""
        if kind == "best":
            return self.value(self.run.summary, BEST_RETURN)
        return float("nan") if self.failure else self.value(self.run.last, RETURN)


class Series(NamedTuple):
    """A metric over time: environment steps, wall-clock seconds, and values; None where there is none."""

    env_steps: list[float]
    wall_seconds: list[float | None]
    values: list[Any]


@functools.lru_cache(maxsize=64)
def _read_series(path: Path, metric: str, changed: int) -> Series:
    """Read a metric once for all members of a run, and again once the file has changed."""
    records = (record for record in read_records(path) if "env_steps" in record)
    found = [(record["env_steps"], record.get("wall_seconds"), record.get(metric)) for record in records]
    return Series(*map(list, zip(*found, strict=True))) if found else Series([], [], [])


def find_runs(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Find the run directories at or below the given paths."""
    found: dict[Path, None] = {}
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise ConfigError("no runs are given: give run directories, or directories that contain runs")
    for path in map(remote.local_copy, given):
        if not path.is_dir():
            raise ConfigError(f"{path} is not a directory: give run directories, or directories that contain runs")
        below = sorted(_run_directories(path.resolve()))
        if not below:
            raise ConfigError(f"{path} holds no run: a run is a directory with a {CONFIG} and a {METRICS}")
        found |= dict.fromkeys(below)
    return list(found)


def _run_directories(path: Path) -> Iterator[Path]:
    """Yield the run directories at or below a directory; a run's own subdirectories contain none."""
    for parent, directories, files in os.walk(path):
        # A sweep of Hydra has a configuration of its own above its runs, without metrics.
        if METRICS in files and CONFIG in files:
            yield Path(parent)
            directories[:] = [name for name in directories if name not in _PARTS]


def read_runs(paths: str | Path | Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """Read the runs at or below the given paths. Returns the runs, and why others could not be read."""
    runs, problems = [], []
    for directory in find_runs(paths):
        try:
            runs.append(read_run(directory))
        except ConfigError as error:
            problems.append(str(error))
    if not runs:
        raise ConfigError("; ".join(problems))
    return runs, problems


def read_run(directory: Path) -> Run:
    """Read a run."""
    last, summary = read_last_record(directory / METRICS), read_summary(directory)
    run = Run(directory, plain_config(directory), last, {k: value for k, value in summary.items() if value is not None})
    with reading(directory):
        callbacks = run.config.get("callbacks") or ()
        run.config["callbacks"] = [one for one in callbacks if not one["_target_"].startswith(_OF_SEARCHES)]
        if last:
            check_form(_LAST, last, METRICS)
        # Everything else that listings and statistics read of any run.
        _ = run.system, run.environment, int(run.config["arch"]["total_timesteps"]), budget(run)
        if not list(map(settings, samples(run))):
            raise ValueError("it has no members")
    return run


def members(run: Run) -> list[Member]:
    """Return the members of a run; without a population there is one."""
    seed = int(run.config["arch"]["seed"])
    if "population/members" in run.summary:
        # Selections change them on the way: they are no settings of a member.
        varied = [] if evolves(run) else run.summary.get("population/varied", [])
        return [
            Member(run, index, found["seed"], {name: float(found[name]) for name in varied}, found.get("failure"))
            for index, found in enumerate(run.summary["population/members"])
        ]
    if run.summary or not isinstance(run.last.get(RETURN), list):
        failure = read_failure(run.directory)
        found = {} if evolves(run) else varied_hyperparams(run.last)
        hyperparams = {name: float(value) for name, value in found.items()}
        return [Member(run, 0, seed, hyperparams, failure if DIVERGED in failure else None)]
    return list(_members_of_records(run))


def samples(run: Run) -> list[Member]:
    """Return the members of a run that are independent of each other, for statistics."""
    found = members(run)
    if not evolves(run):
        return found
    # The last evaluation chooses, so that no episode of the absolute metric did.
    return [found[run.last.get("population/best_member", 0)]._replace(seed=int(run.config["arch"]["seed"]))]


def _members_of_records(run: Run) -> Iterator[Member]:
    """Yield the members of a population in a run that has not finished."""
    last = run.last
    population = from_mapping(PopulationConfig, run.config["arch"]["population"], "arch.population")
    varied = {} if evolves(run) else varied_hyperparams(last)
    # A run ends before its next evaluation where all members diverged.
    failed = range(len(last[RETURN])) if DIVERGED in read_failure(run.directory) else last.get("population/failed", ())
    for index in range(len(last[RETURN])):
        hyperparams = {name: values[index] for name, values in varied.items()}
        seed = _seed(run, population, index)
        yield Member(run, index, seed, hyperparams, DIVERGED if index in failed else None)


def varied_hyperparams(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters in a record, by name; lists of per-member values in a population."""
    return {name.removeprefix(HYPERPARAMS): value for name, value in record.items() if name.startswith(HYPERPARAMS)}


def _seed(run: Run, population: PopulationConfig, index: int) -> int:
    first, own = divmod(index, population.seeds)
    return int(run.config["arch"]["seed"]) + own + (0 if population.is_paired else first * population.seeds)


def evolves(run: Run) -> bool:
    """Return whether selections change the members of a run: population-based training."""
    pbt = (run.config["arch"].get("population") or {}).get("pbt") or {}
    return pbt.get("every_evals") is not None


def budget(run: Run) -> int:
    """Return the environment steps that each member of a run is to train for."""
    return int(run.config["arch"]["total_timesteps"])


def flatten(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a configuration by dotted key; a list is a leaf, an empty mapping has none."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and key != WHOLE:
            yield from flatten(value, key)
        else:
            yield key, value


def settings(member: Member, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return what determines the results of a member, apart from its seed."""
    hidden = (*SEEDS_AND_OUTPUT, *without)
    found = {key: value for key, value in flatten(member.run.config) if not is_below(key, hidden)}
    if evolves(member.run):
        found |= flatten({"arch": {"population": member.run.config["arch"]["population"]}})
    varied = {f"system.{name}": value for name, value in member.hyperparams.items()}
    return found | {key: value for key, value in varied.items() if not is_below(key, without)}


def task_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run that make its task."""
    return {key: value for key, value in flatten(run.config) if is_below(key, TASK)}


def task_names(runs: Sequence[Run]) -> list[str]:
    """Name the task of each run: its environment, and the arguments and parameters that differ there between runs."""
    by_run = list(map(task_settings, runs))
    rivals: dict[str, list[dict[str, Any]]] = {}
    for run, arguments in zip(runs, by_run, strict=True):
        rivals.setdefault(run.environment, []).append(arguments)
    words = {environment: _words(differing_keys(arguments)) for environment, arguments in rivals.items()}
    return [
        " ".join(
            [run.environment, *(f"{word}={own[key]}" for key, word in words[run.environment].items() if key in own)]
        )
        for run, own in zip(runs, by_run, strict=True)
    ]


def _words(keys: Sequence[str]) -> dict[str, str]:
    """Return short names of keys below `env`: without `kwargs` or `params`, unless two keys would share one."""
    full = {key: key.removeprefix("env.") for key in keys}
    short = {key: word.removeprefix("kwargs.").removeprefix("params.") for key, word in full.items()}
    return {key: word if [*short.values()].count(word) == 1 else full[key] for key, word in short.items()}


def differing_keys(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys with different values in the mappings, in the order of their first mapping."""
    keys = dict.fromkeys(key for one in chosen for key in one)
    return [key for key in keys if len({identity(one.get(key, "missing")) for one in chosen}) > 1]


def identity(values: Any) -> str:
    """Return a text that is equal for equal settings."""
    return json.dumps(values, sort_keys=True)


def is_below(key: str, prefixes: Iterable[str]) -> bool:
    """Return whether a dotted key is one of the given keys, or below one of them."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def started(run: Run) -> datetime.datetime:
    """Return when the run started: when its directory was created, as far as the file system knows."""
    sources = (run.directory / name for name in (".hydra/overrides.yaml", LOCK))
    source = next(filter(Path.exists, sources), run.directory / CONFIG)
    return datetime.datetime.fromtimestamp(source.stat().st_mtime).astimezone()
