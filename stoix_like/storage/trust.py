"""The check of what a run directory may do when it is loaded: which code it may execute, and where it may send data."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn

from stoix_like.envs import wrappers
from stoix_like.errors import ConfigError
from stoix_like.loggers import sending_loggers
from stoix_like.storage.files import read_bytes, write_text

_MAX_RECORD_BYTES = 2**20
# What a configuration may build: classes defined in a package with this base, and these by their whole name.
_BASES = {"stoix_like.networks": nn.Module, "flax.linen": nn.Module, "stoix_like.envs.wrappers": wrappers.Wrapper}
_NAMES = (
    "stoix_like.networks.heads.policy_head",
    "stoix_like.networks.base.chained_torsos",
    "stoix_like.callbacks.StopAtReturn",
    "stoix_like.callbacks.StopWithoutImprovement",
)
_PATH = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+")
# The import path of a function, see `stoix_like.envs.suites.pgx`.
_OPPONENT = "env.kwargs.opponent"
# An environment that is passed from Python is never imported.
_HARMLESS = (("env._target_", ""), (_OPPONENT, "random"))
_MIRROR = "checkpoint.mirror"
_LOGGER_CHOICE = re.compile(r"logger=\w+")
_SYSTEMS = "stoix_like.systems"


def check_trusted(config: Iterable[tuple[str, Any]], where: str, overrides: Sequence[str] = ()) -> None:
    """Refuse a configuration that would execute foreign code or send data elsewhere, unless this user trained it.

    Args:
        config: pairs of a key and a plain value.
        where: the name of the file, for messages.
        overrides: the overrides of the command line, which may allow or disable a logger themselves.

    Raises:
        ConfigError: names the key and the value.
    """
    pairs = list(config)
    refused = next(_refusals(pairs, overrides), None)
    if refused is None:
        return
    directories = _recorded(pairs)
    if directories is None:
        raise ConfigError(f"{where}: {refused}: read it and, if you trust it, use --trust (trust=True)")
    # Code is imported from where it was imported in training, never from the working directory.
    sys.path += [directory for directory in directories if directory not in sys.path]


def record_trusted(config: Iterable[tuple[str, Any]]) -> None:
    """Record a configuration that this user has trained, so that its run can be loaded again.

    The record is a file in the user's own state directory, named by the digest of the configuration: a record in the
    run directory could be forged. It holds the directories that the code was imported from. Without a state directory,
    nothing is recorded.

    Args:
        config: pairs of a key and a plain value, as `check_trusted` will receive them.
    """
    pairs = list(config)
    if next(_refusals(pairs), None) is None:
        return
    path = _record_of(pairs)
    # Home may not exist, or be read-only.
    with contextlib.suppress(OSError, RuntimeError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(path.parent):
            write_text(path, json.dumps(sorted(_import_directories(pairs))), mode=0o600)


def _refusals(pairs: Sequence[tuple[str, Any]], overrides: Sequence[str] = ()) -> Iterator[str]:
    # A choice replaces the whole group, and with it the custom loggers.
    replaces_loggers = any(_LOGGER_CHOICE.fullmatch(word) for word in overrides)
    for key, value in pairs:
        names = key.split(".")
        if (key, value) in _HARMLESS or (names[0] == "logger" and replaces_loggers):
            continue
        if "_target_" in names and (names[-1] != "_target_" or names[0] == "logger" or not _is_trusted(value)):
            yield (
                f"{key}={value} is executed when the run is loaded, but only modules of stoix_like.networks and"
                " flax.linen, the wrappers of stoix_like.envs, StopAtReturn and StopWithoutImprovement are trusted"
            )
        elif names[:2] == ["system", "module"] and not (names[2:] == [] and _is_below(value, _SYSTEMS)):
            yield f"{key}={value} is imported when the run is loaded, but only {_SYSTEMS} is trusted"
        elif key == _OPPONENT:
            yield f"{key}={value} is imported when the run is loaded, but no function of this kind is trusted"
        elif names[0] == "env" and isinstance(value, str) and ":" in value:
            yield f"{key}={value} names a module that is imported when the run is loaded, but no such module is trusted"
        elif isinstance(value, str) and "${" in value:
            yield f"{key}={value} is interpolated when the run is loaded, but no interpolation is trusted"
    yield from _destinations(dict(pairs), overrides)


def _destinations(config: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[str]:
    """Yield where a configuration sends data that the command line does not name."""
    given = {word.lstrip("+").partition("=")[0] for word in overrides}
    mirror = config.get(_MIRROR)
    if mirror is not None and not given & {"checkpoint", _MIRROR}:
        yield f"{_MIRROR}={mirror} copies the run elsewhere (use {_MIRROR}={mirror} to allow it, =null to do without)"
    for name in sending_loggers(config):
        key = f"logger.{name}.enabled"
        if not given & {"logger", key, f"logger.{name}.mode"}:
            yield f"{key}=true sends data to another machine (use {key}=true to allow it, {key}=false to do without)"


def _recorded(pairs: Iterable[tuple[str, Any]]) -> list[str] | None:
    """Return the directories in the record of a configuration, or None without a record of this user's own."""
    try:
        path = _record_of(pairs)
        if not (_is_own(path.parent) and _is_own(path)):
            return None
        return [str(directory) for directory in json.loads(read_bytes(path, _MAX_RECORD_BYTES))]
    except (OSError, RuntimeError, ValueError):
        return None


def _record_of(pairs: Iterable[tuple[str, Any]]) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    digest = hashlib.sha256(json.dumps(sorted(pairs, key=lambda pair: pair[0]), default=str).encode()).hexdigest()
    return state / "stoix_like" / "trusted" / f"{digest}.json"


def _is_own(path: Path) -> bool:
    """Return whether this user owns a path, which nobody else may write."""
    status = path.lstat()
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and status.st_mode & 0o022 == 0)


def _import_directories(pairs: Iterable[tuple[str, Any]]) -> set[str]:
    """Return the directories that hold the top-level modules that a configuration names."""
    named = (
        str(value).partition(":")[0]
        for key, value in pairs
        if key in ("system.module", "env.scenario.name", _OPPONENT) or key.endswith("_target_")
    )
    modules = (sys.modules.get(name.partition(".")[0]) for name in named)
    files = [Path(module.__file__).absolute() for module in modules if module is not None and module.__file__]
    return {str(file.parents[1] if file.name == "__init__.py" else file.parent) for file in files}


def _is_trusted(target: Any) -> bool:
    """Return whether a name is one of `_NAMES`, or that of a class with a base of `_BASES`."""
    if target in _NAMES:
        return True
    for package, base in _BASES.items():
        if _is_below(target, package):
            module, _, name = target.rpartition(".")
            try:
                found = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                return False
            is_built = isinstance(found, type) and issubclass(found, base)
            return is_built and any(_is_below(f"{found.__module__}.{name}", place) for place in _BASES)
    return False


def _is_below(name: Any, package: str) -> bool:
    return isinstance(name, str) and name.startswith(f"{package}.") and _PATH.fullmatch(name) is not None
