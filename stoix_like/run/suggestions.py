"""Choices that fit, to suggest in place of those that do not, and the experiments of this package."""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from stoix_like.composition import PRIMARY, config_dir, group_choices
from stoix_like.config import RunConfig
from stoix_like.envs.spaces import Box, Discrete, ObservationSpace, Space, fits
from stoix_like.errors import ConfigError, listed
from stoix_like.networks.requirements import check_networks
from stoix_like.networks.utils import build_networks

# Spaces of actions that every system and every network of this package is for one of.
_ACTION_SPACES = (Discrete(2), Box(-1.0, 1.0, (1,)))


def fitting_systems(network: str) -> list[str]:
    """List the systems of this package that a network fits in some environment.

    Args:
        network: choice of the network.

    Returns:
        Choices of systems, sorted.
    """
    config = _load_network(network)
    return [
        name
        for name, schema in _systems()
        if any(fits(schema, space) and _network_fits(config, schema, name, space) for space in _ACTION_SPACES)
    ]


def suggest_systems(system_name: str, action_space: Space) -> str:
    """Name the systems that support an action space, those of the same family if there are any.

    Args:
        system_name: name of the system that does not fit, `sac/ff_sac`.
        action_space: the action space of the environment.

    Returns:
        `choose system=a, b or c`.
    """
    fitting = [name for name, schema in _systems() if fits(schema, action_space)]
    family = [name for name in fitting if name.partition("/")[0] == system_name.partition("/")[0]]
    return f"choose system={listed(family or fitting, 'or')}"


def _systems() -> Iterator[tuple[str, Any]]:
    """Yield the name and the class of hyperparameters of every system of this package."""
    for name in group_choices("system"):
        module: Any = OmegaConf.load(config_dir() / "system" / f"{name}.yaml")
        build = importlib.import_module(module.module).build
        yield name, typing.get_type_hints(build)["config"]


def suggest_network(config: RunConfig, action_space: Space, observation_space: ObservationSpace) -> str:
    """Name the network of this package that fits the system and the environment and is nearest to the configured one.

    Networks with the same torsos are nearest; among them the one that the system chooses by default, then the one with
    the fewest different values.

    Args:
        config: the configuration, whose network does not fit.
        action_space: the action space of the environment.
        observation_space: the observation space of the environment.

    Returns:
        `choose network=mlp_dqn`.
    """
    fitting, default = [], _default_network(config.system_name)
    for name in group_choices("network"):
        network = _load_network(name)
        if not _network_fits(network, config.system, config.system_name, action_space, observation_space):
            continue
        torsos, values = _distance(network, config.network)
        fitting.append((torsos, name != default, values, name))
    if not fitting:
        return "no network of this package fits: write one, as docs/guides/write_your_own_system.md describes"
    return f"choose network={min(fitting)[-1]}"


@functools.cache
def _load_network(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(config_dir() / "network" / f"{name}.yaml"), resolve=True)


def _network_fits(
    network: Any, config: Any, system_name: str, action_space: Space, observation_space: ObservationSpace | None = None
) -> bool:
    """Return whether a network can be built for an environment and has what a system needs; `config` may be a class."""
    try:
        check_networks(build_networks(network, action_space, observation_space), config, system_name)
    except ConfigError:
        return False
    return True


def _default_network(system_name: str) -> str:
    """Return the network that a system of this package chooses, or that of the primary configuration."""
    path = config_dir() / "system" / f"{system_name}.yaml"
    system: Any = OmegaConf.load(path) if path.is_file() else {}
    primary: Any = OmegaConf.load(config_dir() / f"{PRIMARY}.yaml")
    entries = [dict(entry) for entry in (*system.get("defaults", ()), *primary.defaults) if not isinstance(entry, str)]
    keys = ("override /network@_global_.network", "network")
    return next(entry[key] for entry in entries for key in keys if key in entry)


def _distance(network: Any, other: Any) -> tuple[int, int]:
    """Return the numbers of different torsos and of different values between two network configurations."""
    first, second = (set(_leaves(config)) for config in (network, other))
    torsos = [{value for path, value in leaves if path.endswith("torso._target_")} for leaves in (first, second)]
    return len(torsos[0] ^ torsos[1]), len(first ^ second)


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _leaves(value, f"{path}.{name}")
    else:
        yield path, str(node)


class Experiment(NamedTuple):
    """An experiment: tuned settings of a system for an environment.

    Attributes:
        name: name of the file.
        about: the comment at its head: what it trains, and the return that it reached.
        system: choice of the system.
        env: choice of the environment.
        keys: dotted keys that it sets.
    """

    name: str
    about: str
    system: str
    env: str
    keys: frozenset[str]


def experiments() -> list[Experiment]:
    """Read the experiments of this package."""
    return [_read_experiment(name) for name in group_choices("experiment")]


def tuned_experiment(system: str, task: str) -> str | None:
    """Return the experiment that tunes a system for an environment, where it changes more than the budget.

    Args:
        system: name of the system, `sac/ff_sac`.
        task: name of the task, by default that of the environment in its suite, `Pendulum-v1`.

    Returns:
        The name of the experiment, or None.
    """
    for experiment in experiments():
        tunes = experiment.keys - {"arch.total_timesteps"}
        if tunes and experiment.system == system and _task(experiment.env) == task:
            return experiment.name
    return None


def _task(env: str) -> str:
    scenario = _load("env", env)["scenario"]
    return str(scenario.get("task_name", scenario["name"]))


def _read_experiment(name: str) -> Experiment:
    text = (config_dir() / "experiment" / f"{name}.yaml").read_text()
    comments = [line[2:] for line in text.split("defaults:")[0].splitlines() if not line.startswith("# @")]
    about = " ".join(comment.replace(f": +experiment={name}", ":") for comment in comments).rstrip(":")
    loaded = _with_bases(name)
    system, env = (
        next(_overridden(part, group, "") for part in loaded if _overridden(part, group, ""))
        for group in ("system", "env")
    )
    keys = frozenset(key for part in loaded for key in _keys({k: v for k, v in part.items() if k != "defaults"}))
    return Experiment(name, about, system, env, keys)


def _with_bases(name: str) -> list[dict[str, Any]]:
    """Load an experiment and those that it builds on, the nearest first."""
    loaded = _load("experiment", name)
    bases = [entry for entry in loaded["defaults"] if isinstance(entry, str) and entry != "_self_"]
    return [loaded, *(part for base in bases for part in _with_bases(base))]


def _overridden(loaded: dict[str, Any], group: str, default: str) -> str:
    """Return what a defaults list chooses for another group."""
    for entry in loaded.get("defaults", ()):
        if isinstance(entry, dict) and f"override /{group}" in entry:
            return entry[f"override /{group}"]
    return default


def _keys(node: dict[str, Any], path: Sequence[str] = ()) -> list[str]:
    found = []
    for name, value in node.items():
        found += _keys(value, (*path, name)) if isinstance(value, dict) else [".".join((*path, name))]
    return found


def _load(group: str, name: str) -> dict[str, Any]:
    return yaml.safe_load((config_dir() / group / f"{name}.yaml").read_text())
