"""Directories on object stores, by addresses such as `s3://bucket/run`.

A store holds the files of a run directory under the same names. A checkpoint there is complete once its marker,
`checkpoints/<env_steps>.complete`, lists its files: the marker is written last and removed first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.storage.run_files import ADDRESS, CHECKPOINTS

_CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)(\.complete$|/)")
# Extras by protocol, with the package that each one brings.
_EXTRAS = {"s3": ("s3", "s3fs"), "s3a": ("s3", "s3fs"), "gs": ("gcs", "gcsfs"), "gcs": ("gcs", "gcsfs")}


class Marker(NamedTuple):
    """The marker of a complete checkpoint.

    Attributes:
        identity: see `identity`.
        files: sizes in bytes by name in the directory of the checkpoint.
    """

    identity: str
    files: dict[str, int]


class Store:
    """A directory on an object store.

    Args:
        address: its address, `protocol://path`.

    Raises:
        ConfigError: the protocol is unknown, or its package is not installed.
    """

    def __init__(self, address: str | Path) -> None:
        self.address = normalised(address)
        self._fs, self._root = _open(self.address)
        # Files of a local file system are visible while they are written; objects of a store are not.
        self._renames = "file" in self._fs.protocol

    @property
    def local(self) -> Path | None:
        """The directory itself, if the store is a local file system."""
        return Path(self._root) if self._renames else None

    def names(self) -> list[str]:
        """Return the names of all files."""
        self._fs.invalidate_cache()
        prefix = self._root.rstrip("/") + "/"
        return sorted(path.removeprefix(prefix) for path in self._fs.find(self._root))

    def exists(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        self._fs.invalidate_cache()
        try:
            self._fs.info(self._path(name))
        except FileNotFoundError:
            return False
        # Any other error is no answer: `exists` of some stores would take it for one.
        return True

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return bytes(self._fs.cat_file(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        """Write a file, which replaces another one as a whole."""
        self._replace(name, lambda path: self._fs.pipe_file(path, content))

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file, which replaces another one as a whole."""
        self._replace(name, lambda path: self._fs.put_file(str(source), path))

    def upload_all(self, source: Path, names: list[str], place: str) -> None:
        """Copy files of a local directory to the directory `place`, several at a time where the store allows it."""
        self._fs.put([str(source / name) for name in names], [self._path(f"{place}/{name}") for name in names])

    def download_all(self, place: str, names: list[str], target: Path) -> None:
        """Copy files of the directory `place` to a local directory."""
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
        self._fs.get([self._path(f"{place}/{name}") for name in names], [str(target / name) for name in names])

    def download(self, name: str, target: Path) -> None:
        """Copy a file to a local one, which it replaces as a whole; the local one gets its time."""
        scratch = target.with_name(f".{target.name[:32]}.{secrets.token_hex(8)}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(self._path(name), str(scratch))
        with contextlib.suppress(Exception):  # not every store knows it
            written = self._fs.modified(self._path(name)).timestamp()
            os.utime(scratch, (written, written))
        scratch.replace(target)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def remove_checkpoint(self, step: int) -> None:
        """Remove a checkpoint, its marker first."""
        self.remove(marker_name(step))
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(f"{CHECKPOINTS}/{step}"), recursive=True)

    def checkpoints(self) -> dict[int, Marker | None]:
        """Return the markers of the checkpoints by environment steps, None for one that is not complete."""
        found = [match for match in map(_CHECKPOINT_FILE.match, self.names()) if match is not None]
        complete = {match[1] for match in found if match[2] == ".complete"}
        return {
            int(step): self.marker(int(step)) if step in complete else None
            for step in sorted({match[1] for match in found})
        }

    def marker(self, step: int) -> Marker:
        """Read the marker of a complete checkpoint."""
        values = json.loads(self.read(marker_name(step)))
        return Marker(str(values["identity"]), {_checked(name): int(size) for name, size in values["files"].items()})

    def _replace(self, name: str, put: Callable[[str], Any]) -> None:
        path = self._path(name)
        put(f"{path}.part" if self._renames else path)
        if self._renames:
            self._fs.mv(f"{path}.part", path)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{_checked(name)}"


def normalised(address: str | Path) -> str:
    """Return an address with two slashes after the protocol, and none at the end.

    Args:
        address: an address, perhaps as a path.

    Raises:
        ConfigError: it is not the address of a directory.
    """
    found = ADDRESS.fullmatch(str(address))
    if found is not None and re.match(r"[^/]*:[^/]*@", found[2]):
        raise ConfigError(
            f"the address {found[1]}://… contains a password, which the run would record: leave it to the configuration"
            " of fsspec, or to the environment"
        )
    # Stores expand patterns, also where they remove files.
    if found is None or ".." in PurePosixPath(found[2]).parts or any(part in found[2] for part in ("::", *"*?[")):
        raise ConfigError(f"{address} is not the address of a directory: use gs://bucket/run or s3://bucket/run")
    return f"{found[1]}://{'/' if found[1] == 'file' else ''}{found[2]}"


def marker_name(step: int) -> str:
    """Return the name of the marker of a checkpoint."""
    return f"{CHECKPOINTS}/{step}.complete"


def _checked(name: str) -> str:
    """Refuse a name that leads out of its directory: stores accept any text."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name:
        raise ConfigError(f"the store holds {name!r}, which is no name of a file in a run directory")
    return name


def _open(address: str) -> tuple[Any, str]:
    with reported(address):
        return _file_system(address)


def _file_system(address: str) -> tuple[Any, str]:
    import fsspec  # takes a tenth of a second, which most commands save

    # They report where they found credentials and endpoints, and errors that are raised, too.
    for name, level in (("aiobotocore", "WARNING"), ("botocore", "WARNING"), ("gcsfs", "CRITICAL")):
        logging.getLogger(name).setLevel(level)
    protocol = address.partition(":")[0]
    options = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        return fsspec.core.url_to_fs(address, **options, **({"auto_mkdir": True} if protocol == "file" else {}))
    except ImportError as error:
        if protocol in _EXTRAS:
            extra, package = _EXTRAS[protocol]
            raise MissingExtraError(address, package, extra) from error
        raise ConfigError(f"{address}: {error}") from error
    except ValueError as error:
        if protocol in fsspec.available_protocols():
            raise
        raise ConfigError(
            f"{address}: the protocol {protocol}:// is unknown: use gs://, s3:// or another one of fsspec"
        ) from error


@contextlib.contextmanager
def reported(address: str | Path) -> Iterator[None]:
    """Translate the errors of a store.

    Args:
        address: of the store, for the message.

    Raises:
        ConfigError: the store cannot be read.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # Each store has errors of its own.
        raise ConfigError(f"{normalised(address)} cannot be read: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
