"""The configuration of a run, read from its directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from stoix_like.composition import override_config
from stoix_like.config import GROUPS, LAYOUT, flatten
from stoix_like.errors import ConfigError, printable
from stoix_like.storage import trust
from stoix_like.storage.contents import reading
from stoix_like.storage.files import read_bytes
from stoix_like.storage.run_files import CONFIG, LAYOUT_NUMBER, check_is_run, read_summary
from stoix_like.versions import versions

# A population of 10,000 lists 1 MiB of values.
MAX_BYTES = 2**21
_MAX_DEPTH = 64


def read_config(run_dir: Path, overrides: Sequence[str] = (), trusted: bool = False, learns: bool = True) -> DictConfig:
    """Read the configuration of a run."""
    plain = plain_config(run_dir)
    if not trusted:
        words = overrides if learns else [*overrides, *(f"{key}=null" for key in trust.SOURCES)]
        trust.check_trusted(flatten(plain), str(run_dir / CONFIG), words)
    if plain["arch"].get("architecture_name") in ("anakin", "offline"):
        plain["arch"]["distributed"] = None  # not recorded, because a run may resume with other processes
    return override_config(OmegaConf.create(plain), overrides)


def plain_config(run_dir: Path) -> dict[str, Any]:
    """Read the configuration of a run as plain values, without resolving or executing anything."""
    path = run_dir / CONFIG
    check_is_run(run_dir)
    try:
        text = read_bytes(path, MAX_BYTES).decode()
        _check_harmless(text)
        found = yaml.load(text, _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(name), dict) for name in GROUPS):
        raise ConfigError(f"{path} is not the configuration of a run: it must have the groups {', '.join(GROUPS)}")
    with reading(path):
        _check_layout(run_dir, found.pop(LAYOUT, None))
        return without_gone(found)


def _check_harmless(text: str) -> None:
    """Refuse aliases (ten lines stand for gigabytes), depths that end the process, and codes of terminals."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
            raise ValueError(f"it contains aliases, or more than {_MAX_DEPTH} levels: write values out")
        if isinstance(event, yaml.ScalarEvent) and printable(event.value) != event.value:
            raise ValueError(f"it contains control characters: {printable(event.value)[:60]}")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe loader, in C where that is available, which reads scalars as OmegaConf does: `1e-3`, and no dates."""


# OmegaConf's, except for its base-60 numbers, which are PyYAML's already.
_FLOAT = r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?)$"""
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT, re.VERBOSE), list("-+0123456789."))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def without_gone(config: Any) -> Any:
    """Return a configuration without keys of earlier versions; refuse values with which they had an effect."""
    halving = (config["arch"].get("population") or {}).pop("halving", None) or {}
    if halving.get("rounds") is not None or config["system"].pop("calibrated", False):
        raise ConfigError(
            "this version has neither arch.population.halving nor system.calibrated=true: use the run's version"
        )
    return config


def _check_layout(run_dir: Path, number: Any) -> None:
    """Refuse runs with files of another layout than this version writes."""
    if number != LAYOUT_NUMBER:
        version = (read_summary(run_dir).get("versions") or {}).get("stoix_like")
        writer = "another version of stoix_like" if version is None else f"stoix_like {version}"
        raise ConfigError(
            f"{run_dir} was written by {writer}, in a layout that stoix_like {versions()['stoix_like']} does not read:"
            " load it with the version that wrote it"
        )
