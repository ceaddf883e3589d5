"""Directories on object stores, by addresses such as `s3://bucket/run`.

A store holds the files of a run directory under the same names. A checkpoint there is complete once its marker,
`checkpoints/<env_steps>.complete`, lists its files: the marker is written last and removed first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.storage.contents import in_one_line, parse_json
from stoix_like.storage.files import scratch_name
from stoix_like.storage.run_files import ADDRESS, CHECKPOINTS

_CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)(\.complete$|/)")
# Extras by protocol, with the package that each one brings.
_EXTRAS = {"s3": ("s3", "s3fs"), "s3a": ("s3", "s3fs"), "gs": ("gcs", "gcsfs"), "gcs": ("gcs", "gcsfs")}

UNREADABLE = (FileNotFoundError, IsADirectoryError, PermissionError)
"""Errors of one object, which say nothing about the others."""


class Marker(NamedTuple):
    """The marker of a complete checkpoint."""

    identity: str
    files: dict[str, int]  # sizes in bytes by name in the directory of the checkpoint


class Store:
    """A directory on an object store."""

    def __init__(self, address: str | Path) -> None:
        self.address = normalised(address)
        with reported(self.address):
            self._fs, self._root = _file_system(self.address)
        # Files of a local file system are visible while they are written; objects of a store are not.
        self._renames = "file" in self._fs.protocol

    @property
    def local(self) -> Path | None:
        """The directory itself, if the store is a local file system."""
        return Path(self._root) if self._renames else None

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files in bytes, by name, but for those that are being written."""
        self._fs.invalidate_cache()
        prefix = self._root.rstrip("/") + "/"
        found = self._fs.find(self._root, detail=True)
        files = ((path.removeprefix(prefix), info["size"]) for path, info in sorted(found.items()))
        return {name: size for name, size in files if not name.endswith(".tmp")}

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
        paths = [self._path(f"{place}/{name}") for name in names]
        self._fs.get(paths, [str(target / name) for name in names])

    def download(self, name: str, target: Path) -> None:
        """Copy a file to a local one, which it replaces as a whole; the local one gets its time."""
        path, scratch = self._path(name), target.with_name(scratch_name(target.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fs.get_file(path, str(scratch))
            with contextlib.suppress(Exception):  # not every store knows it
                written = self._fs.modified(path).timestamp()
                os.utime(scratch, (written, written))
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)

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
        """Return the markers of the checkpoints by environment steps, None for one that is not complete or damaged."""
        sizes = self.sizes()
        found = [match for match in map(_CHECKPOINT_FILE.match, sizes) if match is not None]
        markers = {int(match[1]): self.marker(int(match[1])) for match in found if match[2] == ".complete"}
        steps = sorted({int(match[1]) for match in found})
        return {step: self._whole(step, markers.get(step), sizes) for step in steps}

    def marker(self, step: int) -> Marker | None:
        """Read the marker of a complete checkpoint; None if it is damaged, or removed meanwhile."""
        try:
            values = parse_json(self.read(marker_name(step)), {"identity": str, "files": {"*": int}})
            marker = Marker(values["identity"], values["files"])
        except (*UNREADABLE, ValueError):
            return None
        for name in marker.files:
            _checked(name)
        return marker

    @staticmethod
    def _whole(step: int, marker: Marker | None, sizes: dict[str, int]) -> Marker | None:
        """Return a marker if all its files are there."""
        files = {} if marker is None else marker.files
        is_whole = all(sizes.get(f"{CHECKPOINTS}/{step}/{name}") == size for name, size in files.items())
        return marker if is_whole else None

    def _replace(self, name: str, put: Callable[[str], Any]) -> None:
        path = self._path(name)
        if not self._renames:
            put(path)
            return
        place, _, file = path.rpartition("/")
        part = f"{place}/{scratch_name(file)}"
        try:
            put(part)
            self._fs.mv(part, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.rm_file(part)
            raise

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{_checked(name)}"


def normalised(address: str | Path) -> str:
    """Return an address with two slashes after the protocol, and none at the end."""
    found = ADDRESS.fullmatch(str(address))
    if found is not None and re.match(r"[^/]*:[^/]*@", found[2]):
        raise ConfigError(
            f"the address {found[1]}://… contains a password, which the run would record: leave it to the configuration"
            " of fsspec, or to the environment"
        )
    # Stores expand patterns, also where they remove files. The memory of this process ends with it.
    if (
        found is None
        or found[1] == "memory"
        or ".." in PurePosixPath(found[2]).parts
        or any(part in found[2] for part in ("::", *"*?["))
    ):
        raise ConfigError(f"{address} is not the address of a directory: use gs://bucket/run or s3://bucket/run")
    return f"file:///{found[2]}" if found[1] in ("file", "local") else f"{found[1]}://{found[2]}"


def marker_name(step: int) -> str:
    """Return the name of the marker of a checkpoint."""
    return f"{CHECKPOINTS}/{step}.complete"


def _checked(name: str) -> str:
    """Refuse a name that leads out of its directory: stores accept any text."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name:
        raise ConfigError(f"the store holds {name!r}, which is not a valid run file name")
    return name


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
    """Translate the errors of a store."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # Each store has errors of its own.
        raise ConfigError(f"{normalised(address)} cannot be read: {in_one_line(error)}") from error
