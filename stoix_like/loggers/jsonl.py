"""Metrics file with one line of JSON per record."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from stoix_like.loggers.base import RunInfo, plain
from stoix_like.storage.files import open_regular, write_text


class JsonlLogger:
    """JSON Lines logger, which writes every record before `log` returns.

    The lines are strict JSON: NaN and infinities become null. Records that could not be written, as on a full disk, are
    reported once and written together with the next one; no torn line stays.

    Args:
        path: the metrics file.
    """

    name = "jsonl"

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._head: str | None = None  # what the file starts with, until it is written
        self._descriptor: int | None = None
        self._size = 0  # of the complete lines
        self._pending: list[str] = []
        self._failing = False

    def start(self, info: RunInfo) -> None:
        """Replace the file by one that contains exactly the records of the history, none for a new run.

        Args:
            info: description of the run.
        """
        self._head = "".join(map(_line, info.history))
        self._write()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line.

        Args:
            record: the metrics of one evaluation interval.
        """
        self._pending.append(_line(record))
        self._write()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Do nothing: the summary has a file of its own.

        Args:
            summary: unused.
        """

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._pending and (self._head is not None or self._descriptor is not None):
            self._write()
            if self._pending:
                _report(f"{self._path} lacks the last {len(self._pending)} record(s)")
            self._pending.clear()
        self._head = None
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _write(self) -> None:
        """Write the pending lines; report the first failure, and leave them to the next call."""
        try:
            if self._descriptor is None:
                if self._head is None:
                    return
                write_text(self._path, self._head)
                self._descriptor = open_regular(self._path, os.O_WRONLY | os.O_APPEND)
                self._size, self._head = os.fstat(self._descriptor).st_size, None
            self._append(self._descriptor, "".join(self._pending).encode())
            self._pending.clear()
            self._failing = False
        except OSError as error:
            if not self._failing:
                _report(f"cannot write {self._path}: {error}; the next record is tried again")
            self._failing = True

    def _append(self, descriptor: int, content: bytes) -> None:
        """Append complete lines, or nothing."""
        try:
            written = 0
            while written < len(content):
                written += os.write(descriptor, content[written:])
            self._size += written
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)
            raise


def _report(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed as well
        print(message, file=sys.stderr)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"
