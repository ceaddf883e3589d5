"""Several loggers combined into one that never fails."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoix_like.errors import raised_at
from stoix_like.loggers.base import Logger, RunInfo, UpdateLogger, VideoLogger
from stoix_like.user_code import user_errors


class MultiLogger:
    """Sequence of loggers that acts as one; a logger that raises is reported on stderr, closed and dropped."""

    name = "multi"

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)

    def start(self, info: RunInfo) -> None:
        """Start every logger."""
        self._call_each(lambda logger: logger.start(info))

    def log(self, record: Mapping[str, Any]) -> None:
        """Pass a record to every logger."""
        # A logger may change its copy; the record is part of the next checkpoint.
        self._call_each(lambda logger: logger.log(dict(record)))

    def log_updates(self, record: Mapping[str, Any]) -> None:
        """Pass the metrics of some updates to every logger that takes them."""
        self._call_each(lambda logger: logger.log_updates(dict(record)) if isinstance(logger, UpdateLogger) else None)

    def log_video(self, path: pathlib.Path, env_steps: int) -> None:
        """Pass a video to every logger that takes videos."""
        self._call_each(lambda logger: logger.log_video(path, env_steps) if isinstance(logger, VideoLogger) else None)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Pass the summary to every logger."""
        self._call_each(lambda logger: logger.finish(dict(summary)))

    def close(self) -> None:
        """Close every logger; a second call does nothing."""
        self._loggers.reverse()
        self._call_each(lambda logger: logger.close())
        self._loggers.clear()

    def _call_each(self, call: Callable[[Logger], None]) -> None:
        for logger in tuple(self._loggers):
            try:
                call(logger)
            except user_errors() as error:
                self._loggers.remove(logger)
                # Before the report, so that a progress bar restores the terminal first.
                with contextlib.suppress(*user_errors()):
                    logger.close()
                with contextlib.suppress(OSError, ValueError):  # stderr may be closed as well
                    reason = f"{type(error).__name__}: {error}{raised_at(error)}"
                    # A custom logger may have no name.
                    name = getattr(logger, "name", "") or type(logger).__name__
                    print(f"logger '{name}' failed; the run continues without it: {reason}", file=sys.stderr)
