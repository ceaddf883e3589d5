"""Environments that run on the host: the bridge between a compiled program and stateful environments.

Every call of the program to the host takes the id of a batch of environments from the environment state and returns it.
This dependence alone keeps the calls of one batch in order, in loops, under `vmap` and on several devices: the compiler
can neither drop nor reorder them. Ordered callbacks would serialise all devices, and cannot be vmapped.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import VectorEnvironment, restart, transition
from stoix_like.envs.spaces import ObservationSpace, Space
from stoix_like.errors import HostEnvironmentError

T = TypeVar("T")


class HostOptions(NamedTuple):
    """How a suite builds environments on the host.

    Attributes:
        vectorization: how N environments are stepped together, `env.vectorization`.
        time_limit: truncate episodes after this many steps, in addition to the environment's own limit; None: no limit.
        evaluation: whether the environments are for evaluation.
    """

    vectorization: str = "sync"
    time_limit: int | None = None
    evaluation: bool = False


class HostStep(NamedTuple):
    """The outcome of one step of N environments on the host.

    Attributes:
        observation: `[N, ...]` the observation to act on; where an episode ended, the first of the next one.
        next_observation: `[N, ...]` the true successor.
        reward: `[N]`.
        terminated: `[N]` bool.
        truncated: `[N]` bool.
    """

    observation: PyTree
    next_observation: PyTree
    reward: Any
    terminated: Any
    truncated: Any


class HostBatch(ABC):
    """N environments on the host, stepped together, that start the next episode in the step that ends the last one."""

    @abstractmethod
    def reset(self, seeds: list[int]) -> PyTree:
        """Start an episode in each environment.

        Args:
            seeds: N seeds, below 2**31.

        Returns:
            The first observations `[N, ...]`.
        """

    @abstractmethod
    def step(self, actions: np.ndarray) -> HostStep:
        """Take one step in each environment.

        Args:
            actions: `[N, ...]`.

        Returns:
            The outcome; its arrays are read before the next call.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""


class HostSpec(NamedTuple):
    """What a program must know of environments on the host.

    Attributes:
        name: suite and scenario, for messages.
        observation: `jax.ShapeDtypeStruct`s of one observation as the host returns it.
        encode: converts observations `[N, ...]` of the host into elements of `observation_space`.
        observation_space: the space of the agent's view.
        action_space: the space of the actions that the host takes.
    """

    name: str
    observation: PyTree
    encode: Callable[[PyTree], PyTree]
    observation_space: ObservationSpace
    action_space: Space


class HostState(NamedTuple):
    """The state of N environments on the host.

    Attributes:
        batch: `[N]` int32, the id of the batch that the environments belong to, the same for all.
        start: `[N, ...]` the first observation of the next episode where an episode ended in the last step.
    """

    batch: jax.Array
    start: Observation


class HostEnvironment(VectorEnvironment):
    """Vectorised environments on the host.

    Every `reset` takes its own batch of environments, so that devices, update batches, members of a population and
    evaluations never share one. `release` makes a batch available to later resets.

    An exception on the host does not reach the program, where it would leave other devices waiting. The program
    continues with episodes that terminate at once, and `check` raises the exception afterwards.

    Args:
        make: builds a batch of N environments.
        spec: names, shapes and spaces.
    """

    on_host = True

    def __init__(self, make: Callable[[int], HostBatch], spec: HostSpec) -> None:
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self._spec = spec
        self._batches = _Batches(make)
        self._failure: Exception | None = None
        # Also where `close` is never called, and at exit.
        weakref.finalize(self, self._batches.close)

    def reset(self, keys: jax.Array) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        (num_envs,) = keys.shape
        spec = _ids(num_envs), self._observations(num_envs)
        return self.started(*io_callback(self._reset, spec, self.seeds(keys)))

    def step(self, keys: jax.Array, state: HostState, action: jax.Array) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.step`."""
        del keys
        num_envs = len(state.batch)
        spec = _ids(num_envs), self.step_spec(num_envs)
        return self.stepped(*io_callback(self._step, spec, state.batch, action))

    def next_episodes(self, state: HostState) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.next_episodes`."""
        return self._start(state.batch, state.start)

    def release(self, state: HostState) -> None:
        """See `VectorEnvironment.release`."""
        io_callback(self._release, None, state.batch)

    def check(self) -> None:
        """See `VectorEnvironment.check`."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise self._error(failure) from failure

    def close(self) -> None:
        """See `VectorEnvironment.close`."""
        self._batches.close()

    def open(self, num_envs: int) -> DirectBatch:
        """Take a batch of environments, to step it without a compiled program; `close` closes it.

        Args:
            num_envs: N.

        Returns:
            The batch.

        Raises:
            HostEnvironmentError: an environment cannot be built.
        """
        with self._errors():
            return DirectBatch(self._batches[self._batches.take(num_envs)], self.step_spec(num_envs), self._errors)

    @staticmethod
    def seeds(keys: jax.Array) -> jax.Array:
        """Derive the seeds of environments from their keys `[N]`: `[N]` int32, at least 0."""
        return (jax.vmap(jax.random.bits)(keys) >> 1).astype(jnp.int32)

    def started(self, batch: jax.Array, view: PyTree) -> tuple[HostState, TimeStep]:
        """Build the result of `reset` from that of the host.

        Args:
            batch: `[N]`, see `HostState`.
            view: the first observations, as `HostBatch.reset` returns them.

        Returns:
            The state and the first time step `[N, ...]`.
        """
        return self._start(batch, Observation(self._spec.encode(view)))

    def stepped(self, batch: jax.Array, outcome: HostStep) -> tuple[HostState, TimeStep]:
        """Build the result of `step` from that of the host.

        Args:
            batch: `[N]`, see `HostState`.
            outcome: of `HostBatch.step`.

        Returns:
            The next state and the time step `[N, ...]`.
        """
        start, successor = (
            Observation(self._spec.encode(view)) for view in (outcome.observation, outcome.next_observation)
        )
        timestep = jax.vmap(transition)(successor, outcome.reward, outcome.terminated, outcome.truncated)
        return HostState(batch, start), timestep

    def step_spec(self, num_envs: int) -> HostStep:
        """Return the shapes and types of the outcome of a step, as `jax.ShapeDtypeStruct`s.

        Args:
            num_envs: N.

        Returns:
            The shapes `[N, ...]`.
        """
        view, flag = self._observations(num_envs), _shape(num_envs, bool)
        return HostStep(view, view, _shape(num_envs, jnp.float32), flag, flag)

    @staticmethod
    def _start(batch: jax.Array, observation: Observation) -> tuple[HostState, TimeStep]:
        return HostState(batch, observation), jax.vmap(restart)(observation)

    def _observations(self, num_envs: int) -> PyTree:
        return jax.tree.map(lambda leaf: _shape(num_envs, leaf.dtype, leaf.shape), self._spec.observation)

    def _error(self, failure: Exception) -> HostEnvironmentError:
        reason = f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
        return HostEnvironmentError(f"{self._spec.name} failed: {reason}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the environment in the exceptions of the host."""
        try:
            yield
        except Exception as failure:
            raise self._error(failure) from failure

    def _reset(self, seeds: jax.Array) -> tuple[np.ndarray, PyTree]:
        num_envs, spec = len(seeds), self._observations(len(seeds))

        def reset() -> tuple[int, PyTree]:
            batch = self._batches.take(num_envs)
            return batch, _like(self._batches[batch].reset(np.asarray(seeds).tolist()), spec)

        batch, view = self._guarded(reset, lambda: (-1, _zeros(spec)))
        return np.full(num_envs, batch, np.int32), view

    def _step(self, batch: jax.Array, actions: jax.Array) -> tuple[np.ndarray, HostStep]:
        ids, spec = np.asarray(batch), self.step_spec(len(batch))

        def step() -> HostStep:
            return _like(self._batches[int(ids[0])].step(np.asarray(actions)), spec)

        def ended() -> HostStep:
            return _zeros(spec)._replace(terminated=np.ones(len(ids), bool))

        return ids, self._guarded(step, ended)

    def _release(self, batch: jax.Array) -> None:
        self._guarded(lambda: self._batches.give_back(int(batch[0])), lambda: None)

    def _guarded(self, call: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Call the host; after an exception, stop calling it until `check` has raised."""
        if self._failure is None:
            try:
                return call()
            except Exception as error:
                self._failure = error
        return otherwise()


class DirectBatch:
    """A batch of environments that is stepped without a compiled program, by one thread.

    Args:
        batch: the environments.
        spec: shapes and types of the outcome of a step.
        errors: names the environment in exceptions.
    """

    def __init__(
        self, batch: HostBatch, spec: HostStep, errors: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._batch, self._spec, self._errors = batch, spec, errors

    def reset(self, seeds: jax.Array) -> PyTree:
        """Start an episode in each environment.

        Args:
            seeds: `[N]`, from `HostEnvironment.seeds`.

        Returns:
            Copies of the first observations `[N, ...]`.

        Raises:
            HostEnvironmentError: an environment failed.
        """
        with self._errors():
            return _copies(_like(self._batch.reset(np.asarray(seeds).tolist()), self._spec.observation))

    def step(self, actions: jax.Array) -> HostStep:
        """Take one step in each environment.

        Args:
            actions: `[N, ...]`.

        Returns:
            A copy of the outcome.

        Raises:
            HostEnvironmentError: an environment failed.
        """
        with self._errors():
            return _copies(_like(self._batch.step(np.asarray(actions)), self._spec))


class SplitSteps:
    """The traced parts of a step around the call to the host, for programs that leave the call to others.

    Args:
        env: environments on the host, with their wrappers.
    """

    def __init__(self, env: VectorEnvironment) -> None:
        host = env.unwrapped
        assert isinstance(host, HostEnvironment)
        self._env, self.host = env, host

    def start(self, keys: jax.Array, view: PyTree) -> tuple[Any, TimeStep]:
        """Build the result of `VectorEnvironment.reset`.

        Args:
            keys: `[N]` typed PRNG keys.
            view: of `DirectBatch.reset`.

        Returns:
            The state and the first time step `[N, ...]`.
        """
        return self._env.rebased(_Answered(self.host, view)).reset(keys)

    def host_action(self, keys: jax.Array, state: Any, action: jax.Array) -> jax.Array:
        """Convert actions to those that the environments on the host take.

        Args:
            keys: `[N]` typed PRNG keys.
            state: the state before the step.
            action: `[N, ...]` elements of the action space.

        Returns:
            `[N, ...]`, for `DirectBatch.step`.
        """
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.host.step_spec(len(keys)))
        base = _Answered(self.host, zeros)
        self._env.rebased(base).step(keys, state, action)
        return base.action

    def finish(self, keys: jax.Array, state: Any, action: jax.Array, outcome: HostStep) -> tuple[Any, TimeStep]:
        """Build the result of `VectorEnvironment.step`.

        Args:
            keys: `[N]`, those of `host_action`.
            state: the state before the step.
            action: `[N, ...]`, those of `host_action`.
            outcome: of `DirectBatch.step`.

        Returns:
            The next state and the time step `[N, ...]`.
        """
        return self._env.rebased(_Answered(self.host, outcome)).step(keys, state, action)


class _Answered(VectorEnvironment):
    """Environments on the host whose answer is already known; they remember the action."""

    on_host = True

    def __init__(self, host: HostEnvironment, answer: Any) -> None:
        self.observation_space, self.action_space = host.observation_space, host.action_space
        self._host, self._answer = host, answer
        self.action: Any = None

    def reset(self, keys: jax.Array) -> tuple[HostState, TimeStep]:
        return self._host.started(jnp.zeros(keys.shape, jnp.int32), self._answer)

    def step(self, keys: jax.Array, state: HostState, action: jax.Array) -> tuple[HostState, TimeStep]:
        self.action = action
        return self._host.stepped(state.batch, self._answer)

    def next_episodes(self, state: HostState) -> tuple[HostState, TimeStep]:
        return self._host.next_episodes(state)


class _Batches:
    """The batches of environments that exist, by id; devices call it in parallel."""

    def __init__(self, make: Callable[[int], HostBatch]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._next_id = itertools.count()
        self._batches: dict[int, HostBatch] = {}
        self._sizes: dict[int, int] = {}
        self._free: list[int] = []

    def __getitem__(self, batch: int) -> HostBatch:
        return self._batches[batch]

    def take(self, num_envs: int) -> int:
        """Return the id of a batch of `num_envs` environments that nothing else uses."""
        with self._lock:
            for batch in self._free:
                if self._sizes[batch] == num_envs:
                    self._free.remove(batch)
                    return batch
            batch = next(self._next_id)
        made = self._make(num_envs)
        with self._lock:
            self._batches[batch], self._sizes[batch] = made, num_envs
        return batch

    def give_back(self, batch: int) -> None:
        with self._lock:
            self._free.append(batch)

    def close(self) -> None:
        with self._lock:
            batches = list(self._batches.values())
            self._batches.clear()
            self._free.clear()
        for batch in batches:
            batch.close()


def _ids(num_envs: int) -> jax.ShapeDtypeStruct:
    return _shape(num_envs, jnp.int32)


def _shape(num_envs: int, dtype: Any, shape: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_envs, *shape), dtype)


def _like(tree: T, spec: T) -> T:
    """Convert the arrays of the host to the shapes and dtypes that the program expects."""

    def convert(leaf: jax.ShapeDtypeStruct, array: Any) -> np.ndarray:
        array = np.asarray(array, leaf.dtype)
        return array if array.shape == leaf.shape else array.reshape(leaf.shape)

    return jax.tree.map(convert, spec, tree)


def _copies(tree: T) -> T:
    """Copy arrays of the host: environments reuse theirs, and on a CPU programs read them where they are."""
    return jax.tree.map(np.array, tree)


def _zeros(spec: T) -> T:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
