"""Typed configuration of a run; the composed configuration is never changed."""

from __future__ import annotations

import functools
import importlib
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like.arch_config import ARCHITECTURES, ArchConfig, OfflineConfig
from stoix_like.base_types import System, SystemConfig, SystemSpec
from stoix_like.envs.custom import check_same
from stoix_like.envs.factory import EnvConfig
from stoix_like.envs.suites import SUITES
from stoix_like.errors import ConfigError, first_line, nearest
from stoix_like.loggers import LoggerConfig
from stoix_like.schema import (
    INT32_MAX,
    MAX_SECONDS,
    between,
    flat_hints,
    from_mapping,
    get_value,
    hints_of,
    replace_values,
)
from stoix_like.user_code import refusing
from stoix_like.utils.replay.data import DataConfig
from stoix_like.versions import versions

Build = Callable[[Any, SystemSpec], System]

# In a network, a block under this key replaces the block that it is in, where Hydra would merge the two.
REPLACE = "_replace_"
SHARE = "share"
GROUPS = ("system", "env", "network", "arch", "checkpoint", "logger")
CALLBACKS = "callbacks"
LAYOUT = "layout"
"""The key of a recorded configuration that says which form the files of its run have."""


# Contacts and constraints need more digits than networks.
PHYSICS_SUITES = ("brax", "mjx", "playground")


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints of a run."""

    # Evaluations between checkpoints; None writes one at the end, and when a signal stops the run.
    every_evals: Annotated[int | None, between(1, INT32_MAX)]
    keep: Annotated[int, between(0, INT32_MAX)]  # number of checkpoints to keep, the newest ones; 0 writes none
    keep_best: bool  # store the best parameters of each member in every checkpoint
    replay: bool  # store the replay buffer; without it, resuming is not exact
    # Address on an object store that the run directory is copied to while the run trains; None copies none.
    mirror: str | None = None
    # Seconds to wait at the end of the run until the copy is complete.
    mirror_wait: Annotated[float, between(0, MAX_SECONDS)] = 120.0


# What names files and projects, and the values of the members themselves, need not follow what varies between members.
_UNTIED = ("system.name", "logger.", "checkpoint.", "arch.population.")


class RunConfig(NamedTuple):
    """Typed and checked configuration of a run."""

    system_name: str  # name of the system, `ppo/ff_ppo`
    build: Build  # the system's `build(config, spec)`
    system: SystemConfig  # the system's hyperparameters
    arch: ArchConfig  # budget, environments, devices and evaluation
    env: EnvConfig  # the environment and its wrappers
    network: Mapping[str, Any]  # the composed network group; its modules are built once the action space is known
    checkpoint: CheckpointConfig  # checkpoints to write
    logger: LoggerConfig  # loggers to use
    # Callbacks to build, each with its import path as `_target_`, and its arguments.
    callbacks: tuple[dict[str, Any], ...]
    loggers: dict[str, dict[str, Any]]  # custom loggers to build, by their keys below `logger`, each like a callback
    # The whole configuration as plain values; numbers that were written as strings are numbers.
    resolved: dict[str, Any]
    share_networks: bool = True  # whether all agents of a game have the same networks, `network.share`
    custom_env: Any = None  # an environment passed from Python, which `env` does not describe; None otherwise
    custom_callbacks: tuple[Any, ...] = ()  # callbacks passed from Python
    custom_loggers: tuple[Any, ...] = ()  # loggers passed from Python

    @property
    def keeps_best(self) -> bool:
        """True if the best parameters of each member are kept in addition to the last ones."""
        return bool(self.arch.absolute_metric or self.checkpoint.keep_best)

    @property
    def steps_per_update(self) -> int:
        """Steps of the budget per update: of all environments, or gradient steps with `arch=offline`."""
        if isinstance(self.arch, OfflineConfig):
            return self.system.gradient_steps
        return self.arch.total_num_envs * self.system.rollout_length

    @property
    def num_updates(self) -> int:
        """The number of updates within the budget; less than one if the budget is too small."""
        left = self.arch.total_timesteps - self.arch.total_num_envs * self.system.warmup_steps
        return left // self.steps_per_update

    @property
    def environment_name(self) -> str:
        """The suite and the task, `gymnax/CartPole-v1`; the task is the scenario unless it has a name of its own."""
        return f"{self.env.env_name}/{self.env.scenario.task_name}"

    @property
    def scenario_name(self) -> str:
        """The suite and the scenario that recorded data name, whatever the task is called."""
        return f"{self.env.env_name}/{self.env.scenario.name}"

    @property
    def env_arguments(self) -> dict[str, Any]:
        """The keys of the environment and its wrappers that are not at their defaults."""
        default = asdict(EnvConfig())
        return {
            name: value
            for name, value in self.resolved["env"].items()
            if name not in ("env_name", "scenario") and value != default.get(name) and value not in ([], {})
        }

    @property
    def versions(self) -> dict[str, str | None]:
        """The versions that results depend on: of Python, packages, and the packages of the environment."""
        suite = SUITES.get(self.env.env_name)
        return versions(() if suite is None else suite.distributions)

    @property
    def matmul_precision(self) -> str | None:
        """The precision of products of matrices of the environments; None: jax's default, except in physics suites."""
        if self.arch.matmul_precision is None and self.env.env_name in PHYSICS_SUITES:
            return "highest"
        return self.arch.matmul_precision

    def with_mirror(self, address: str) -> RunConfig:
        """Return a copy with another `checkpoint.mirror`."""
        resolved = {**self.resolved, "checkpoint": {**self.resolved["checkpoint"], "mirror": address}}
        return self._replace(checkpoint=replace(self.checkpoint, mirror=address), resolved=resolved)


def parse_config(config: DictConfig, build: Build | None = None) -> RunConfig:
    """Convert a composed configuration to typed values."""
    overrides = OmegaConf.select(config, "hydra.overrides.task") or ()
    config = OmegaConf.masked_copy(config, [str(key) for key in config if key not in ("hydra", LAYOUT)])
    resolved = _resolve(config)
    for group in GROUPS:
        # Only `share` is left of a group of networks that an override deletes.
        if not isinstance(resolved.get(group), dict) or resolved[group].keys() == {SHARE}:
            raise ConfigError(f"the configuration has no group '{group}': add it")
    for key in resolved:
        if key not in (*GROUPS, CALLBACKS):
            raise ConfigError(f"unknown key '{key}': {nearest(key, (*GROUPS, CALLBACKS))}")
    network = resolved["network"] = _replace_blocks(resolved["network"], "network")
    share = network.get(SHARE, True)
    if not isinstance(share, bool):
        raise ConfigError(f"network.{SHARE}={share} must be true or false")
    system, logger = dict(resolved["system"]), resolved["logger"]
    custom_loggers = _custom_loggers(logger)
    name, module = str(system.pop("name", "")), str(system.pop("module", ""))
    build = build or import_build(module)
    schema, arch = schema_of(build), _parse_arch(resolved["arch"])
    _check_experiment(schema, system, name, overrides)
    _check_ties(config, arch.population.hyperparams or {})
    # How the processes of a run are started is no part of it: it may resume with others.
    resolved["arch"] = {key: value for key, value in resolved["arch"].items() if key != "distributed"}
    typed: dict[str, Any] = {
        "system": from_mapping(schema, system, "system"),
        "arch": arch,
        "env": from_mapping(EnvConfig, resolved["env"], "env"),
        "checkpoint": from_mapping(CheckpointConfig, resolved["checkpoint"], "checkpoint"),
        "logger": from_mapping(
            LoggerConfig, {key: logger[key] for key in logger if key not in custom_loggers}, "logger"
        ),
    }
    resolved |= {group: _with_numbers(resolved[group], typed[group]) for group in typed}
    return RunConfig(
        **typed | {"system": _fit_to_arch(typed["system"], arch, name)},
        system_name=name or schema.__module__,
        build=build,
        network={name: block for name, block in network.items() if name != SHARE},
        share_networks=share,
        loggers=custom_loggers,
        callbacks=_parse_callbacks(resolved.get(CALLBACKS)),
        resolved=resolved,
    )


def _resolve(config: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain values."""
    try:
        return typing.cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        if "HydraConfig was not set" in str(error):
            raise ConfigError(
                f"{error.full_key} refers to Hydra's job, which only stoix-like train and stoix_like.train have: write"
                " its value"
            ) from error
        raise ConfigError(f"cannot resolve the configuration: {first_line(error)}") from error


def _check_experiment(schema: type[SystemConfig], system: Mapping[str, Any], name: str, overrides: Any) -> None:
    """Refuse hyperparameters that an experiment sets for another system than the chosen one."""
    given = {override.lstrip("+~").partition("=")[0]: override.lstrip("+") for override in overrides}
    others = [key for key in system if key not in flat_hints(schema) and f"system.{key}" not in given]
    if others and {"experiment", "system"} <= given.keys() and "search" not in given:
        words = " ".join(f"'~system.{key}'" for key in others)
        raise ConfigError(
            f"unknown key 'system.{others[0]}' of system={name}: if {given['experiment']} sets it for another system,"
            f" leave it out with {words}, or choose that system"
        )


def _with_numbers(node: Any, converted: Any) -> Any:
    """Return plain values with the numbers to which strings among them were converted."""
    if isinstance(node, dict):
        return {key: _with_numbers(value, _entry(converted, key)) for key, value in node.items()}
    if isinstance(node, list) and isinstance(converted, tuple):
        return [_with_numbers(value, one) for value, one in zip(node, converted, strict=True)]
    return converted if isinstance(node, str) and isinstance(converted, (int, float)) else node


def _entry(converted: Any, key: str) -> Any:
    if is_dataclass(converted):
        return get_value(converted, key) if key in flat_hints(type(converted)) else None
    return converted.get(key) if isinstance(converted, Mapping) else None


def _fit_to_arch(system: SystemConfig, arch: ArchConfig, name: str) -> SystemConfig:
    """Return the hyperparameters with which a system learns only from data, if the architecture has nothing else."""
    if not isinstance(arch, OfflineConfig):
        return system
    data = system.find_part(DataConfig)
    if data is None:
        raise ConfigError(
            f"arch=offline: system={name} learns from its own rollouts: use a system with a replay buffer, such as"
            " system=ddpg/ff_td3, or arch=anakin"
        )
    if data.data is None:
        raise ConfigError("arch=offline learns from recorded data: set system.data=FILE")
    return replace_values(system, {"data_fraction": 1.0, "final_data_fraction": None, "warmup_steps": 0})


def flatten(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value with its key, such as `network.actor_network.pre_torso.layer_sizes.0`."""
    if isinstance(node, (list, tuple)):
        node = dict(enumerate(node))
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flatten(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def _check_ties(config: DictConfig, varied: Collection[str]) -> None:
    """Refuse references to hyperparameters that vary between members: all members would have one value."""
    for key, value in flatten(OmegaConf.to_container(config)) if varied else ():
        names = re.findall(r"\$\{[^}]*system\.(\w+)", value) if isinstance(value, str) else []
        tied = [name for name in names if name in varied and key != f"system.{name}"]
        if tied and key.removeprefix("system.") not in varied and not key.startswith(_UNTIED):
            raise ConfigError(
                f"{key}={value} would not follow system.{tied[0]}, which varies between members: set it to a value"
            )


def _custom_loggers(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the blocks of custom loggers, which have a `_target_` and a name that no other logger has."""
    known = {field.name for field in fields(LoggerConfig)}
    blocks = {name: block for name, block in given.items() if isinstance(block, dict) and "_target_" in block}
    return {name: block for name, block in blocks.items() if name not in known}


def _parse_callbacks(given: Any) -> tuple[dict[str, Any], ...]:
    if given is not None and not (isinstance(given, list) and all(isinstance(entry, dict) for entry in given)):
        raise ConfigError(f"{CALLBACKS}={given} must be a list: [{{_target_: my_module.MyCallback, …}}, …]")
    return tuple(given or ())


def _parse_arch(arch: dict[str, Any]) -> ArchConfig:
    name = arch.get("architecture_name")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(f"arch.architecture_name={name} is not known: {nearest(str(name), ARCHITECTURES)}")
    return from_mapping(ARCHITECTURES[name], arch, "arch")


def with_env(run: RunConfig, env: Any) -> RunConfig:
    """Add the environment that a run was trained on, passed from Python, to its typed configuration.

    `env`: a custom environment, or its class; None if the configuration describes it.
    """
    check_same(env, run.env.env_name, run.env._target_, run.env.scenario.name)
    return run._replace(custom_env=env)


def _replace_blocks(node: Any, path: str) -> Any:
    """Replace each block that has the key `_replace_` by the value of that key, without what it inherited."""
    if not isinstance(node, dict):
        return node
    if REPLACE not in node:
        return {key: _replace_blocks(value, f"{path}.{key}") for key, value in node.items()}
    block = node[REPLACE]
    if not isinstance(block, dict):
        raise ConfigError(f"{path}.{REPLACE}={block} must be a mapping: the whole block that replaces {path}")
    return _replace_blocks(block, path)


def import_build(module: str) -> Build:
    """Import the `build` of a system."""
    advice = "use the import path of a module with a function build(config, spec)"
    with refusing(f"system.module={module} is not a system", advice):
        return importlib.import_module(module).build


def schema_of(build: Build) -> type[SystemConfig]:
    """Return the class of hyperparameters, from the annotation of `build(config: Config, spec)`."""
    function: Any = build
    while isinstance(function, functools.partial):
        function = function.func
    schema = hints_of(function).get("config")
    if not (isinstance(schema, type) and issubclass(schema, SystemConfig)):
        raise ConfigError(
            f"{function.__module__}.{function.__qualname__}: annotate the argument 'config' with a subclass of"
            " stoix_like.base_types.SystemConfig, as in make_algorithm(config: Config, spec)"
        )
    return schema
