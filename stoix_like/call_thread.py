"""A thread for calls that may never return."""

from __future__ import annotations

import queue
import threading
import time
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_SECONDS_BETWEEN_CHECKS = 0.5


class NoAnswerError(Exception):
    """A call that takes longer than its time limit; the message says how long that is."""


class CallThread:
    """A thread that makes calls one after the other, so that one that hangs is left."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A daemon: the process may exit while a call hangs.
        threading.Thread(target=_serve, args=(self._calls,), daemon=True).start()

    def call(self, function: Callable[[], T], timeout: float, on_wait: Callable[[float], None] | None = None) -> T:
        """Call a function, and raise what it raises.

        `timeout`: in seconds, including the time for earlier calls that hang.
        `on_wait`: called twice per second with the seconds so far; may raise an exception to stop waiting.
        """
        answer, start = self.send(function), time.monotonic()
        elapsed = 0.0
        while True:
            try:
                result, error = answer.get(timeout=max(min(timeout - elapsed, _SECONDS_BETWEEN_CHECKS), 0.0))
            except queue.Empty:
                elapsed = time.monotonic() - start
            else:
                if error is not None:
                    raise error
                return typing.cast(T, result)
            if elapsed >= timeout:
                raise NoAnswerError(f"no answer within {timeout:g} seconds")
            if on_wait is not None:
                on_wait(elapsed)

    def send(self, function: Callable[[], Any]) -> queue.SimpleQueue[Any]:
        """Call a function without waiting for it.

        Returns a queue that receives its result, and what it raised or None.
        """
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, answer))
        return answer

    def close(self) -> None:
        """End the thread after the calls so far."""
        self._calls.put(None)

    def __del__(self) -> None:
        """End the thread, which does not refer to this object."""
        self.close()


def _serve(calls: queue.SimpleQueue[Any]) -> None:
    """Answer calls until None arrives; keep no reference to the last one."""
    while (call := calls.get()) is not None:
        function, answer = call
        try:
            answer.put((function(), None))
        except BaseException as error:
            answer.put((None, error))
        del call, function, answer
