"""Handling of the signals that stop a run: SIGTERM from a scheduler, SIGINT from a keyboard."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn


class Signals:
    """A context manager that records SIGTERM and SIGINT; a second SIGINT interrupts immediately.

    Outside the main thread, where Python cannot install signal handlers, it does nothing.

    Attributes:
        received: the signal that was received, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._record) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            # None stands for a handler that Python did not install and cannot restore.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def leave(self, message: str) -> NoReturn:
        """Exit, as the received signal asks.

        Args:
            message: printed to standard error.

        Raises:
            KeyboardInterrupt: SIGINT was received.
            SystemExit: SIGTERM was received; the exit code is that of a process it killed.
        """
        print(message, file=sys.stderr)
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
