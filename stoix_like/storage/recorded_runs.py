"""Run directories, read without executing anything that they name."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoix_like.config import PopulationConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import from_mapping
from stoix_like.storage import remote
from stoix_like.storage.config_file import plain_config, without_default_inputs
from stoix_like.storage.run_files import (
    CONFIG,
    METRICS,
    UPDATES,
    is_locked,
    read_failure,
    read_history,
    read_summary,
    read_updates,
)

FINISHED, RUNNING, STOPPED, FAILED = "finished", "running", "stopped", "failed"
RETURN = "eval/episode_return_mean"
BEST_RETURN = "absolute/episode_return_mean"
HYPERPARAMS = "hyperparams/"
# A mapping that one override sets as a whole.
WHOLE = "arch.population.hyperparams"
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
    """A run.

    Attributes:
        directory: the run directory.
        config: its resolved configuration, in plain values.
        history: one record per evaluation; per-member values are lists.
        summary: its results; empty before it has finished.
    """

    directory: Path
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any]

    def records(self, metric: str) -> list[dict[str, Any]]:
        """Return the records that a metric is in: of `logger.every_updates` for `updates/…`, else of evaluations."""
        if not metric.startswith("updates/"):
            return self.history
        path = self.directory / UPDATES
        return _read_updates(self.directory, path.stat().st_mtime_ns) if path.is_file() else []

    @property
    def system(self) -> str:
        """Name of the system, `ppo/ff_ppo`."""
        return str(self.config["system"]["name"])

    @property
    def environment(self) -> str:
        """Name of the environment, `gymnax/CartPole-v1`."""
        env = self.config["env"]
        return str(self.summary.get("environment", f"{env['env_name']}/{env['scenario']['name']}"))

    @property
    def status(self) -> str:
        """`finished`, `running`, `failed` (it ended with an error) or `stopped` (it can be resumed)."""
        if self.summary:
            return FINISHED
        if is_locked(self.directory):
            return RUNNING
        return FAILED if read_failure(self.directory) else STOPPED


class Member(NamedTuple):
    """One seed of a run.

    Attributes:
        run: the run.
        place: place in the population; 0 without one.
        seed: its seed.
        hyperparams: those in which it differs from the run's configuration.
        failure: what became non-finite, or None.
    """

    run: Run
    place: int
    seed: int
    hyperparams: dict[str, float]
    failure: str | None = None

    def value(self, record: Mapping[str, Any], name: str) -> float:
        """Return the value of a metric in a record, NaN if it is missing; values of the whole population are shared."""
        value = record.get(name)
        if isinstance(value, list):
            value = value[self.place] if self.place < len(value) else None
        return float("nan") if value is None or isinstance(value, (str, dict)) else float(value)


@functools.lru_cache(maxsize=8)
def _read_updates(directory: Path, changed: int) -> list[dict[str, Any]]:
    """Read the records between evaluations once for all members of a run, and again once the file has changed."""
    del changed
    return read_updates(directory)


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Find the run directories at or below the given paths.

    Args:
        paths: run directories, and directories that contain runs, or their addresses on an object store.

    Returns:
        The run directories, each once.

    Raises:
        ConfigError: a path is not a directory, or holds no run.
    """
    found: dict[Path, None] = {}
    for path in map(remote.local_copy, paths):
        if not path.is_dir():
            raise ConfigError(f"{path} is not a directory: give run directories, or directories that contain runs")
        # A sweep of Hydra has a configuration of its own above its runs, without metrics.
        below = sorted(file.parent.resolve() for file in path.rglob(METRICS) if (file.parent / CONFIG).exists())
        if not below:
            raise ConfigError(f"{path} holds no run: a run is a directory with a {CONFIG} and a {METRICS}")
        found |= dict.fromkeys(below)
    return list(found)


def read_run(directory: Path) -> Run:
    """Read a run.

    Args:
        directory: the run directory.

    Returns:
        The run.

    Raises:
        ConfigError: its configuration is missing or cannot be read.
    """
    config = plain_config(directory)
    if not isinstance(config.get("system"), Mapping) or not isinstance(config.get("env"), Mapping):
        raise ConfigError(f"{directory / CONFIG} is not the configuration of a run: system or env is missing")
    return Run(directory, config, read_history(directory), read_summary(directory))


def members(run: Run) -> list[Member]:
    """Return the members of a run; without a population there is one.

    Args:
        run: the run, finished or not.

    Returns:
        Its members.
    """
    seed = int(run.config["arch"]["seed"])
    if "population/members" in run.summary:
        # Population-based training changes them on the way: they are no settings of a member.
        varied = [] if evolves(run) else run.summary.get("population/varied", [])
        return [
            Member(run, index, found["seed"], {name: found[name] for name in varied}, found.get("failure"))
            for index, found in enumerate(run.summary["population/members"])
        ]
    if run.summary or not any(isinstance(value, list) for value in (run.history or [{}])[-1].values()):
        return [Member(run, 0, seed, {})]
    return _members_of_records(run)


def samples(run: Run) -> list[Member]:
    """Return the members of a run that are independent of each other, for statistics.

    Args:
        run: the run, finished or not.

    Returns:
        Its members; of population-based training, whose members copy each other, the best one alone, with the seed of
        the run.
    """
    found = members(run)
    if not evolves(run):
        return found
    best = (run.history or [{}])[-1].get("population/best_member", 0)
    return [found[best]._replace(seed=int(run.config["arch"]["seed"]))]


def _members_of_records(run: Run) -> list[Member]:
    """Return the members of a population whose run has not finished."""
    last, arch = run.history[-1], run.config["arch"]
    population = from_mapping(PopulationConfig, arch["population"], "arch.population")
    names = [] if evolves(run) else [name for name in last if name.startswith(HYPERPARAMS)]
    members = []
    for index in range(len(last[RETURN])):
        seed = int(arch["seed"]) + (index % population.seeds if population.is_paired else index)
        hyperparams = {name.removeprefix(HYPERPARAMS): last[name][index] for name in names}
        members.append(Member(run, index, seed, hyperparams))
    return members


def evolves(run: Run) -> bool:
    """Return whether a run is one of population-based training.

    Args:
        run: the run.
    """
    population = run.config["arch"].get("population") or {}
    return (population.get("pbt") or {}).get("every_evals") is not None


def flatten(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a configuration by dotted key; a list is a leaf, an empty mapping has none.

    Args:
        node: the configuration.
        path: key of `node`.

    Yields:
        Pairs of a key and a value.
    """
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and key != WHOLE:
            yield from flatten(value, key)
        else:
            yield key, value


def settings(member: Member, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return what determines the results of a member, apart from its seed.

    Args:
        member: the member.
        without: further keys to leave out, each with all below it.

    Returns:
        Values by dotted key.
    """
    hidden = (*SEEDS_AND_OUTPUT, *without)
    found = {
        key: value for key, value in flatten(without_default_inputs(member.run.config)) if not is_below(key, hidden)
    }
    if evolves(member.run):
        found |= flatten({"arch": {"population": member.run.config["arch"]["population"]}})
    return found | {f"system.{name}": value for name, value in member.hyperparams.items()}


def identity(values: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal settings."""
    return json.dumps(values, sort_keys=True)


def is_below(key: str, prefixes: Iterable[str]) -> bool:
    """Return whether a dotted key is one of the given keys, or below one of them."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def started(run: Run) -> datetime.datetime:
    """Return when the run started: when its directory was created, as far as the file system knows."""
    hydra = run.directory / ".hydra/overrides.yaml"
    source = hydra if hydra.exists() else run.directory / ".lock"
    source = source if source.exists() else run.directory / CONFIG
    return datetime.datetime.fromtimestamp(source.stat().st_mtime).astimezone()
