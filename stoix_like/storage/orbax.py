"""Orbax, imported when a checkpoint is written or read, and tamed: its messages, its patterns in paths, its errors."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoix_like.errors import ConfigError, DamagedError, first_line

# What the file system and the process can fail with, whatever the bytes of a checkpoint are.
_TRANSIENT = tuple(
    getattr(errno, name)
    for name in (
        *("EACCES", "EPERM", "EMFILE", "ENFILE", "ENOMEM", "EIO", "ESTALE", "EINTR", "EAGAIN", "ETIMEDOUT"),
        *("ENOSPC", "EDQUOT", "EROFS"),
    )
    if hasattr(errno, name)
)
_GLOB = re.compile(r"[*?\[]")


@functools.cache
def load() -> Any:
    """Import Orbax, which takes as long as an evaluation, when a checkpoint is written or read; silence it."""
    import orbax.checkpoint

    # Afterwards: absl only replaces loggers that do not exist yet.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_Quiet())
    _silence_failed_tasks()
    return orbax.checkpoint


@contextlib.contextmanager
def alone(directory: Path, step: int) -> Iterator[Path]:
    """Yield a directory with a link to one checkpoint, so that Orbax reads none of the others."""
    with _temporary(directory.parent) as place:
        Path(place, str(step)).symlink_to(directory / str(step), target_is_directory=True)
        yield Path(place)


def _temporary(otherwise: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary directory; in another directory where the machine has no place for it."""
    try:
        return tempfile.TemporaryDirectory(prefix="stoix_like-")
    except OSError:
        return tempfile.TemporaryDirectory(prefix=".stoix_like-", dir=otherwise)


@contextlib.contextmanager
def plain_path(directory: Path) -> Iterator[Path]:
    """Yield a path of the directory without `*`, `?` and `[`.

    Orbax expands them even in the path of its directory. It then finds none of its files, loses the arrays on writing
    and the types of keys on reading, and raises no error.
    """
    if not _GLOB.search(str(directory)):
        yield directory
        return
    with _temporary(directory.parent) as place:
        link = Path(place, directory.name)
        link.symlink_to(directory, target_is_directory=True)
        yield link


def unreadable(place: Path, error: BaseException) -> ConfigError | DamagedError:
    """Return what to raise where a checkpoint could not be read."""
    links = [error]
    while (cause := links[-1].__cause__) is not None:
        links.append(cause)
    # Orbax wraps what its array store says in an error without a type of its own.
    reason = first_line(links[-1] if type(error) is Exception else error).rstrip(":")
    if any(map(_is_transient, links)):
        return ConfigError(f"cannot read {place}: {reason}; it is kept, and may be readable later")
    return DamagedError(f"{place}: {reason}")


def _is_transient(error: BaseException) -> bool:
    """Return whether the file system or the memory failed rather than the checkpoint."""
    if isinstance(error, OSError):
        return error.errno in _TRANSIENT
    transient = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED", "can't start new thread")
    return isinstance(error, MemoryError) or any(status in str(error) for status in transient)


class _Quiet(logging.Filter):
    """A filter for Orbax's progress messages, and for errors of its threads and tasks, which are reported here."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "/orbax/" in record.pathname:
            return False
        if record.name != "asyncio":
            return True
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        return not re.search("orbax|loop is closed", record.getMessage() + trace)


def _silence_failed_tasks() -> None:
    """Silence what Orbax leaves behind when it fails: the first array that does closes the event loop of the others.

    Their threads report at any time after the failure, until the process ends.
    """
    report = sys.unraisablehook

    def report_others(left: Any) -> None:
        if "loop is closed" not in str(left.exc_value) and not inspect.iscoroutine(left.object):
            report(left)

    sys.unraisablehook = report_others
    warnings.filterwarnings("ignore", r"coroutine '\w*serializ\w*\..*' was never awaited", RuntimeWarning)
