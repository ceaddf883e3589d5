"""The processes of a run on several hosts, and what they agree on.

Every process runs the same loop on the host, so that all of them call the same compiled programs in the same order.
What could differ between them is agreed on here: decisions that depend on time, signals, and the outcome of what only
one process does with files.

Orbax writes checkpoints together: each process writes its part of the arrays. How many processes there are is not
recorded, so a run may resume with another number of them, as long as the number of shards stays the same. If a process
is killed, the collective operations of the others fail, and they end with exit code 1; if it is stopped,
`run.host.heartbeat` ends them. An error that the others do not know of ends its process at once: at a regular exit, jax
waits for all of them.
"""

from __future__ import annotations

import contextlib
import json
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar

import jax
import numpy as np

from stoix_like import errors

T = TypeVar("T")

# Errors that end a run in all processes as they do in one.
_KNOWN = (
    errors.DamagedError,
    errors.HostEnvironmentError,
    errors.CallbackError,
    errors.LostDirectoryError,
    errors.TrainingError,
    errors.ConfigError,
)
# What jax's transports call the failure of a peer.
_SIGNS_OF_LOSS = ("Gloo", "NCCL", "coordination", "Coordination", "UNAVAILABLE", "heartbeat", "Connection")


@dataclass(frozen=True)
class Processes:
    """The processes that a run spans; of a run on one host, one process, for which every method returns at once.

    All processes call each method in the same order.
    """

    count: int = 1  # number of processes
    index: int = 0  # index of this process; the first one, 0, logs and owns the run directory

    @property
    def is_first(self) -> bool:
        """True if this process logs and owns the run directory."""
        return self.index == 0

    def say(self, text: str, file: TextIO | None = None) -> None:
        """Print a line once."""
        if self.is_first:
            print(text, file=file or sys.stderr)

    def first(self, function: Callable[[], T]) -> T:
        """Call a function in the first process, and return its result in all."""
        if self.count == 1:
            return function()
        failure, result, text = None, None, "null"
        if self.is_first:
            try:
                result = function()
                text = json.dumps(result)
            except BaseException as error:
                failure = error
        found, told = self._broadcast([text, _describe(failure)])
        if failure is not None:
            raise failure
        if told is not None:
            raise _error(told)
        return typing.cast(T, result if self.is_first else json.loads(found))

    @contextlib.contextmanager
    def in_first(self, context: Callable[[], AbstractContextManager[T]]) -> Iterator[T | None]:
        """Enter a context only in the first process; the others wait until it is entered, and until it is left."""
        with contextlib.ExitStack() as stack:
            entered: list[T] = []

            def enter() -> None:
                entered.append(stack.enter_context(context()))

            self.first(enter)
            yield entered[0] if entered else None
            self.first(stack.close)

    def together(self, function: Callable[[], T]) -> T:
        """Call a function in every process, and fail in all of them if it failed in one."""
        if self.count == 1:
            return function()
        failure: BaseException | None = None
        result = None
        try:
            result = function()
        except BaseException as error:  # the others wait for what became of it
            failure = error
        told = [one for one in self._gather(_describe(failure)) if one is not None]
        if told:
            kind, messages = told[0][0], dict.fromkeys(message for _, message in told)
            if failure is not None and len(told) == self.count and len(messages) == 1:
                raise failure
            raise _error([kind, "; ".join(messages)]) from failure
        return typing.cast(T, result)

    def largest(self, value: float) -> float:
        """Return the largest value of all processes. `value`: this process's; seconds, or the number of a signal."""
        if self.count == 1:
            return value
        from jax.experimental import multihost_utils

        return float(np.max(multihost_utils.process_allgather(np.float32(value))))

    def fetch(self, tree: Any) -> Any:
        """Copy arrays to the host, also if this process holds only a part of them."""
        return jax.device_get(self.readable(tree))

    def readable(self, tree: Any) -> Any:
        """Return arrays that this process can read, gathered where it holds only a part."""
        if self.count == 1:
            return tree
        from jax.experimental import multihost_utils

        def gather(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
                return leaf
            if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(gather(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
            if leaf.is_fully_replicated:
                return np.asarray(leaf)
            return multihost_utils.process_allgather(leaf, tiled=True)

        return jax.tree.map(gather, tree)

    @contextlib.contextmanager
    def watched(self, advice: str) -> Iterator[None]:
        """Translate the failure of a collective operation."""
        try:
            yield
        except (ValueError, RuntimeError) as error:
            if self.count == 1 or isinstance(error, _KNOWN) or not any(sign in str(error) for sign in _SIGNS_OF_LOSS):
                raise
            raise errors.ProcessLostError(
                f"process {self.index} of {self.count} has lost another one, which was killed or failed"
                f" ({errors.first_line(error)}); see the output of that one, and {advice}"
            ) from error

    def _broadcast(self, value: Any) -> Any:
        """Return the JSON value of the first process."""
        from jax.experimental import multihost_utils

        text = json.dumps(value).encode() if self.is_first else b""
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        return json.loads(bytes(multihost_utils.broadcast_one_to_all(_padded(text, size)))[:size])

    def _gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes, in their order."""
        from jax.experimental import multihost_utils

        text = json.dumps(value).encode()
        sizes = np.asarray(multihost_utils.process_allgather(np.int32(len(text)))).reshape(-1)
        rows = np.asarray(multihost_utils.process_allgather(_padded(text, int(sizes.max()))))
        return [json.loads(bytes(row)[:size]) for row, size in zip(rows, sizes, strict=True)]


ALONE = Processes()
"""The processes of a run on one host."""


def _padded(text: bytes, size: int) -> np.ndarray:
    """Return bytes in an array of at least `size`, a power of two: one program per length is compiled."""
    padded = np.zeros(max(64, 1 << (size - 1).bit_length()), np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    return padded


def _describe(error: BaseException | None) -> list[str] | None:
    if error is None:
        return None
    kind = next((known.__name__ for known in _KNOWN if isinstance(error, known)), type(error).__name__)
    return [kind, str(error)]


def _error(told: list[str]) -> Exception:
    """Return the error that another process described."""
    kind, message = told
    known = {error.__name__: error for error in _KNOWN}
    return known[kind](message) if kind in known else RuntimeError(f"a process failed: {kind}: {message}")


def is_agreed(error: BaseException) -> bool:
    """Return whether all processes of a run end with an error, so that no process blocks."""
    agreed = (errors.ConfigError, errors.TrainingError, KeyboardInterrupt, SystemExit)
    return isinstance(error, agreed) and not isinstance(error, errors.ProcessLostError)
