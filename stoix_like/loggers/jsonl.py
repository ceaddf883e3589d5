"""Metrics file with one line of JSON per record."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from stoix_like.loggers.base import Logger, RunInfo
from stoix_like.storage.contents import MAX_RECORD_BYTES, parse_json
from stoix_like.storage.files import line_of, open_regular, replaced, write_text

_BLOCK = 2**20  # bytes


class JsonlLogger(Logger):
    """JSON Lines logger, which writes every record before `log` returns.

    The lines are strict JSON: NaN and infinities become null. Records that could not be written, as on a full disk, are
    reported once and written together with the next one; no torn line stays.
    """

    name = "jsonl"

    def __init__(self, path: pathlib.Path) -> None:
        self._metrics, self._updates = _Lines(path), _Lines(path.with_name("updates.jsonl"))

    def start(self, info: RunInfo) -> None:
        """Replace the files by the run's records up to its checkpoint: exactly its history, none for a new run."""
        self._metrics.start("".join(map(line_of, info.history)))
        if self._updates.path.exists():
            try:
                self._updates.keep(_size_up_to(self._updates.path, info.env_steps))
            except OSError as error:
                _report(f"cannot read {self._updates.path} ({error}): starting a new file")
                self._updates.start("")

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        self._metrics.append(line_of(record))

    def log_updates(self, record: Mapping[str, Any]) -> None:
        """Append one line to the file of records between evaluations."""
        if not self._updates.started:
            self._updates.start("")
        self._updates.append(line_of(record))

    def close(self) -> None:
        """Write what is left, and close the files."""
        self._metrics.close()
        self._updates.close()


class _Lines:
    """A file of complete lines."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._begin: Callable[[], None] | None = None  # what brings the file to its start, until it is done
        self._descriptor: int | None = None
        self._size = 0  # of the complete lines
        self._pending: list[str] = []
        self._failing = False

    @property
    def started(self) -> bool:
        """True if `start` or `keep` was called since `close`."""
        return self._begin is not None or self._descriptor is not None

    def start(self, head: str) -> None:
        """Replace the file by one with the lines of `head`."""
        self._begin = partial(write_text, self.path, head)
        self._write()

    def keep(self, size: int) -> None:
        """Cut the file after its first `size` bytes, which are complete lines."""
        self._begin = partial(_cut, self.path, size)
        self._write()

    def append(self, line: str) -> None:
        """Append a line."""
        self._pending.append(line)
        self._write()

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._pending and self.started:
            self._write()
            if self._pending:
                _report(f"{self.path} lacks the last {len(self._pending)} record(s)")
            self._pending.clear()
        self._begin = None
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _write(self) -> None:
        """Write the pending lines; report the first failure, and leave them to the next call."""
        try:
            if self._descriptor is None:
                if self._begin is None:
                    return
                self._begin()
                self._descriptor = open_regular(self.path, os.O_WRONLY | os.O_APPEND)
                self._size, self._begin = os.fstat(self._descriptor).st_size, None
            self._append(self._descriptor, "".join(self._pending).encode())
            self._pending.clear()
            self._failing = False
        except OSError as error:
            if not self._failing:
                _report(f"cannot write {self.path}: {error}; the next record is tried again")
            self._failing = True

    def _append(self, descriptor: int, content: bytes) -> None:
        """Append complete lines, or nothing."""
        try:
            if self._failing:  # The cut after a torn line may have failed, too.
                os.ftruncate(descriptor, self._size)
            written = 0
            while written < len(content):
                written += os.write(descriptor, content[written:])
            self._size += written
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)
            raise


def _size_up_to(path: pathlib.Path, env_steps: int) -> int:
    """Return the size of the lines of a file of records up to a checkpoint, in bytes; a damaged line ends them."""
    size = 0
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file, contextlib.suppress(ValueError):
        for line in iter(partial(file.readline, MAX_RECORD_BYTES), b""):
            if not line.endswith(b"\n") or parse_json(line, {"env_steps": int})["env_steps"] > env_steps:
                break
            size += len(line)
    return size


def _cut(path: pathlib.Path, size: int) -> None:
    """Replace a file by its first `size` bytes; a copy of the run may share the file itself."""
    status = path.lstat()
    if status.st_size == size and status.st_nlink == 1 and os.access(path, os.W_OK):
        return
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file, replaced(path) as kept:
        while size and (content := file.read(min(size, _BLOCK))):
            kept.write(content)
            size -= len(content)


def _report(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed as well
        print(message, file=sys.stderr)
