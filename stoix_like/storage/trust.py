"""The check of what a run directory may do when it is loaded: which code it may execute, and where it may send data."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn

from stoix_like.composition import parse_overrides
from stoix_like.envs import wrappers
from stoix_like.errors import ConfigError
from stoix_like.loggers import sending_loggers
from stoix_like.storage.contents import read_json
from stoix_like.storage.files import read_bytes, write_text
from stoix_like.storage.run_files import is_address
from stoix_like.unknown_keys import flatten

_MAX_RECORD_BYTES = 2**20
_MAX_MODULE_BYTES = 2**24
# What a group of a configuration may build: classes defined in a package with this base, and these by their whole name.
_BASES: dict[str, dict[str, type]] = {
    "network": {"stoix_like.networks": nn.Module, "flax.linen": nn.Module},
    "env": {"stoix_like.envs.wrappers": wrappers.Wrapper},
}
_NAMES = {
    "network": (
        *("stoix_like.networks.heads.policy_head", "stoix_like.networks.heads.dreamer_policy_head"),
        "stoix_like.networks.base.chained_torsos",
    ),
    "callbacks": (
        *("stoix_like.callbacks.StopAtReturn", "stoix_like.callbacks.StopWithoutImprovement"),
        "stoix_like.lab.tuning.progress.TuningProgress",  # of the runs of `tune`
    ),
}
_PATH = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+")
# Import paths of functions, see `envs.suites.pgx`, `envs.randomization` and `envs.symmetries`, but for these.
_OPPONENTS = ("env.kwargs.opponent", "env.eval_opponent")
_FUNCTIONS = (*_OPPONENTS, "env.randomization", "system.symmetry")
# An environment that is passed from Python is never imported.
_HARMLESS = (
    ("env._target_", ""),
    *((key, name) for key in _OPPONENTS for name in ("random", "self")),
    *(("env.randomization", value) for value in (None, "registered")),
    ("system.symmetry", None),
)
_MIRROR = "checkpoint.mirror"
SOURCES = ("system.teacher", "arch.init_from", "arch.resume_from")
"""Keys of runs that training reads, which may be on another machine."""
_LOGGER_CHOICE = re.compile(r"logger=\w+")
_SYSTEMS, _SYMMETRIES = "stoix_like.systems", "stoix_like.envs.symmetries"


class _Record(NamedTuple):
    """Record of a trusted configuration."""

    directories: list[str]  # where its code is imported from
    modules: dict[str, str | None]  # digests of its modules
    sends: bool = True  # whether it may send data elsewhere


def check_trusted(config: Iterable[tuple[str, Any]], where: str, overrides: Sequence[str] = ()) -> None:
    """Refuse a configuration that would execute foreign code or send data elsewhere, unless this user trained it."""
    pairs = list(config)
    refused = next(_refusals(pairs, overrides), None)
    if refused is None:
        return
    record = _recorded(pairs)
    doubt = None if record is None else _doubt(record)
    if doubt is not None:
        raise ConfigError(f"{where}: {doubt}: if that is right, add --trust (trust=True)")
    sent = next(_destinations(dict(pairs), overrides), None)
    if record is None or (sent is not None and not record.sends):
        elsewhere = "; for a command without it, evaluate the run with it once" if sent is None else ""
        what = refused if record is None or record.sends else sent or refused
        raise ConfigError(f"{where}: {what}: read it and, if you trust it, use --trust (trust=True){elsewhere}")
    # Code is imported from where it was imported in training, never from the working directory.
    sys.path += [directory for directory in record.directories if directory not in sys.path]


def record_trusted(config: Iterable[tuple[str, Any]], sends: bool = True) -> None:
    """Record a configuration that this user has trained or trusted, so that its run can be loaded again.

    The record is a file in the user's own state directory, named by the digest of the configuration: a record in the
    run directory could be forged. It holds the directories that the code was imported from, and digests of the modules
    that the configuration names. Without a state directory, nothing is recorded.
    """
    pairs = list(config)
    if next(_refusals(pairs), None) is None:
        return
    known = _recorded(pairs)
    if known is not None and known.sends and _doubt(known) is None:
        return
    record, path = _make_record(pairs, sends), _record_of(pairs)
    roots, found = ({name.partition(".")[0] for name in names} for names in (_modules(pairs), record.modules))
    if not sends and roots - found:
        return  # other code of that name could be imported later
    # Home may not exist, or be read-only.
    with contextlib.suppress(OSError, RuntimeError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(path.parent):
            write_text(path, json.dumps(record._asdict()), mode=0o600)


def _refusals(pairs: Sequence[tuple[str, Any]], overrides: Sequence[str] = ()) -> Iterator[str]:
    # A choice replaces the whole group, and with it the custom loggers.
    replaces_loggers = any(_LOGGER_CHOICE.fullmatch(word) for word in overrides)
    for key, value in pairs:
        names = key.split(".")
        if (key, value) in _HARMLESS or (names[0] == "logger" and replaces_loggers):
            continue
        if "_target_" in names and (names[-1] != "_target_" or not _is_trusted(names[0], value)):
            yield (
                f"{key}={value} is executed when the run is loaded, but only modules of stoix_like.networks and"
                " flax.linen below network, the wrappers of stoix_like.envs below env, and StopAtReturn and"
                " StopWithoutImprovement below callbacks are trusted"
            )
        elif names[:2] == ["system", "module"] and not (names[2:] == [] and _is_below(value, _SYSTEMS)):
            yield f"{key}={value} is imported when the run is loaded, but only {_SYSTEMS} is trusted"
        elif key in _FUNCTIONS and not (key == "system.symmetry" and _is_below(value, _SYMMETRIES)):
            yield f"{key}={value} is imported when the run is loaded, but no function of this kind is trusted"
        elif names[0] == "env" and isinstance(value, str) and ":" in value:
            yield f"{key}={value} names a module that is imported when the run is loaded, but no such module is trusted"
        elif isinstance(value, str) and "${" in value:
            yield f"{key}={value} is interpolated when the run is loaded, but no interpolation is trusted"
    yield from _destinations(dict(pairs), overrides)


def _destinations(config: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[str]:
    """Yield where a configuration sends data, or asks for them, that the command line does not name."""
    given = set(_named_keys(overrides))
    mirror = config.get(_MIRROR)
    if mirror is not None and not given & {"checkpoint", _MIRROR}:
        yield f"{_MIRROR}={mirror} copies the run elsewhere (use {_MIRROR}={mirror} to allow it, =null to do without)"
    for key in SOURCES:
        value = config.get(key)
        # The word may also belong to another key: a run is resumed from the address that it has already.
        if isinstance(value, str) and is_address(value) and key not in given and not any(value in o for o in overrides):
            yield f"{key}={value} contacts another machine (use {key}={value} to allow it)"
    if "logger" not in given:
        for key, value in config.items():
            if key.startswith("logger.") and key.endswith("._target_"):
                yield f"{key}={value} may send data to another machine (use logger=silent to do without)"
    for name in sending_loggers(config):
        key = f"logger.{name}.enabled"
        if not given & {"logger", key, f"logger.{name}.mode"}:
            yield f"{key}=true sends data to another machine (use {key}=true to allow it, {key}=false to do without)"


def _named_keys(overrides: Sequence[str]) -> Iterator[str]:
    """Yield the keys that overrides set; of a dictionary, which is merged into a group, those that it contains."""
    for override in parse_overrides(overrides):
        key, value = override.key_or_group, override.value()
        yield from (inner for inner in flatten(value, key) if inner != key) if isinstance(value, dict) else [key]


def _recorded(pairs: Iterable[tuple[str, Any]]) -> _Record | None:
    """Return the record of a configuration, or None without a record of this user's own."""
    try:
        path = _record_of(pairs)
        if not (_is_own(path.parent) and _is_own(path)):
            return None
        return _Record(**read_json(path, _MAX_RECORD_BYTES))
    except (OSError, RuntimeError, TypeError, ValueError):
        return None


def _record_of(pairs: Iterable[tuple[str, Any]]) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    digest = hashlib.sha256(json.dumps(sorted(pairs, key=lambda pair: pair[0]), default=str).encode()).hexdigest()
    return state / "stoix_like" / "trusted" / f"{digest}.json"


def _is_own(path: Path) -> bool:
    """Return whether this user owns a path, which no other user may write."""
    status = path.lstat()
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and status.st_mode & 0o022 == 0)


def _make_record(pairs: Iterable[tuple[str, Any]], sends: bool) -> _Record:
    """Describe the code that a configuration names, as it is imported in this process."""
    files = {name: path for name in _modules(pairs) if (path := _file_of(name)) is not None}
    directories = {
        str(path.parents[name.count(".") + path.name.startswith("__init__.")]) for name, path in files.items()
    }
    return _Record(sorted(directories), {name: _digest(path) for name, path in files.items()}, sends)


def _doubt(record: _Record) -> str | None:
    """Return why recorded code may be other code by now; None if it is the same."""
    places = [*map(Path, record.directories)]
    for name, digest in record.modules.items():
        path = _file_of(name, record.directories)
        if path is None or _digest(path) != digest:
            return f"the module {name} has changed since you used it"
        places += [path, *path.parents[: name.count(".") + 1]]
        parts = name.split(".")
        for package in (".".join(parts[:depth]) for depth in range(1, len(parts))):
            if package not in record.modules and _file_of(package, record.directories) is not None:
                return f"the package {package} has changed since you used it"
    shared = next((place for place in places if _others_may_write(place)), None)
    return None if shared is None else f"other users may write to {shared}"


def _modules(pairs: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield the foreign modules that a configuration names, and the packages that contain them."""
    for key, value in pairs:
        # Of a callback with a class that is refused already.
        is_function = key.startswith("callbacks.") and key.endswith(".function") and isinstance(value, str)
        names_code = key in ("system.module", "env.scenario.name", *_FUNCTIONS) or key.endswith("_target_")
        if is_function or (names_code and next(_refusals([(key, value)]), None) is not None):
            parts = str(value).partition(":")[0].split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _file_of(name: str, directories: Sequence[str] = ()) -> Path | None:
    """Return the file of a module, which is imported already or would be; None for what is no module with a file."""
    if name in sys.modules:
        found = getattr(sys.modules[name], "__file__", None)
        return None if found is None or name == "__main__" else Path(found).absolute()
    spec, places = None, [*sys.path, *directories]
    for part in name.split("."):
        # Unlike `importlib.util.find_spec`, it imports no package. By the last name alone: a package without a file
        # asks for what contains it, which is not imported.
        spec = PathFinder.find_spec(part, places)
        places = [] if spec is None else list(spec.submodule_search_locations or ())
    return None if spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(read_bytes(path.resolve(), _MAX_MODULE_BYTES)).hexdigest()
    except OSError:
        return None


def _others_may_write(path: Path) -> bool:
    """Return whether users other than this one, the superuser and, for the superuser, its owner may write to a path."""
    if not hasattr(os, "getuid"):
        return False
    try:
        status = path.stat()
    except OSError:
        return False
    # In containers, the superuser works in directories of the user of the host, who has a group of his own.
    by_owner = os.getuid() != 0 and status.st_uid not in (0, os.getuid())
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getgid(), status.st_uid)
    return bool(by_owner or by_group or status.st_mode & stat.S_IWOTH)


def _is_trusted(group: str, target: Any) -> bool:
    """Return whether a group may build a name: one of `_NAMES`, or a class with a base of `_BASES`."""
    if target in _NAMES.get(group, ()):
        return True
    bases = _BASES.get(group, {})
    for package, base in bases.items():
        if _is_below(target, package):
            module, _, name = target.rpartition(".")
            try:
                found = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                return False
            is_built = isinstance(found, type) and issubclass(found, base)
            return is_built and any(_is_below(f"{found.__module__}.{name}", place) for place in bases)
    return False


def _is_below(name: Any, package: str) -> bool:
    return isinstance(name, str) and name.startswith(f"{package}.") and _PATH.fullmatch(name) is not None
