"""Metrics file with one line of JSON per record."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any, TextIO

from stoix_like.loggers.base import RunInfo, plain


class JsonlLogger:
    """JSON Lines logger, which flushes every record before `log` returns.

    The lines are strict JSON: NaN and infinities become null.

    Args:
        path: the metrics file.
    """

    name = "jsonl"

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def start(self, info: RunInfo) -> None:
        """Open the file; for a resumed run, first rewrite it to contain exactly the records of its history.

        Args:
            info: description of the run.
        """
        if info.history:
            # Replaced atomically: the old file stays until the new one is complete.
            scratch = self._path.with_name(self._path.name + ".tmp")
            scratch.write_text("".join(map(_line, info.history)), encoding="utf-8", newline="\n")
            scratch.replace(self._path)
        self._file = self._path.open("a" if info.history else "w", encoding="utf-8", newline="\n")

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line.

        Args:
            record: the metrics of one evaluation interval.
        """
        if self._file is not None:
            self._file.write(_line(record))
            self._file.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Do nothing: the summary has a file of its own.

        Args:
            summary: unused.
        """

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"
