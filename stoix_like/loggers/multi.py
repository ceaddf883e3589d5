"""Several loggers as one that never fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoix_like.loggers.base import Logger, RunInfo


class MultiLogger:
    """Tells every one of its loggers; one that raises is reported on stderr, closed, and told nothing more.

    Args:
        loggers: told in this order; closed in the opposite one.
    """

    name = "multi"

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)

    def start(self, info: RunInfo) -> None:
        """Start every logger.

        Args:
            info: what is known of the run.
        """
        self._tell(lambda logger: logger.start(info))

    def log(self, record: Mapping[str, Any]) -> None:
        """Give a record to every logger.

        Args:
            record: the numbers of one evaluation window.
        """
        self._tell(lambda logger: logger.log(record))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Give the summary to every logger.

        Args:
            summary: the results of the run.
        """
        self._tell(lambda logger: logger.finish(summary))

    def close(self) -> None:
        """Close every logger; a second call does nothing."""
        self._loggers.reverse()
        self._tell(lambda logger: logger.close())
        self._loggers.clear()

    def _tell(self, message: Callable[[Logger], None]) -> None:
        for logger in tuple(self._loggers):
            try:
                message(logger)
            except Exception as error:
                self._drop(logger, error)

    def _drop(self, logger: Logger, error: Exception) -> None:
        self._loggers.remove(logger)
        # Before the report, so that a progress bar has given the terminal back.
        with contextlib.suppress(Exception):
            logger.close()
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed, too
            print(f"logger '{logger.name}' failed and is dropped: {type(error).__name__}: {error}", file=sys.stderr)
