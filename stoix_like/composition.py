"""Composition of the configuration by Hydra."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from stoix_like import unknown_keys
from stoix_like.config import GROUPS
from stoix_like.envs.ids import rows, with_id
from stoix_like.envs.suites import OWN
from stoix_like.errors import ConfigError, first_line, install_hint, listed, nearest
from stoix_like.overrides import quoted
from stoix_like.unknown_keys import GYMNASIUM_ID, UnknownKey, flatten

PRIMARY = "config"
SEARCH = "hydra.searchpath"
# Groups without a choice in the primary configuration.
ADDED = ("experiment", "search", "observations")
# Combinations of a sweep to check before it starts; composing one takes about 0.1 s.
MAX_CHECKED = 64
_ONE_LOGGER = "choose one, last in a list, and switch the others on, logger=wandb logger.tensorboard.enabled=true"
# What composing raises for overrides that do not fit: Hydra and OmegaConf also let Python's own errors through.
_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError)


def config_dir() -> Path:
    """Return the directory of the YAML files: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).resolve().parent
    packed = package / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


# Hydra has one state per process, whatever thread composes; a launched job, which may train for days, does not hold it.
_HYDRA = threading.RLock()


def group_choices(group: str, config_dirs: Sequence[str | Path] = ()) -> list[str]:
    """List the choices of a group, such as `["gymnax", "gymnax/cartpole", …]` for `env`."""
    return [name for name in _all_choices(group, config_dirs) if not name.rpartition("/")[2].startswith("_")]


def _all_choices(group: str, config_dirs: Sequence[str | Path]) -> list[str]:
    """List the choices of a group, with those that are parts of others, such as `gymnasium/_atari`."""
    roots = [Path(directory) / group for directory in (config_dir(), *config_dirs)]
    files = {path.relative_to(root).with_suffix("").as_posix() for root in roots for path in root.rglob("*.yaml")}
    return sorted(files | {*(rows(config_dir() / group) if group == "env" else ())})


class _Stored(dict[str, Any]):
    """Configurations that Hydra does not copy with its sources, in every composition: it copies those that it loads."""

    def __deepcopy__(self, memo: Any) -> _Stored:
        return self


@functools.cache
def register_environments() -> None:
    """Let Hydra find the environments of tables."""
    store = ConfigStore.instance()
    store.repo["env"] = _Stored(store.repo.get("env", {}))
    for choice, row in rows(config_dir() / "env").items():
        suite, _, name = choice.partition("/")
        store.store(name=name, node=row, group=f"env/{suite}")


def compose_config(
    overrides: Sequence[str], config_dirs: Sequence[str | Path] = (), return_hydra_config: bool = False
) -> DictConfig:
    """Compose the configuration, as the command line would."""
    overrides, directories = complete_overrides(overrides, config_dirs), _all_dirs(overrides, config_dirs)
    parsed, searched = parse_overrides(overrides), with_search(overrides, config_dirs)
    _check_choices(parsed)
    _check_names(directories)
    with _HYDRA, hydra_session():
        try:
            return compose(PRIMARY, searched, return_hydra_config=return_hydra_config)
        except yaml.YAMLError as error:
            raise ConfigError(f"a YAML file cannot be read: {' '.join(str(error).split())}") from error
        except _COMPOSE_ERRORS as error:
            raise ConfigError(_refusal(error, parsed, directories)) from error


def _check_choices(parsed: Sequence[Override]) -> None:
    """Refuse lists with a logger of the package before another, which may switch it off, and groups added twice."""
    for override in parsed:
        value = override.value() if override.key_or_group == "logger" else None
        if isinstance(value, list) and (not value or any(one in group_choices("logger") for one in value[:-1])):
            raise ConfigError(f"{override.input_line} is a list of choices: {_ONE_LOGGER}")
    lines = [override.input_line or "" for override in parsed if override.is_add()]
    for group in ADDED:
        given = [line.partition("=")[2].strip("[]") for line in lines if line.startswith(f"+{group}=")]
        if len(given) > 1:
            raise ConfigError(f"{group} is given {len(given)} times: write one list, +{group}=[{','.join(given)}]")


def _check_names(config_dirs: Sequence[str | Path]) -> None:
    """Refuse choices with the name of a file of the package, which Hydra finds first."""
    for own, name in ((Path(directory) / name, name) for directory in config_dirs for name in _package_choices()):
        if own.is_file() and not ((ours := config_dir() / name).exists() and own.samefile(ours)):
            raise ConfigError(f"{own} has the name of a file of the package, which counts: rename it")


@functools.cache
def _package_choices() -> list[Path]:
    files = [path.relative_to(config_dir()) for path in config_dir().glob("*/**/*.yaml")]
    return [*files, *(Path("env", f"{choice}.yaml") for choice in rows(config_dir() / "env"))]


def with_search(overrides: Sequence[str], config_dirs: Sequence[str | Path]) -> list[str]:
    """Let Hydra find YAML files in further directories, in addition to an override of `hydra.searchpath`."""
    if not config_dirs:
        return list(overrides)
    if lost := [directory for directory in config_dirs if not Path(directory).is_dir()]:
        raise ConfigError(f"config_dir={Path(lost[0]).resolve()} does not exist: use a directory of YAML files")
    others = [override for override in overrides if not override.startswith(f"{SEARCH}=")]
    places = [*_search_path(overrides), *(f"file://{Path(directory).resolve()}" for directory in config_dirs)]
    return [*others, f"{SEARCH}=[{','.join(map(quoted, places))}]"]


def _search_path(overrides: Sequence[str]) -> list[str]:
    """Return the places of an override of `hydra.searchpath`."""
    found = parse_overrides([override for override in overrides if override.startswith(f"{SEARCH}=")])
    values = [override.value() for override in found]
    return [str(place) for value in values for place in (value if isinstance(value, list) else [value])]


def _all_dirs(overrides: Sequence[str], config_dirs: Sequence[str | Path]) -> list[str | Path]:
    """Return directories of YAML files, with the local ones of an override of `hydra.searchpath`."""
    places = [place.removeprefix("file://") for place in _search_path(overrides)]
    return [*config_dirs, *(place for place in places if "://" not in place)]


def resolve_globs(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> list[str]:
    """Replace globs by lists of choices; Hydra sees only the files of one directory, and hidden ones, too."""
    directories, resolved = _all_dirs(overrides, config_dirs), []
    for override in parse_overrides(overrides):
        line = override.input_line or ""
        if override.is_sweep_override() and isinstance(value := override.value(), Glob):
            names = value.filter(group_choices(override.key_or_group, directories))
            if not names:
                raise ConfigError(f"{line} matches no choice of {override.key_or_group}: see stoix-like list")
            line = f"{line.partition('=')[0]}={','.join(names)}"
        resolved.append(line)
    return resolved


def complete_overrides(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> list[str]:
    """Add what Hydra needs.

    `experiment=…` means `+experiment=…`, before other groups that are added; `env._target_=…` alone also means
    `env=own`, and `env=CartPole-v1`, an id of gymnasium, a suite and its scenario.
    """
    completed, directories = [], _all_dirs(overrides, config_dirs)
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "env" and _are_ids(ids := [name.strip("'\"") for name in value.split(",")], directories):
            suites = sorted({with_id(name, config_dir() / "env")[0] for name in ids})
            if len(suites) > 1:
                raise ConfigError(f"{override}: these ids are of {listed(suites, 'and')}: start a run of each")
            completed += [*suites, f"env.scenario.name={','.join(ids)}"]
        else:
            completed.append(f"+{override}" if key == "experiment" else override)
    completed = _experiment_first(completed)
    names = {override.partition("=")[0] for override in overrides}
    return [f"env={OWN}", *completed] if "env._target_" in names and "env" not in names else completed


def _experiment_first(overrides: Sequence[str]) -> list[str]:
    """Move `+experiment=…` before the other groups that are added: their values count."""
    keys = [f"+{group}" for group in ADDED]
    added = [override for override in overrides if override.partition("=")[0] in keys]
    ordered = iter(sorted(added, key=lambda override: not override.startswith("+experiment=")))
    return [next(ordered) if override in added else override for override in overrides]


def _are_ids(names: Sequence[str], config_dirs: Sequence[str | Path]) -> bool:
    """Return whether all names are ids of gymnasium."""
    return all(GYMNASIUM_ID.fullmatch(name) for name in names) and not {*names} & {*group_choices("env", config_dirs)}


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse Hydra overrides."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        words = [override for override in overrides if "=" not in override and not override.startswith("~")]
        if "=" in (unread := getattr(error, "override", None) or ""):
            raise ConfigError(f"{unread} cannot be read: {_reading_advice(unread, error)}") from error
        hint = words and unknown_keys.word_hint(words[0], group_choices("system"), group_choices("env"))
        raise ConfigError(
            f"'{words[0]}' is not an override: {hint}" if hint else f"{first_line(error)} (write it as key=value)"
        ) from error


def _reading_advice(override: str, error: HydraException) -> str:
    """Return how to write an override that cannot be read; Hydra's reason where quotes would not help."""
    key, _, value = override.partition("=")
    if value.startswith("~"):
        return "write $HOME in place of ~"
    if set(value).isdisjoint("[]{}()'\","):
        with contextlib.suppress(HydraException):
            OverridesParser.create().parse_override(f'{key}="{value}"')
            return f"quote the value, '{key}=\"{value}\"'"
    return first_line(error)


def override_config(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Override values of a composed configuration."""
    config = config.copy()
    # A choice replaces the whole group: keys of it come after, in whatever order they are written.
    for override in sorted(parse_overrides(overrides), key=lambda one: not _is_group_choice(one)):
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override() or override.is_delete():
            raise ConfigError(f"{override.input_line}: only key=value is possible here, no sweep or deletion")
        if _is_group_choice(override):
            config[key] = compose_config([f"{key}={value}"])[key]
            continue
        if key in GROUPS and not isinstance(value, dict):
            raise ConfigError(
                f"{override.input_line} names no choice that is possible here: only logger and checkpoint can be"
                " chosen, as in logger=silent"
            )
        known = list(flatten(OmegaConf.to_container(config)))
        if key not in known and not override.is_add():
            raise ConfigError(f"unknown key '{key}': {nearest(key, known)}")
        try:
            OmegaConf.update(config, key, value, force_add=True)
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            raise ConfigError(f"{override.input_line} does not fit the configuration: {first_line(error)}") from error
    return config


def _is_group_choice(override: Override) -> bool:
    return override.key_or_group in ("logger", "checkpoint") and isinstance(override.value(), str)


def expand_sweep(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> Iterator[list[str]]:
    """Yield the overrides of each run to check before a sweep starts."""
    values = list(map(_sweep_values, parse_overrides(resolve_globs(overrides, config_dirs))))
    if math.prod(len(choices) for choices in values) <= MAX_CHECKED:
        yield from (list(combination) for combination in itertools.product(*values))
        return
    first = [choices[0] for choices in values]
    yield first
    for position, choices in enumerate(values):
        for choice in choices[1:]:
            yield [*first[:position], choice, *first[position + 1 :]]


def _sweep_values(override: Override) -> list[str]:
    line = override.input_line or ""
    if not override.is_sweep_override():
        return [line]
    key, value = line.split("=", 1)[0], override.value()
    if isinstance(value, IntervalSweep):
        return [f"{key}={value.start}"]
    found = [f"{key}={choice}" for choice in override.sweep_string_iterator()]
    if not found:
        raise ConfigError(f"{line} has no values: give at least one")
    return found


@contextlib.contextmanager
def hydra_session() -> Iterator[None]:
    """Initialise Hydra with `config_dir()`, and restore the caller's Hydra at exit."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        register_environments()
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


@contextlib.contextmanager
def hydra_job(config: DictConfig, number: int | None = None) -> Iterator[None]:
    """Let `${hydra:…}` refer to a job that Hydra has not started yet, and restore the caller's job at exit.

    `number`: place of the job in its multirun; None for a run of its own.
    """
    job = config.copy()
    with contextlib.suppress(ConfigError, OmegaConfBaseException):  # Who needs the directory refuses it.
        if number is None:
            output_dir = run_dir_of(config)
        else:
            job.hydra.job.num = job.hydra.job.id = number
            output_dir = run_dir_of(config, "sweep") / job.hydra.sweep.subdir
        job.hydra.runtime.output_dir = str(output_dir.absolute())
    with _HYDRA:
        current, outer = HydraConfig.instance(), HydraConfig.instance().cfg
        current.set_config(job)
        try:
            yield
        finally:
            current.cfg = outer


def run_dir_of(config: DictConfig, kind: str = "run") -> Path:
    """Return the directory of a composed run, or of a sweep."""
    try:
        return Path(config.hydra[kind].dir)
    except OmegaConfBaseException as error:
        advice = "set what it refers to, or another directory"
        raise ConfigError(f"hydra.{kind}.dir: {first_line(error)}: {advice}") from error


def default_run_dir(config: DictConfig) -> Path:
    """Return the directory of a run that Hydra did not start, by `hydra.run.dir` of the primary configuration."""
    setup_globals()  # registers Hydra's resolvers, such as the time
    primary = OmegaConf.load(config_dir() / f"{PRIMARY}.yaml")
    pattern = OmegaConf.to_container(primary, resolve=False)["hydra"]["run"]["dir"]  # type: ignore[index,call-overload]
    extended = config.copy()
    OmegaConf.update(extended, "run_dir", pattern, force_add=True)
    return Path(extended.run_dir)


def _refusal(error: Exception, parsed: Sequence[Override], config_dirs: Sequence[str | Path]) -> str:
    """Say why overrides cannot be composed, in Hydra's own sentence where it is clear."""
    for override in parsed:
        if refusal := _refusal_of_form(override, str(error)):
            return refusal
    if unknown_choices := [override for override in parsed if _is_unknown_choice(override, config_dirs)]:
        return _refusal_of_choices(unknown_choices, parsed, config_dirs)
    cause, said = error.__cause__, first_line(error)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and isinstance(cause.parent_node, DictConfig):
        missing = str(cause.full_key)
        keys = [override.key_or_group for override in parsed]
        key = next((key for key in keys if f"{key}.".startswith(f"{missing}.")), missing)
        unknown = _all_unknown(parsed, config_dirs) or [UnknownKey(key, missing, cause.parent_node, "")]
        return _refusal_of_keys(unknown, config_dirs)
    if any(override.key_or_group.startswith("callbacks.") for override in parsed):
        return f"callbacks is a list: write 'callbacks=[{{_target_: …}}]' ({said})"
    for override in parsed:
        if refusal := unknown_keys.plus_refusal(override, said, ADDED):
            return refusal
    lines = [override.input_line or "" for override in parsed]
    return said if any(line in said for line in lines) else f"{' '.join(lines)}: {said}"


def _refusal_of_form(override: Override, said: str) -> str | None:
    """Refuse several values without `-m`, and launchers that are not there."""
    key, line = override.key_or_group, override.input_line
    if override.is_sweep_override():
        other = "choose one" if key in GROUPS else "write a list in brackets, key=[1,2]"
        other = _ONE_LOGGER if key == "logger" else other
        return f"{line} has several values: add -m to run each of them (stoix-like train -m …), or {other}"
    if key == "hydra/launcher" and f"'hydra/launcher/{override.value()}'" in said:
        return (
            f"{line} is not known, or not installed: use basic, which needs nothing, joblib, submitit_local or"
            f" submitit_slurm ({install_hint('launchers')}), or ray ({install_hint('ray')})"
        )
    return None


def _is_unknown_choice(override: Override, config_dirs: Sequence[str | Path]) -> bool:
    value, known = override.value(), [] if override.is_delete() else _all_choices(override.key_or_group, config_dirs)
    # A group may also be given inline, +system={...}, or as a list of choices.
    names = value if isinstance(value, list) else [] if isinstance(value, dict) else [value]
    return bool(known) and not all(name in known for name in names)


def _refusal_of_choices(
    unknown: Sequence[Override], parsed: Sequence[Override], config_dirs: Sequence[str | Path]
) -> str:
    """Say what each unknown choice may mean, and each unknown key that does not depend on them."""
    groups = {override.key_or_group for override in unknown}
    lines = [unknown_keys.choice_refusal(one, group_choices(one.key_or_group, config_dirs)) for one in unknown]
    # Systems choose networks, and experiments choose from all groups.
    groups |= {*GROUPS} if "experiment" in groups else {"network"} if "system" in groups else set()
    rest = [override for override in parsed if override.key_or_group.partition(".")[0] not in groups]
    answers = [(key, _refusal_of_keys([key], config_dirs)) for key in _all_unknown(rest, config_dirs)]
    # What the keys of these groups are called depends on the choice.
    replaced = groups & {"system", "network"}
    keys = [key for key, answer in answers if not any(f"{group}." in answer for group in replaced)]
    return "\n".join([*lines, _refusal_of_keys(keys, config_dirs)] if keys else lines)


def _refusal_of_keys(unknown: Sequence[UnknownKey], config_dirs: Sequence[str | Path]) -> str:
    return unknown_keys.refusal(unknown, *(group_choices(group, config_dirs) for group in ("system", "env")))


def _all_unknown(parsed: Sequence[Override], config_dirs: Sequence[str | Path]) -> list[UnknownKey]:
    """Find every key that does not exist once the other overrides are composed; none where these do not compose."""

    def is_plain(override: Override) -> bool:
        key = override.key_or_group
        return not (override.is_add() or override.is_delete() or "/" in key or group_choices(key, config_dirs))

    plain = [override for override in parsed if is_plain(override)]
    others = [override.input_line or "" for override in parsed if not is_plain(override)]
    try:
        composed = compose(PRIMARY, with_search(others, config_dirs), return_hydra_config=True)
    except _COMPOSE_ERRORS:
        return []
    return unknown_keys.find(plain, composed)
