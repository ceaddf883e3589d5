"""The configuration of a run, read from its directory."""

from __future__ import annotations

import contextlib
import io
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like.composition import override_config
from stoix_like.config import GROUPS, LAYOUT, flatten
from stoix_like.errors import ConfigError, printable
from stoix_like.storage import trust
from stoix_like.storage.files import read_bytes
from stoix_like.storage.run_files import CONFIG, LAYOUT_NUMBER, check_is_run, read_summary
from stoix_like.versions import versions

# A run of this package needs less than a twentieth; a population of 10,000 lists 1 MiB of values.
MAX_BYTES = 2**21
_NOT_A_RUN = f"{{}} is not the configuration of a run: it must have the groups {', '.join(GROUPS)}"


def read_config(run_dir: Path, overrides: Sequence[str] = (), trusted: bool = False, learns: bool = True) -> DictConfig:
    """Read the configuration of a run."""
    config = _load(run_dir)
    if not trusted:
        words = overrides if learns else [*overrides, *(f"{key}=null" for key in trust.SOURCES)]
        trust.check_trusted(flatten(_plain(config)), str(run_dir / CONFIG), words)
    if config.arch.get("architecture_name") in ("anakin", "offline"):
        config.arch.distributed = None  # not recorded, because a run may resume with other processes
    return override_config(config, overrides)


def plain_config(run_dir: Path) -> dict[str, Any]:
    """Read the configuration of a run as plain values, without resolving or executing anything."""
    path = run_dir / CONFIG
    with _reading(path):
        found = yaml.load(_text(run_dir), _Loader)
    if not isinstance(found, dict) or not all(isinstance(found.get(name), dict) for name in GROUPS):
        raise ConfigError(_NOT_A_RUN.format(path))
    _check_layout(run_dir, found.pop(LAYOUT, None))
    return without_gone(found)


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


def _check_harmless(text: str) -> None:
    """Refuse aliases, which would fill the memory, and control characters, which a terminal would obey."""
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it contains the alias *{event.anchor}: write the value out")
        if isinstance(event, yaml.ScalarEvent) and printable(event.value) != event.value:
            raise ValueError(f"it contains control characters: {printable(event.value)[:60]}")


def _plain(config: DictConfig) -> dict[str, Any]:
    return typing.cast(dict[str, Any], OmegaConf.to_container(config))


def _load(run_dir: Path) -> DictConfig:
    path = run_dir / CONFIG
    with _reading(path):
        config = OmegaConf.load(io.StringIO(_text(run_dir)))
        is_run = isinstance(config, DictConfig) and all(isinstance(config.get(name), DictConfig) for name in GROUPS)
    if not isinstance(config, DictConfig) or not is_run:
        raise ConfigError(_NOT_A_RUN.format(path))
    _check_layout(run_dir, config.pop(LAYOUT, None))
    return without_gone(config)


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
        recorded = read_summary(run_dir).get("versions")
        version = recorded.get("stoix_like") if isinstance(recorded, dict) else None
        writer = f"stoix_like {printable(version)}" if isinstance(version, str) else "another version of stoix_like"
        raise ConfigError(
            f"{run_dir} was written by {writer}, in a layout that stoix_like {versions()['stoix_like']} does not read:"
            " load it with the version that wrote it"
        )


def _text(run_dir: Path) -> str:
    check_is_run(run_dir)
    text = read_bytes(run_dir / CONFIG, MAX_BYTES).decode()
    _check_harmless(text)
    return text


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report why a configuration cannot be read."""
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {path}: {' '.join(str(error).split())}") from error
