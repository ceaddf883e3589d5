"""The process of a command: its signals, streams and exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from stoix_like.errors import ConfigError, ProcessLostError, TrainingError, first_line, printable
from stoix_like.signals import Signals, received

# Importing the package and Hydra is part of the time of a run.
STARTED = time.perf_counter()

FAILED = 1
REFUSED = 2
INTERRUPTED = 130


@contextlib.contextmanager
def program(owns_process: bool) -> Iterator[None]:
    """Answer errors, signals and closed output of a command."""
    with Signals(owns_process), one_line_errors():
        if owns_process:
            _ignore_interrupted_callbacks()
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="replace")  # where a locale lacks a character
            sys.stderr = _LastingStream(sys.stderr)
        try:
            yield
            if owns_process and sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader has what it wanted, as in `| head`.
            _discard_output()


def _ignore_interrupted_callbacks() -> None:
    """Print no traceback of a callback of the interpreter that a signal interrupted."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if received() is None:
            report(unraisable)

    sys.unraisablehook = report_others


class _LastingStream:
    """Text stream that drops what it cannot write: a message without a reader stops no training."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def _discard_output() -> None:
    """Send standard output to nowhere; otherwise Python's final flush would report it again."""
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # replaced by a stream without a file
        os.dup2(null, sys.stdout.fileno())
    os.close(null)


def show(text: str) -> None:
    """Print a text, even where standard output cannot be written: then, say so and end the process."""
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        _stop(f"cannot write to standard output: {error.strerror}", FAILED)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with a line and an exit code where an error is one that a user can act on."""
    try:
        yield
    except ConfigError as error:
        _stop(str(error), REFUSED)
    except ProcessLostError as error:
        print(f"stoix-like: {error}", file=sys.stderr)
        _leave_others()
    except TrainingError as error:
        _stop(str(error), FAILED)
    except KeyboardInterrupt:
        _stop("interrupted", INTERRUPTED)
    except BrokenPipeError:
        raise
    except Exception as error:
        _stop_unexpectedly(error)
        raise


def _stop_unexpectedly(error: Exception) -> None:
    """End the program if an error that no part of it raises on purpose has a known cause."""
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1:
        traceback.print_exc()
        _leave_others()
    if os.environ.get("HYDRA_FULL_ERROR"):
        return
    if isinstance(error, OSError):
        _discard_output()
        _stop(str(error), FAILED)
    of_device = jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
    if of_device and "out of memory" in first_line(error).lower():
        _stop(
            f"{first_line(error)}; end other programs on the device, or make the run smaller: arch.total_num_envs,"
            " arch.population.size, system.total_batch_size, system.total_buffer_size",
            FAILED,
        )
    # A signal that interrupts an import or a callback of jax causes other errors.
    number = received()
    if number is not None:
        _stop("interrupted", 128 + number)


def _leave_others() -> NoReturn:
    """End only this process; at a regular exit, jax would wait for the others, which wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


def _stop(message: str, code: int) -> NoReturn:
    print(f"stoix-like: {printable(message)}", file=sys.stderr)
    sys.exit(code)
