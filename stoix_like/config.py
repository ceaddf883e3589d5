"""From the hydra configuration to typed, checked values. The composed configuration is never changed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like.base_types import System, SystemConfig, SystemSpec
from stoix_like.envs.factory import EnvConfig
from stoix_like.errors import ConfigError, nearest
from stoix_like.loggers import LoggerConfig
from stoix_like.schema import at_least, between, from_mapping, one_of

Build = Callable[[Any, SystemSpec], System]

PRIMARY = "config"
# Combinations of a sweep that are checked before it starts; composing one takes about a tenth of a second.
MAX_CHECKED = 64
GROUPS = ("system", "env", "network", "arch", "checkpoint", "logger")


@dataclass(frozen=True)
class PopulationConfig:
    """Members trained side by side in one program.

    Attributes:
        size: members; member `i` has the seed `arch.seed + i`.
        hyperparams: by name, a list of values or a distribution to draw them from.
        mode: how lists are joined.
        seeds: members per point of the hyperparameters.
        axis: whether members are vectorised on every device, or spread over the devices.
    """

    size: Annotated[int, between(1, 1_000_000)]
    hyperparams: dict[str, Any] | None
    mode: Annotated[str, one_of("zip", "grid")]
    seeds: Annotated[int, at_least(1)]
    axis: Annotated[str, one_of("auto", "vmap", "device")]


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
        max_eval_steps: an evaluation episode that has not ended by then counts as far as it went.
        evaluation_greedy: act by the policy's mode when evaluating.
        absolute_metric: evaluate the best parameters once more at the end, on ten times the episodes.
        on_nan: what to do when a metric or a parameter is NaN or infinite.
        compile_cache: keep compiled programs for the next start.
        hoist_randomness: draw the random numbers of a whole rollout before its loop over time.
        resume_from: the directory of a run to go on with, instead of a new one.
        population: members trained side by side.
    """

    architecture_name: Annotated[str, one_of("anakin")]
    # jax takes the lowest 32 bits of a seed: beyond them, two seeds would be one.
    seed: Annotated[int, between(0, 2**32 - 1)]
    total_timesteps: Annotated[int, at_least(1)]
    total_num_envs: Annotated[int, at_least(1)]
    num_devices: Annotated[int | None, at_least(1)]
    update_batch_size: Annotated[int, at_least(1)]
    num_evaluation: Annotated[int, at_least(1)]
    num_eval_episodes: Annotated[int, at_least(1)]
    max_eval_steps: Annotated[int, between(1, 2**31 - 1)]
    evaluation_greedy: bool
    absolute_metric: bool
    on_nan: Annotated[str, one_of("stop", "ignore")]
    compile_cache: bool
    hoist_randomness: bool
    resume_from: str | None
    population: PopulationConfig


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept of a run on its way.

    Attributes:
        every_evals: evaluations from one checkpoint to the next; None writes one at the end, and where a signal stops
            the run.
        keep: checkpoints kept, the newest ones; 0 writes none.
        keep_best: keep the parameters of each member that evaluated best in every checkpoint.
        replay: keep the replay buffer; without it, resuming is not exact.
    """

    every_evals: Annotated[int | None, at_least(1)]
    keep: Annotated[int, at_least(0)]
    keep_best: bool
    replay: bool


class RunConfig(NamedTuple):
    """A run, typed and checked.

    Attributes:
        system_name: as on the command line, `ppo/ff_ppo`.
        build: the system's own `build(config, spec)`.
        system: the system's hyperparameters.
        arch: layout, budget and evaluation.
        env: the environment and its wrappers.
        network: the network group as composed; its modules are made when the action space is known.
        checkpoint: what is kept on its way.
        logger: which loggers listen.
        resolved: the whole configuration as plain values.
    """

    system_name: str
    build: Build
    system: SystemConfig
    arch: ArchConfig
    env: EnvConfig
    network: Mapping[str, Any]
    checkpoint: CheckpointConfig
    logger: LoggerConfig
    resolved: dict[str, Any]


def config_dir() -> Path:
    """The directory of the yaml files: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent
    packed = package / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def parse_config(config: DictConfig, build: Build | None = None) -> RunConfig:
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
    schema = _schema(build)
    return RunConfig(
        system_name=name or schema.__module__,
        build=build,
        system=from_mapping(schema, system, "system"),
        arch=from_mapping(ArchConfig, resolved["arch"], "arch"),
        env=from_mapping(EnvConfig, resolved["env"], "env"),
        network=resolved["network"],
        checkpoint=from_mapping(CheckpointConfig, resolved["checkpoint"], "checkpoint"),
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


def _schema(build: Build) -> type[SystemConfig]:
    """The class of hyperparameters that `build(config: Config, spec)` is annotated with."""
    function: Any = build
    while isinstance(function, functools.partial):
        function = function.func
    schema = typing.get_type_hints(function).get("config")
    if not (isinstance(schema, type) and issubclass(schema, SystemConfig)):
        raise ConfigError(
            f"{function.__module__}.{function.__qualname__}: the annotation of its argument 'config' must be a subclass"
            " of stoix_like.base_types.SystemConfig"
        )
    return schema


def compose_config(
    overrides: Sequence[str], config_dirs: Sequence[str | Path] = (), return_hydra_config: bool = False
) -> DictConfig:
    """Compose the configuration as the command line would.

    Args:
        overrides: hydra overrides, `["env=gymnax/acrobot", "arch.seed=1"]`.
        config_dirs: further directories of yaml files, laid out like the package's own.
        return_hydra_config: whether to include the group `hydra`, where the run directory is.

    Returns:
        The composed configuration.

    Raises:
        ConfigError: an unknown group choice or key, named with the nearest ones, or a malformed override.
    """
    parsed = _parse(overrides)
    # A directory may have been named as hydra's own search path as well.
    search = [f"file://{Path(directory).resolve()}" for directory in config_dirs]
    with _hydra():
        try:
            search_override = [f"hydra.searchpath=[{','.join(map(quoted, search))}]"] if search else []
            return compose(PRIMARY, [*overrides, *search_override], return_hydra_config=return_hydra_config)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            _check_choices(parsed, config_dirs)
            if not config_dirs:
                _check_keys(parsed)
            raise ConfigError(_first_line(error)) from error


def override_config(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Change values of a configuration that was composed earlier.

    Args:
        config: it is not changed itself.
        overrides: hydra overrides of keys that are there, `["arch.total_timesteps=1e6"]`; of the groups, only `logger`
            and `checkpoint` can be chosen anew.

    Returns:
        The changed configuration.

    Raises:
        ConfigError: a key that is not there, named with the nearest ones, or a malformed override.
    """
    config = config.copy()
    for override in _parse(overrides):
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override() or override.is_delete():
            raise ConfigError(f"{override.input_line}: only key=value can be given here")
        if key in ("logger", "checkpoint") and isinstance(value, str):
            config[key] = compose_config([f"{key}={value}"])[key]
            continue
        known = list(_flatten(OmegaConf.to_container(config)))
        if key not in known and not override.is_add():
            raise ConfigError(f"unknown key '{key}': {nearest(key, known)}")
        OmegaConf.update(config, key, value, force_add=True)
    return config


def quoted(text: str) -> str:
    """Write a text as an override's value, whatever characters it has."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


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


def group_choices(group: str, config_dirs: Sequence[str | Path] = ()) -> list[str]:
    """Everything that `group=` accepts, `["gymnax", "gymnax/cartpole", …]` for `env`.

    Args:
        group: of the configuration.
        config_dirs: further directories of yaml files.

    Returns:
        The names, sorted.
    """
    roots = [Path(directory) / group for directory in (config_dir(), *config_dirs)]
    files = [(root, path) for root in roots for path in root.rglob("*.yaml") if not path.name.startswith("_")]
    return sorted({path.relative_to(root).with_suffix("").as_posix() for root, path in files})


def expand_sweep(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> Iterator[list[str]]:
    """The configurations to check before a sweep starts.

    Args:
        overrides: as given, `["arch.seed=0,1"]`.
        config_dirs: further directories of yaml files.

    Returns:
        Every combination; where they are more than `MAX_CHECKED`, each swept value beside the first ones of the others.
        Of a continuous interval, where it begins.
    """
    values = [_sweep_values(override, config_dirs) for override in _parse(overrides)]
    if math.prod(len(choices) for choices in values) <= MAX_CHECKED:
        yield from (list(combination) for combination in itertools.product(*values))
        return
    first = [choices[0] for choices in values]
    yield first
    for position, choices in enumerate(values):
        for choice in choices[1:]:
            yield [*first[:position], choice, *first[position + 1 :]]


def _sweep_values(override: Override, config_dirs: Sequence[str | Path]) -> list[str]:
    line = override.input_line or ""
    if not override.is_sweep_override():
        return [line]
    key, value = line.split("=", 1)[0], override.value()
    if override.is_interval_sweep():
        return [f"{key}={value.start}"]
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(group_choices(override.key_or_group, config_dirs))]
    return [f"{key}={choice}" for choice in override.sweep_string_iterator()]


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(f"{_first_line(error)} (an override is written key=value)") from error


def _check_choices(parsed: Sequence[Override], config_dirs: Sequence[str | Path]) -> None:
    for override in parsed:
        group, value = override.key_or_group, override.value()
        # A group may also be written out: +system={...}
        named = (value is None or isinstance(value, str)) and not override.is_delete()
        if group in (*GROUPS, "experiment") and named:
            choices = group_choices(group, config_dirs)
            if value not in choices:
                raise ConfigError(f"{group}={value} is not known: {nearest(str(value), choices)}")


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
            hint = nearest(key, siblings) if siblings else f"write +{key}=… to add it to {parent}"
            raise ConfigError(f"unknown key '{key}': {hint}")


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
    setup_globals()  # hydra's resolvers, such as the time
    primary = OmegaConf.load(config_dir() / f"{PRIMARY}.yaml")
    pattern = OmegaConf.to_container(primary, resolve=False)["hydra"]["run"]["dir"]  # type: ignore[index,call-overload]
    extended = config.copy()
    OmegaConf.set_struct(extended, False)
    extended.run_dir = pattern
    return Path(extended.run_dir)
