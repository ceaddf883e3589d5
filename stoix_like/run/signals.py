"""Being asked to stop: SIGTERM, from a scheduler, and SIGINT, from a keyboard."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn


class Signals:
    """Notes SIGTERM and SIGINT instead of dying of them; the second SIGINT interrupts at once.

    A context manager. Outside of the main thread, where Python cannot receive signals, it does nothing.

    Attributes:
        received: the signal that came, if one did.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # A handler that was not installed from Python comes back as None, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def leave(self, message: str) -> NoReturn:
        """End as the signal asks.

        Args:
            message: printed on standard error.

        Raises:
            KeyboardInterrupt: it was SIGINT.
            SystemExit: it was SIGTERM, with the exit code of a process that it ended.
        """
        print(message, file=sys.stderr)
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
