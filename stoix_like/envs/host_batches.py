"""Batches of environments on the host, each with a thread for all calls to it, so that one that hangs is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from stoix_like import signals
from stoix_like.base_types import PyTree
from stoix_like.call_thread import CallThread, NoAnswerError
from stoix_like.errors import HostEnvironmentError
from stoix_like.exact import as_spec

T = TypeVar("T")
# Seconds that environments have to close, and that those have which hang.
CLOSE_SECONDS = 10.0
_HUNG_SECONDS = 1.0
# Seconds that a call may take once a signal stops the run: schedulers kill it after about 30.
_SIGNAL_SECONDS = 10.0


class HostOptions(NamedTuple):
    """Options for building environments on the host."""

    vectorization: str = "sync"  # how N environments are stepped together, `env.vectorization`
    # Truncate episodes after this many steps, in addition to the environment's own limit; None: no limit.
    time_limit: int | None = None
    evaluation: bool = False  # whether the environments are for evaluation
    timeout: float = 300.0  # seconds that a call of the environments may take
    drawn: bool = False  # whether they can be asked for pictures; they then stay where an episode ended


class HostStep(NamedTuple):
    """The outcome of one step of N environments on the host."""

    observation: PyTree  # `[N, ...]` the observation to act on; where an episode ended, the first of the next one
    next_observation: PyTree  # `[N, ...]` the true successor
    reward: Any  # `[N]`
    terminated: Any  # `[N]` bool
    truncated: Any  # `[N]` bool


class HostBatch(ABC):
    """N environments on the host, stepped together, that start the next episode in the step that ends the last one."""

    @abstractmethod
    def reset(self, seeds: list[int]) -> PyTree:
        """Start an episode in each environment. Returns the first observations `[N, ...]`."""

    @abstractmethod
    def step(self, actions: np.ndarray) -> HostStep:
        """Take one step in each environment. `actions`: `[N, ...]`."""

    def picture(self) -> np.ndarray:
        """Return a picture `[H, W, 3]` of the first environment, uint8; only with `HostOptions.drawn`."""
        raise NotImplementedError(f"{type(self).__name__} has no pictures")

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""

    def kill(self) -> None:  # noqa: B027
        """End the processes of environments that hang in another call; by default, do nothing."""


class DirectBatch:
    """A batch of environments that is stepped without a compiled program, by one thread."""

    def __init__(
        self, batch: BatchThread, spec: HostStep, errors: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._batch, self._spec, self._errors = batch, spec, errors

    def reset(self, seeds: jax.Array) -> PyTree:
        """Start an episode in each environment.

        `seeds`: `[N]`, from `HostEnvironment.seeds`.
        Returns copies of the first observations `[N, ...]`.
        """
        with self._errors():
            return _copies(self._batch.reset(np.asarray(seeds), self._spec.observation))

    def step(self, actions: jax.Array) -> HostStep:
        """Take one step in each environment. `actions`: `[N, ...]`."""
        with self._errors():
            return _copies(self._batch.step(jax.tree.map(np.asarray, actions), self._spec))


class Batches:
    """The batches of environments that exist, by id; devices call it in parallel."""

    def __init__(self, make: Callable[[int], HostBatch], timeout: float) -> None:
        self._make, self._timeout = make, timeout
        self._lock = threading.Lock()
        self._next_id = itertools.count()
        self._threads: dict[int, BatchThread] = {}
        self._free: list[int] = []

    def __getitem__(self, batch: int) -> BatchThread:
        return self._threads[batch]

    def take(self, num_envs: int) -> int:
        """Return the id of a batch of `num_envs` environments that nothing else uses."""
        with self._lock:
            for batch in self._free:
                if self._threads[batch].num_envs == num_envs:
                    self._free.remove(batch)
                    return batch
            batch = next(self._next_id)
        thread = BatchThread(self._make, num_envs, self._timeout)
        with self._lock:
            self._threads[batch] = thread
        return batch

    def give_back(self, batch: int) -> None:
        """Let `take` return this batch again."""
        with self._lock:
            self._free.append(batch)

    def close(self) -> None:
        """Close all batches."""
        with self._lock:
            threads = list(self._threads.values())
            self._threads.clear()
            self._free.clear()
        for thread in threads:
            thread.close()


class BatchThread:
    """A thread that builds a batch of N environments and makes all calls to it."""

    def __init__(self, make: Callable[[int], HostBatch], num_envs: int, timeout: float) -> None:
        self.num_envs = num_envs
        self._timeout = timeout
        self._thread = CallThread()
        self._batch: HostBatch | None = None
        built: list[HostBatch] = []
        try:
            self._wait_for(lambda: built.append(make(num_envs)), timeout)
        except BaseException:
            # A batch that is built too late is closed again.
            self._thread.send(lambda: [batch.close() for batch in built])
            self._thread.close()
            raise
        self._batch = built[0]

    def call(self, function: Callable[[HostBatch], T]) -> T:
        """Call a function of the batch, and raise what it raises."""
        assert self._batch is not None
        batch = self._batch
        return self._wait_for(lambda: function(batch), self._timeout)

    def reset(self, seeds: np.ndarray, spec: T) -> T:
        """Start an episode in each environment; return its observations in the shapes and types of `spec`."""
        view: T = as_spec(spec, self.call(lambda envs: envs.reset(seeds.tolist())), "observation")
        _refuse_non_finite(view, "observation")
        return view

    def step(self, actions: np.ndarray, spec: HostStep) -> HostStep:
        """Take one step in each environment; return its outcome in the shapes and types of `spec`."""
        returned = self.call(lambda envs: envs.step(actions))
        outcome = HostStep(*map(as_spec, spec, returned, HostStep._fields))
        _refuse_non_finite(outcome.reward, "reward")
        # Where no episode ended, both are the same arrays.
        views = jax.tree.leaves((outcome.observation, outcome.next_observation))
        _refuse_non_finite(list({id(leaf): leaf for leaf in views}.values()), "observation")
        return outcome

    def close(self) -> None:
        """Close the environments and end the thread; nothing is raised."""
        if self._batch is not None:
            with contextlib.suppress(Exception):
                self._wait_for(self._batch.close, min(self._timeout, CLOSE_SECONDS))
        self._thread.close()

    def _wait_for(self, function: Callable[[], T], timeout: float) -> T:
        def call() -> T:
            try:
                return function()
            except Exception:
                raise
            except BaseException as error:
                # An exit of the environment is its error; an exit of the waiting thread ends the program.
                reason = ": ".join(filter(None, (type(error).__name__, str(error))))
                raise HostEnvironmentError(reason) from error

        try:
            return self._thread.call(call, timeout, _stop_after_signal)
        except NoAnswerError as error:
            self._timeout = _HUNG_SECONDS
            if self._batch is not None:
                self._batch.kill()
            limit = "" if isinstance(error, _NoAnswerToSignalError) else " (env.timeout)"
            raise HostEnvironmentError(f"{error}{limit}") from error


class _NoAnswerToSignalError(NoAnswerError):
    """A batch still computes when a signal stops the run; the scheduler soon ends the process."""


def _stop_after_signal(elapsed: float) -> None:
    """Stop to wait some time after a signal, over all calls."""
    if (waiting := signals.waiting()) is not None and waiting >= _SIGNAL_SECONDS:
        raise _NoAnswerToSignalError(f"no answer within {_SIGNAL_SECONDS:g} seconds of a signal that stops the run")


def with_rows(tree: PyTree, rows: PyTree, index: np.ndarray) -> PyTree:
    """Return a copy of arrays `[N, ...]` with `rows` at the indices, or the flags, `index`."""

    def replaced(leaf: np.ndarray, row: np.ndarray) -> np.ndarray:
        copy = leaf.copy()
        copy[index] = row
        return copy

    return jax.tree.map(replaced, tree, rows)


def stacked(trees: Iterable[PyTree]) -> PyTree:
    """Stack the arrays of several trees."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _copies(tree: T) -> T:
    """Copy arrays of the host: environments reuse theirs, and on a CPU programs read them where they are."""
    return jax.tree.map(np.array, tree)


def _refuse_non_finite(tree: PyTree, what: str) -> None:
    """Raise an error that names the first environment with NaN or an infinite number in its arrays `[N, ...]`."""
    for leaf in jax.tree.leaves(tree):
        if np.issubdtype(leaf.dtype, np.floating) and (bad := ~np.isfinite(leaf)).any():
            index = int(bad.reshape(len(leaf), -1).any(axis=1).argmax())
            value = "NaN" if np.isnan(leaf[index]).any() else leaf[index][bad[index]].flat[0]
            raise HostEnvironmentError(f"environment {index} of {len(leaf)} returned {value} in its {what}")


def draw_without_windows() -> None:
    """Let pygame draw only into arrays: SDL's Cocoa driver on macOS aborts outside the main thread."""
    if platform.system() == "Darwin":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
