"""Every record as one line of JSON."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any, TextIO

from stoix_like.loggers.base import RunInfo, plain


class JsonlLogger:
    """Appends each record to a file, whole and on disk's way before `log` returns.

    The lines are strict JSON: NaN and infinities are written as null.

    Args:
        path: the file.
    """

    name = "jsonl"

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def start(self, info: RunInfo) -> None:
        """Open the file, with what a resumed run has behind it: no line more, none less, and none torn.

        Args:
            info: what is known of the run.
        """
        if info.history:
            # Whole or not at all: what was there is not given up before its place is taken.
            scratch = self._path.with_name(self._path.name + ".tmp")
            scratch.write_text("".join(map(_line, info.history)), encoding="utf-8", newline="\n")
            scratch.replace(self._path)
        self._file = self._path.open("a" if info.history else "w", encoding="utf-8", newline="\n")

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line.

        Args:
            record: the numbers of one evaluation window.
        """
        if self._file is not None:
            self._file.write(_line(record))
            self._file.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Nothing: the summary has a file of its own.

        Args:
            summary: not used.
        """

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"
