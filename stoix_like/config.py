"""From the hydra configuration to typed, checked values. The composed configuration is never changed."""

from __future__ import annotations

import contextlib
import importlib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like.base_types import System, SystemConfig, SystemSpec
from stoix_like.envs.factory import EnvConfig
from stoix_like.errors import ConfigError, nearest
from stoix_like.loggers import LoggerConfig
from stoix_like.schema import at_least, from_mapping, one_of

Build = Callable[[Any, SystemSpec], System]

PRIMARY = "config"
GROUPS = ("system", "env", "network", "arch", "logger")


@dataclass(frozen=True)
class ArchConfig:
    """How a run is laid out: budget, environments, devices, evaluation.

    Attributes:
        architecture_name: only `anakin`, everything on the accelerator.
        seed: everything random in the run follows from it.
        total_timesteps: budget in environment steps, over all environments; never exceeded.
        total_num_envs: environments over all devices and update batches.
        num_devices: devices to use; None takes every accelerator, or one device on a CPU.
        update_batch_size: vectorised shards per device.
        num_evaluation: evaluations after the one at step 0, at even intervals.
        num_eval_episodes: whole episodes per evaluation.
        evaluation_greedy: act by the policy's mode when evaluating.
        absolute_metric: evaluate the best parameters once more at the end, on ten times the episodes.
        compile_cache: keep compiled programs for the next start.
    """

    architecture_name: Annotated[str, one_of("anakin")]
    seed: Annotated[int, at_least(0)]
    total_timesteps: Annotated[int, at_least(1)]
    total_num_envs: Annotated[int, at_least(1)]
    num_devices: Annotated[int | None, at_least(1)]
    update_batch_size: Annotated[int, at_least(1)]
    num_evaluation: Annotated[int, at_least(1)]
    num_eval_episodes: Annotated[int, at_least(1)]
    evaluation_greedy: bool
    absolute_metric: bool
    compile_cache: bool


class RunConfig(NamedTuple):
    """A run, typed and checked.

    Attributes:
        system_name: as on the command line, `ppo/ff_ppo`.
        build: the system's own `build(config, spec)`.
        system: the system's hyperparameters.
        arch: layout, budget and evaluation.
        env: the environment and its wrappers.
        network: the network group as composed; its modules are made when the action space is known.
        logger: which loggers listen.
        resolved: the whole configuration as plain values.
    """

    system_name: str
    build: Build
    system: SystemConfig
    arch: ArchConfig
    env: EnvConfig
    network: Mapping[str, Any]
    logger: LoggerConfig
    resolved: dict[str, Any]


def config_dir() -> Path:
    """The directory of the yaml files: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent
    packed = package / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def typed(config: DictConfig, build: Build | None = None) -> RunConfig:
    """Turn a composed configuration into typed values.

    Args:
        config: what hydra composed.
        build: the system's `build`; by default the one of the module that `system.module` names.

    Returns:
        The run, with every value checked against its type and range.

    Raises:
        ConfigError: one sentence that names the key, the value and what would do.
    """
    config = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration cannot be resolved: {_first_line(error)}") from error
    resolved = typing.cast(dict[str, Any], container)
    for group in GROUPS:
        if not isinstance(resolved.get(group), dict):
            raise ConfigError(f"the configuration has no group '{group}'")
    for key in resolved:
        if key not in GROUPS:
            raise ConfigError(f"unknown key '{key}': {nearest(key, GROUPS)}")
    system = dict(resolved["system"])
    name, module = str(system.pop("name", "")), str(system.pop("module", ""))
    build = build or _import_build(module)
    schema = typing.get_type_hints(build)["config"]
    return RunConfig(
        system_name=name or build.__module__,
        build=build,
        system=from_mapping(schema, system, "system"),
        arch=from_mapping(ArchConfig, resolved["arch"], "arch"),
        env=from_mapping(EnvConfig, resolved["env"], "env"),
        network=resolved["network"],
        logger=from_mapping(LoggerConfig, resolved["logger"], "logger"),
        resolved=resolved,
    )


def _import_build(module: str) -> Build:
    try:
        return importlib.import_module(module).build
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"system.module={module} cannot be used ({error!s}): it must be the import path of a module with a function"
            " build(config, spec)"
        ) from error


def compose_config(overrides: Sequence[str], return_hydra_config: bool = False) -> DictConfig:
    """Compose the configuration as the command line would.

    Args:
        overrides: hydra overrides, `["env=gymnax/acrobot", "arch.seed=1"]`.
        return_hydra_config: whether to include the group `hydra`, where the run directory is.

    Returns:
        The composed configuration.

    Raises:
        ConfigError: an unknown group choice or key, named with the nearest ones, or a malformed override.
    """
    with _hydra():
        parsed = _parse(overrides)
        try:
            return compose(PRIMARY, list(overrides), return_hydra_config=return_hydra_config)
        except HydraException as error:
            _check_choices(parsed)
            _check_keys(parsed)
            raise ConfigError(_first_line(error)) from error
        except OmegaConfBaseException as error:
            raise ConfigError(_first_line(error)) from error


@contextlib.contextmanager
def _hydra() -> Iterator[None]:
    """Hydra over `config_dir()`, whatever hydra the caller may have running."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


def group_choices(group: str) -> list[str]:
    """Everything that `group=` accepts, `["gymnax", "gymnax/cartpole", …]` for `env`."""
    root = config_dir() / group
    files = (path for path in root.rglob("*.yaml") if not path.name.startswith("_"))
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in files)


def expand_sweep(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The configurations to check before a sweep starts: each swept value beside the first ones of the others."""
    parsed = _parse(overrides)
    values = [_sweep_values(override) for override in parsed]
    first = [choices[0] for choices in values]
    yield first
    for position, choices in enumerate(values):
        for choice in choices[1:]:
            yield [*first[:position], choice, *first[position + 1 :]]


def _sweep_values(override: Override) -> list[str]:
    line = override.input_line or ""
    if not override.is_sweep_override() or not override.is_discrete_sweep():
        return [line]
    key = line.split("=", 1)[0]
    return [f"{key}={value}" for value in override.sweep_string_iterator()] or [line]


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(f"{_first_line(error)} (an override is written key=value)") from error


def _check_choices(parsed: Sequence[Override]) -> None:
    for override in parsed:
        group, value = override.key_or_group, override.value()
        if group in (*GROUPS, "experiment") and isinstance(value, str) and value not in group_choices(group):
            raise ConfigError(f"{group}={value} is not known: {nearest(value, group_choices(group))}")


def _check_keys(parsed: Sequence[Override]) -> None:
    """Name the override whose key does not exist, which hydra's own message leaves to guessing."""
    groups = [override.input_line or "" for override in parsed if _is_group(override)]
    known = set(_flatten(OmegaConf.to_container(compose(PRIMARY, groups), resolve=False)))
    for override in parsed:
        key = override.key_or_group
        if _is_group(override) or override.is_add() or override.is_force_add() or key.startswith("hydra"):
            continue
        if key not in known:
            parent = key
            while parent and parent not in known:
                parent = parent.rpartition(".")[0]
            siblings = [name for name in known if name.rpartition(".")[0] == parent]
            raise ConfigError(f"unknown key '{key}': {nearest(key, siblings)}")


def _is_group(override: Override) -> bool:
    return (config_dir() / override.key_or_group).is_dir()


def _flatten(node: Any, path: str = "") -> Iterator[str]:
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _flatten(value, f"{path}.{key}" if path else str(key))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def default_run_dir(config: DictConfig) -> Path:
    """Where a run goes that was not started by hydra: as `hydra.run.dir` of the primary configuration says."""
    primary = OmegaConf.load(config_dir() / f"{PRIMARY}.yaml")
    pattern = OmegaConf.to_container(primary, resolve=False)["hydra"]["run"]["dir"]  # type: ignore[index,call-overload]
    extended = config.copy()
    OmegaConf.set_struct(extended, False)
    extended.run_dir = pattern
    return Path(extended.run_dir)
