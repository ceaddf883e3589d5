"""Atomic writes, and reads that neither follow links nor wait.

A run directory may come from elsewhere. Files are therefore written to new files of unpredictable names, which replace
the target without following a link, and only regular files are read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from stoix_like.errors import ConfigError

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def user_cache() -> Path:
    """Return the directory of the user's caches, which is created for only this user if it can be."""
    try:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoix_like"
    except RuntimeError as error:  # neither HOME nor an entry of the user
        raise OSError(f"{error} Set HOME or XDG_CACHE_HOME.") from error
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before what it is to hold is computed."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: {path.parent} is not a directory: create it first")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a directory: choose a file in it")
    check_place(path.parent, option)


def check_place(path: Path, option: str) -> None:
    """Refuse a path below which nothing can be written; directories that do not exist would be created."""
    present = path.absolute()
    try:
        # Unlike `exists`, it tells what is not there from what may not be looked at.
        while present != present.parent:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                present.stat()
                break
            present = present.parent
        # Permissions alone do not reveal read-only and special file systems.
        tempfile.TemporaryDirectory(dir=present).cleanup()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(f"{option}={path} cannot be written: {present}: {why}") from error


def plain(value: Any) -> Any:
    """Convert numbers, strings, arrays, lists and mappings to strict JSON: None for NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def line_of(record: Mapping[str, Any]) -> str:
    """Return the line of a record, in strict JSON."""
    return json.dumps(plain(record), allow_nan=False) + "\n"


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(plain(values), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode(), mode)


def write_bytes(path: Path, content: bytes | bytearray, mode: int = 0o666) -> None:
    """Write a file atomically."""
    with replaced(path, mode) as file:
        file.write(content)


@contextlib.contextmanager
def replaced(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file, which replaces `path` once it is complete and on disk; after an exception it is deleted."""
    # At most 255 bytes, whatever the name of the target.
    scratch = path.with_name(scratch_name(path.name))
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | _BINARY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a regular file. `limit`: the largest size to read, in bytes."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"has more than {limit:,} bytes", str(path))
    return content


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a link, not a regular file", str(path))
    # A FIFO without a writer would block.
    descriptor = os.open(path, flags | NO_FOLLOW | _NO_WAIT | _BINARY, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return descriptor


def check_directory(path: Path) -> None:
    """Refuse a path that exists and is not a directory of its own."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a link, not a directory", str(path))
    if path.exists() and not path.is_dir():
        raise OSError(errno.ENOTDIR, "is not a directory", str(path))


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file, which the operating system releases at exit."""
    # The lock would be created at the target of a link.
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ConfigError(f"{path} is not a regular file: remove it")
    # `run_files.is_locked` holds it for a moment.
    lock = filelock.FileLock(path, timeout=0.2, poll_interval=0.02)
    try:
        lock.acquire()
    except filelock.Timeout:  # an OSError, too
        # Without `flock`, the file itself is the lock, and outlives its process.
        stays = isinstance(lock, filelock.SoftFileLock)
        raise ConfigError(f"{refusal}{f'; delete {path} if its process is gone' if stays else ''}") from None
    try:
        yield
    finally:
        lock.release()


def scratch_name(name: str) -> str:
    """Return a name next to a file for its replacement; names of this form are left out of copies, and cleaned up."""
    return f".{name[:32]}.{secrets.token_hex(8)}.tmp"
