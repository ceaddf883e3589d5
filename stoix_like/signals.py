"""Handling of the signals that stop a run: SIGTERM from a scheduler, SIGINT from a keyboard."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from stoix_like.processes import Processes

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
# The warning of a scheduler before it stops a job: where a launcher such as submitit handles it by queueing the job
# again, the run saves first.
_WARNING = getattr(signal, "SIGUSR2", None)
_SECONDS_TO_ANSWER = 1.0
# Clears the line of a progress bar and shows the cursor.
_RESTORE_TERMINAL = b"\r\x1b[2K\x1b[?25h"


class Signals:
    """A context manager that records SIGTERM and SIGINT, to be answered between calls of compiled programs.

    SIGUSR2 is recorded, too, where it has a handler: that handler is called in the end, in place of an exception.

    No exception is raised where a signal arrives: jax would swallow some, and others would end in a traceback. After a
    second in which the process compiles or saves, a signal is acknowledged. A second SIGINT stops immediately. A
    context within another shares its record. Outside the main thread, where Python cannot install signal handlers, only
    an outer context records.
    """

    _active: ClassVar[Signals | None] = None

    def __init__(self, owns_process: bool = False) -> None:
        self._owns_process = owns_process
        self._received: int | None = None
        self._agreed = False  # the run stops, and saves
        self._finished = False
        self._depth = 0  # of inner contexts, which have something to save
        self._expendable = False  # although in one of them: see `expendable`
        self._outer: Signals | None = None
        self._previous: dict[int, Any] = {}
        self._wake_up: tuple[socket.socket, socket.socket] | None = None
        self._previous_wake_up = -1
        self._arrived: list[int] = []
        self._seen: float | None = None
        self._watch: threading.Thread | None = None

    @property
    def received(self) -> int | None:
        """The signal that was received, or None."""
        return self._received if self._outer is None else self._outer.received

    def __enter__(self) -> Signals:
        self._outer = Signals._active
        if self._outer is not None:
            self._outer._depth += 1
        elif threading.current_thread() is threading.main_thread():
            # Python writes numbers of signals there at once, and calls handlers when the main thread is back from jax.
            self._wake_up = socket.socketpair()  # first: it may fail, and no context ends then
            self._wake_up[1].setblocking(False)
            Signals._active = self
            warnings = (_WARNING,) if _WARNING is not None and callable(signal.getsignal(_WARNING)) else ()
            self._previous = {number: signal.signal(number, self._record) for number in (*_NUMBERS, *warnings)}
            self._previous_wake_up = signal.set_wakeup_fd(self._wake_up[1].fileno(), warn_on_full_buffer=False)
            self._watch = threading.Thread(target=self._acknowledge, args=(self._wake_up[0],), daemon=True)
            self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._outer is not None:
            self._outer._depth -= 1
        if Signals._active is not self:
            return
        Signals._active = None
        self._finished = self._owns_process
        if self._wake_up is not None and self._watch is not None:
            signal.set_wakeup_fd(self._previous_wake_up)
            self._wake_up[1].shutdown(socket.SHUT_RDWR)  # also where a forked process has a copy
            self._watch.join()
            for end in self._wake_up:
                end.close()
        if self._finished:
            return
        while self._previous:
            number, handler = self._previous.popitem()
            # None stands for a handler that Python did not install and cannot restore.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if kind is None and self._received is not None:
            # It arrived after the last check: the caller's handlers answer it.
            signal.raise_signal(self._received)

    def agree(self, processes: Processes) -> int | None:
        """Record the signal that any process of the run received. Returns the signal, or None."""
        found = int(processes.largest(self.received or 0))
        if found:
            outer = self._outer or self
            outer._received, outer._agreed = found, True
        return found or None

    def waiting(self) -> float | None:
        """Return the seconds since this first saw a signal, even if the main thread has not called its handler yet.

        None before a signal.
        """
        if self._seen is None and (self.received is not None or any(one in self._previous for one in self._arrived)):
            self._seen = time.monotonic()
        return None if self._seen is None else time.monotonic() - self._seen

    def leave(self, message: str | None) -> NoReturn:
        """Exit, as the received signal asks. `message`: printed to standard error; None prints nothing."""
        if message is not None:
            print(message, file=sys.stderr)
        self._raise()

    def _raise(self) -> NoReturn:
        number = self.received
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        # Another process may have received it, where this one has no handler.
        if number is not None and number == _WARNING and number in (self._outer or self)._previous:
            (self._outer or self)._previous[number](number, None)
        raise SystemExit(128 + (number or signal.SIGTERM))

    def _acknowledge(self, numbers: socket.socket) -> None:
        """Read the signals that arrive, in a thread: the main one may compile for minutes, without a handler."""
        while True:
            try:
                number = numbers.recv(1)
            except TimeoutError:
                numbers.settimeout(None)
                # Where a handler has run, an exception is on its way, which may end other processes first.
                unanswered = self._depth == 0 and self._received is None
                if self._owns_process and (self._expendable or unanswered):
                    print("stopped before training" if self._expendable else "stopped", file=sys.stderr, flush=True)
                    _exit_at_once(self._arrived[-1])
                again = "; again: at once" if self._owns_process and self._arrived[-1] == signal.SIGINT else ""
                doing = "saving" if self._agreed else "stopping after the current compilation or call"
                print(f"{doing}{again}", file=sys.stderr, flush=True)
                continue
            if not number:  # closed
                return
            if number[0] == signal.SIGINT in self._arrived and self._owns_process:
                _exit_at_once(signal.SIGINT)
            if number[0] in self._previous:
                self._arrived.append(number[0])
                numbers.settimeout(_SECONDS_TO_ANSWER)

    def _record(self, number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and self._received == signal.SIGINT
        self._received = number
        if self._owns_process and (again or self._finished):
            # An exception could be swallowed, or end in the tracebacks of threads that are saving.
            _exit_at_once(number)
        if again or (self._owns_process and self._depth == 0):
            self._raise()


def _exit_at_once(number: int) -> NoReturn:
    if sys.__stdout__ is not None and sys.__stdout__.isatty():
        os.write(sys.__stdout__.fileno(), _RESTORE_TERMINAL)
    os._exit(128 + number)


def _leave_wake_up() -> None:
    """Keep signals of a forked process from the process that it shares sockets with, and let SIGTERM end it."""
    if Signals._active is not None:
        signal.set_wakeup_fd(-1)
        Signals._active._wake_up = None
        # It has nothing to save, and whoever ends it waits until it has ended.
        if signal.SIGTERM in (previous := Signals._active._previous):
            signal.signal(signal.SIGTERM, previous.pop(signal.SIGTERM) or signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_wake_up)


def defer() -> None:
    """Let the active context only record signals from now on: several processes agree on how to answer them."""
    if Signals._active is not None:
        Signals._active._depth += 1


@contextlib.contextmanager
def expendable(processes: Processes) -> Iterator[None]:
    """Let a signal end a program that has nothing to save yet, such as a lone process that compiles for minutes."""
    if (active := Signals._active) is None or processes.count > 1:
        yield
        return
    active._expendable = True
    try:
        yield
    finally:
        active._expendable = False


@contextlib.contextmanager
def unhandled() -> Iterator[None]:
    """Let signals end the process, while it waits in code that no handler can interrupt and has nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def received() -> int | None:
    """Return the signal that the active context has received, or None."""
    return None if Signals._active is None else Signals._active.received


def waiting() -> float | None:
    """Return for how long a signal has waited for the active context, in any thread."""
    return None if Signals._active is None else Signals._active.waiting()


def stop_if_received(processes: Processes) -> None:
    """Exit if the active context of any process has received a signal; called where nothing has been trained yet."""
    active = Signals._active or Signals()
    if active.agree(processes) is not None:
        active.leave("stopped before training" if processes.is_first else None)
