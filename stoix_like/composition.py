"""How Hydra composes the configuration."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like.config import GROUPS
from stoix_like.envs.own import OWN
from stoix_like.errors import ConfigError, first_line, nearest
from stoix_like.overrides import quoted

PRIMARY = "config"
# Combinations of a sweep to check before it starts; composing one takes about 0.1 s.
MAX_CHECKED = 64
# What composing raises for overrides that do not fit: Hydra and OmegaConf also let Python's own errors through.
_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError)


def config_dir() -> Path:
    """Return the directory of the YAML files: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).resolve().parent
    packed = package / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def group_choices(group: str, config_dirs: Sequence[str | Path] = ()) -> list[str]:
    """List the choices of a group, such as `["gymnax", "gymnax/cartpole", …]` for `env`.

    Args:
        group: a group of the configuration.
        config_dirs: further directories of YAML files.

    Returns:
        The names, sorted.
    """
    roots = [Path(directory) / group for directory in (config_dir(), *config_dirs)]
    files = [(root, path) for root in roots for path in root.rglob("*.yaml") if not path.name.startswith("_")]
    return sorted({path.relative_to(root).with_suffix("").as_posix() for root, path in files})


def compose_config(
    overrides: Sequence[str], config_dirs: Sequence[str | Path] = (), return_hydra_config: bool = False
) -> DictConfig:
    """Compose the configuration, as the command line would.

    Args:
        overrides: Hydra overrides: `["env=gymnax/acrobot", "arch.seed=1"]`.
        config_dirs: further directories of YAML files, laid out like the package's own.
        return_hydra_config: include the group `hydra`, which holds the run directory.

    Returns:
        The composed configuration.

    Raises:
        ConfigError: a group choice or a key is unknown, or an override is malformed.
    """
    overrides = complete_overrides(overrides)
    parsed = parse_overrides(overrides)
    _check_group_values(parsed, config_dirs)
    search = [f"file://{Path(directory).resolve()}" for directory in config_dirs]
    with hydra_session():
        search_override = [f"hydra.searchpath=[{','.join(map(quoted, search))}]"] if search else []
        try:
            return compose(PRIMARY, [*overrides, *search_override], return_hydra_config=return_hydra_config)
        except yaml.YAMLError as error:
            raise ConfigError(f"a YAML file cannot be read: {' '.join(str(error).split())}") from error
        except _COMPOSE_ERRORS as error:
            _check_single_values(parsed)
            _check_choices(parsed, config_dirs)
            _check_keys(parsed, config_dirs, search_override)
            raise ConfigError(first_line(error)) from error


def complete_overrides(overrides: Sequence[str]) -> list[str]:
    """Add what Hydra needs: `experiment=…` means `+experiment=…`, and `env._target_=…` alone means `env=own` too.

    Args:
        overrides: Hydra overrides.

    Returns:
        The overrides, the others unchanged.
    """
    completed = [f"+{override}" if override.startswith("experiment=") else override for override in overrides]
    names = {override.partition("=")[0] for override in overrides}
    return [f"env={OWN}", *completed] if "env._target_" in names and "env" not in names else completed


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse Hydra overrides.

    Args:
        overrides: `["arch.seed=1"]`.

    Returns:
        Keys and values.

    Raises:
        ConfigError: an override is malformed.
    """
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(f"{first_line(error)} (write an override as key=value)") from error


def override_config(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Override values of a composed configuration.

    Args:
        config: the configuration; it is not changed.
        overrides: Hydra overrides of existing keys: `["arch.total_timesteps=1e6"]`; of the groups, only `logger` and
            `checkpoint` can be chosen.

    Returns:
        The changed copy.

    Raises:
        ConfigError: a key does not exist, or an override is malformed.
    """
    config = config.copy()
    for override in parse_overrides(overrides):
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override() or override.is_delete():
            raise ConfigError(f"{override.input_line}: only key=value is possible here, no sweep or deletion")
        if key in ("logger", "checkpoint") and isinstance(value, str):
            config[key] = compose_config([f"{key}={value}"])[key]
            continue
        if key in GROUPS and not isinstance(value, dict):
            raise ConfigError(
                f"{override.input_line} names no choice that is possible here: only logger and checkpoint can be"
                " chosen, as in logger=silent"
            )
        known = list(_flatten(OmegaConf.to_container(config)))
        if key not in known and not override.is_add():
            raise ConfigError(f"unknown key '{key}': {nearest(key, known)}")
        try:
            OmegaConf.update(config, key, value, force_add=True)
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            raise ConfigError(f"{override.input_line} does not fit the configuration: {first_line(error)}") from error
    return config


def expand_sweep(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> Iterator[list[str]]:
    """Yield the overrides of each run to check before a sweep starts.

    Args:
        overrides: overrides with swept values: `["arch.seed=0,1"]`.
        config_dirs: further directories of YAML files.

    Yields:
        Every combination; beyond `MAX_CHECKED` of them, each swept value with the first values of the other keys. A
        continuous interval is represented by its lower end.
    """
    values = [_sweep_values(override, config_dirs) for override in parse_overrides(overrides)]
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
    if isinstance(value, IntervalSweep):
        return [f"{key}={value.start}"]
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(group_choices(override.key_or_group, config_dirs))]
    return [f"{key}={choice}" for choice in override.sweep_string_iterator()]


@contextlib.contextmanager
def hydra_session() -> Iterator[None]:
    """Initialise Hydra with `config_dir()`, and restore the caller's Hydra at exit."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


def default_run_dir(config: DictConfig) -> Path:
    """Return the directory of a run that Hydra did not start, by `hydra.run.dir` of the primary configuration."""
    setup_globals()  # registers Hydra's resolvers, such as the time
    primary = OmegaConf.load(config_dir() / f"{PRIMARY}.yaml")
    pattern = OmegaConf.to_container(primary, resolve=False)["hydra"]["run"]["dir"]  # type: ignore[index,call-overload]
    extended = config.copy()
    OmegaConf.set_struct(extended, False)
    extended.run_dir = pattern
    return Path(extended.run_dir)


def _check_group_values(parsed: Sequence[Override], config_dirs: Sequence[str | Path]) -> None:
    """Refuse numbers and other values, which name no choice of a group; Hydra fails on them while it composes."""
    roots = [config_dir(), *map(Path, config_dirs)]
    for override in parsed:
        if not _is_group(override, roots) or override.is_delete() or override.is_sweep_override():
            continue
        value = override.value()
        names = value if isinstance(value, list) else [value]
        # A group may also be given inline: +system={...}
        if value is not None and not isinstance(value, dict) and not all(isinstance(name, str) for name in names):
            choices = group_choices(override.key_or_group, config_dirs)
            given = (override.input_line or "").partition("=")[2]
            raise ConfigError(f"{override.key_or_group}={given} is not known: {nearest(given, choices)}")


def _check_choices(parsed: Sequence[Override], config_dirs: Sequence[str | Path]) -> None:
    for override in parsed:
        group, value = override.key_or_group, override.value()
        # A group may also be given inline: +system={...}
        named = (value is None or isinstance(value, str)) and not override.is_delete()
        if group in (*GROUPS, "experiment") and named:
            choices = group_choices(group, config_dirs)
            if value not in choices:
                if group == "env":
                    _check_suite(str(value), choices)
                given = (override.input_line or "").partition("=")[2]
                raise ConfigError(f"{group}={given} is not known: {nearest(given, choices)}")


def _check_suite(value: str, choices: Sequence[str]) -> None:
    """Refuse an environment of a suite that does not exist, unless its name is close to a known one."""
    suite, slash, _ = value.partition("/")
    suites = {choice.partition("/")[0] for choice in choices}
    if suite not in suites and (slash or nearest(value, choices).startswith("choose from")):
        raise ConfigError(f"env={value}: '{suite}' is not a known suite of environments: {nearest(suite, suites)}")


def _check_single_values(parsed: Sequence[Override]) -> None:
    """Refuse several values where one run is composed."""
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line} has several values: add -m to run each of them (stoix-like train -m …), or"
                " write a list in brackets, key=[1,2]"
            )


def _check_keys(parsed: Sequence[Override], config_dirs: Sequence[str | Path], search_override: Sequence[str]) -> None:
    """Refuse an override of a key that does not exist; Hydra's own message does not name the override."""
    roots = [config_dir(), *map(Path, config_dirs)]
    groups = [override.input_line or "" for override in parsed if _is_group(override, roots)]
    try:
        composed = compose(PRIMARY, [*groups, *search_override])
    except _COMPOSE_ERRORS:
        return  # The choices of groups are at fault, not a key.
    known = set(_flatten(OmegaConf.to_container(composed, resolve=False)))
    for override in parsed:
        key = override.key_or_group
        if _is_group(override, roots) or override.is_add() or override.is_force_add() or key.startswith("hydra"):
            continue
        if key not in known:
            parent = key
            while parent and parent not in known:
                parent = parent.rpartition(".")[0]
            siblings = [name for name in known if name.rpartition(".")[0] == parent]
            hint = nearest(key, siblings) if siblings else f"write +{key}=… to add it to {parent}"
            raise ConfigError(f"unknown key '{key}': {hint}")


def _is_group(override: Override, roots: Sequence[Path]) -> bool:
    return any((root / override.key_or_group).is_dir() for root in roots)


def _flatten(node: Any, path: str = "") -> Iterator[str]:
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _flatten(value, f"{path}.{key}" if path else str(key))
