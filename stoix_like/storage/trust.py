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

from stoix_like import callbacks
from stoix_like.envs import wrappers
from stoix_like.errors import ConfigError
from stoix_like.loggers import sending_loggers
from stoix_like.storage.files import read_bytes, write_text

_MAX_RECORD_BYTES = 2**20
# Layers and networks, and the two functions that build them.
_MODULES = re.compile(r"(stoix_like\.networks|flax\.linen)(\.[A-Za-z]\w*)*")
_FUNCTIONS = ("stoix_like.networks.heads.policy_head", "stoix_like.networks.base.chained_torsos")
_WRAPPERS = re.compile(r"stoix_like\.envs\.wrappers\.[A-Za-z]\w*")
# The import path of a function, see `stoix_like.envs.suites.pgx`.
_OPPONENT = "env.kwargs.opponent"
_CALLBACKS = re.compile(r"stoix_like\.callbacks\.[A-Za-z]\w*")
# An environment that is passed from Python is never imported.
_HARMLESS = (("env._target_", ""), (_OPPONENT, "random"))
_MIRROR = "checkpoint.mirror"
_LOGGER_CHOICE = re.compile(r"logger=\w+")
_SYSTEMS = re.compile(r"stoix_like\.systems(\.[A-Za-z]\w*)+")


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
    # A choice replaces the whole group, and with it the loggers of the user's own.
    replaces_loggers = any(_LOGGER_CHOICE.fullmatch(word) for word in overrides)
    for key, value in pairs:
        names = key.split(".")
        if (key, value) in _HARMLESS or (names[0] == "logger" and replaces_loggers):
            continue
        if "_target_" in names and not (names[-1] == "_target_" and _is_trusted(value, names[0])):
            yield (
                f"{key}={value} is executed when the run is loaded, but only modules of stoix_like.networks and"
                " flax.linen, the wrappers of stoix_like.envs and stoix_like.callbacks are trusted"
            )
        elif names[:2] == ["system", "module"] and not (names[2:] == [] and _fits(_SYSTEMS, value)):
            yield f"{key}={value} is imported when the run is loaded, but only stoix_like.systems is trusted"
        elif key == _OPPONENT or (names[0], names[-1]) == ("callbacks", "function"):
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


def _is_trusted(target: Any, group: str) -> bool:
    """Return whether a name is one of the known functions, wrappers and callbacks, or a flax module so named.

    Callbacks import the functions that they are given, which are checked below their own key alone.
    """
    if group == "logger":
        return False
    if target in _FUNCTIONS:
        return True
    if _fits(_WRAPPERS, target):
        found = getattr(wrappers, target.rpartition(".")[2], None)
        return isinstance(found, type) and issubclass(found, wrappers.Wrapper)
    if _fits(_CALLBACKS, target) and group == "callbacks":
        found = getattr(callbacks, target.rpartition(".")[2], None)
        return isinstance(found, type) and issubclass(found, callbacks.Callback)
    if not _fits(_MODULES, target):
        return False
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return False
    is_module = isinstance(found, type) and issubclass(found, nn.Module)
    return is_module and _fits(_MODULES, found.__module__)


def _fits(pattern: re.Pattern[str], name: Any) -> bool:
    return isinstance(name, str) and pattern.fullmatch(name) is not None
