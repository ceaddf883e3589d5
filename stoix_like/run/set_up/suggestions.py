"""Choices that fit, to suggest in place of those that do not, and the experiments of this package."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from stoix_like.base_types import SystemConfig
from stoix_like.composition import PRIMARY, config_dir, group_choices
from stoix_like.config import RunConfig, import_build, schema_of
from stoix_like.envs.ids import rows
from stoix_like.envs.spaces import ObservationSpace, Space, fits
from stoix_like.errors import ConfigError, listed
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.networks.requirements import check_networks

# The start of the name of a network that says what reads observations.
_TORSO = re.compile("^(mlp|cnn|resnet|grid)(_large)?_?")


def suggest_systems(system_name: str, action_space: Space) -> str:
    """Name the systems of the same family that support an action space, or else of the default family."""
    families = (name.partition("/")[0] for name in (system_name, _chosen(_load(".", PRIMARY), "system")))
    fitting = (
        [name for name, schema in schemas(f"{family}/").items() if fits(schema, action_space)] for family in families
    )
    return f"choose system={listed(next(filter(None, fitting)), 'or')}"


def schemas(prefix: str = "") -> dict[str, type[SystemConfig]]:
    """Return the `Config` of each system of this package with a prefix, by name."""
    systems = [name for name in group_choices("system") if name.startswith(prefix)]
    return {name: schema_of(import_build(_load("system", name)["module"])) for name in systems}


def suggest_network(config: RunConfig, action_space: Space, observation_space: ObservationSpace) -> str:
    """Name a network that fits the system and the environment: like its default, and with the configured torsos."""
    name = config.system_name
    own = _load("system", name) if name in group_choices("system") else {}
    default = _chosen(own, "network") or _chosen(_load(".", PRIMARY), "network")
    names = [name for name in group_choices("network") if _TORSO.sub("", name) == _TORSO.sub("", default)]
    torsos = _torsos(config.network)
    for name in sorted(names, key=lambda name: (len(_torsos(_load_network(name)) ^ torsos), name != default)):
        with contextlib.suppress(ConfigError):  # of a network that does not fit
            networks = build_networks(_load_network(name), action_space, observation_space)
            check_networks(networks, config.system, config.system_name)
            return f"choose network={name}"
    return "see stoix-like list networks"


@functools.cache
def _load_network(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.create(_read("network", name)), resolve=True)


def _torsos(network: Any) -> set[str]:
    return {value for path, value in _leaves(network) if path.endswith("torso._target_")}


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _leaves(value, f"{path}.{name}")
    else:
        yield path, str(node)


# Their ids are gymnasium's.
_SAME_TASKS = {"gymnax", "gymnasium", "envpool"}


class Experiment(NamedTuple):
    """An experiment: tuned settings of a system for an environment."""

    name: str  # name of the file
    about: str  # the comment at its head: what it trains, and the return that it reached
    system: str  # choice of the system
    env: str  # choice of the environment
    keys: frozenset[str]  # dotted keys that it sets


def experiments() -> Iterator[Experiment]:
    """Read the experiments of this package."""
    for name in group_choices("experiment"):
        said = about("experiment", name).replace(f": +experiment={name}", ":").rstrip(":")
        loaded = _with_bases(name)
        system, env = (next(filter(None, (_chosen(part, group) for part in loaded))) for group in ("system", "env"))
        keys = frozenset(path[1:] for part in loaded for path, _ in _leaves({**part, "defaults": {}}))
        yield Experiment(name, said, system, env, keys)


def tuned_experiment(system: str, suite: str, task: str) -> str | None:
    """Return the experiment that tunes a system for an environment with a measured return; None without one."""
    for experiment in experiments():
        tunes = experiment.keys - {"arch.total_timesteps"}
        measured = ": return " in experiment.about
        if not tunes or not measured or "system.data" in tunes or experiment.system != system:
            continue
        own = experiment.env.partition("/")[0]
        if _task(experiment.env) == task and (own == suite or {own, suite} <= _SAME_TASKS):
            return experiment.name
    return None


def _task(env: str) -> str:
    row = rows(config_dir() / "env").get(env)
    scenario = (row or _load("env", env))["scenario"]
    return str(scenario.get("task_name", scenario["name"]))


def _with_bases(name: str) -> list[dict[str, Any]]:
    """Load an experiment and those that it builds on, the nearest first."""
    loaded = _load("experiment", name)
    bases = [entry for entry in loaded["defaults"] if isinstance(entry, str) and entry != "_self_"]
    return [loaded, *(part for base in bases for part in _with_bases(base))]


def _chosen(loaded: dict[str, Any], group: str) -> str:
    """Return what a defaults list chooses for a group; empty if it chooses nothing."""
    keys = (group, f"override /{group}", f"override /{group}@_global_.{group}")
    entries = [entry for entry in loaded.get("defaults", ()) if isinstance(entry, dict)]
    return next((entry[key] for entry in entries for key in keys if key in entry), "")


def about(group: str, name: str) -> str:
    """Return the comment at the head of the file of a choice."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), _read(group, name).splitlines())
    return " ".join(line.removeprefix("# ") for line in lines if not line.startswith("# @"))


@functools.cache  # many experiments have one base
def _load(group: str, name: str) -> dict[str, Any]:
    # Reading all experiments in Python would take a tenth of a start.
    found: dict[str, Any] = yaml.load(_read(group, name), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def _read(group: str, name: str) -> str:
    return (config_dir() / group / f"{name}.yaml").read_text(encoding="utf-8")
