"""Environments that run on the host: the bridge between a compiled program and stateful environments.

Every call of the program to the host takes the id of a batch of environments from the environment state and returns it.
This dependence alone keeps the calls of one batch in order, in loops, under `vmap` and on several devices: the compiler
can neither drop nor reorder them. Ordered callbacks would serialise all devices, and cannot be vmapped.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import VectorEnvironment, restart, transition
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import ObservationSpace, Space
from stoix_like.errors import HostEnvironmentError

T = TypeVar("T")


class HostOptions(NamedTuple):
    """How a suite builds environments on the host.

    Attributes:
        vectorization: how N environments are stepped together, `env.vectorization`.
        time_limit: truncate episodes after this many steps, in addition to the environment's own limit; None: no limit.
        evaluation: whether the environments are for evaluation.
        drawn: whether they can be asked for pictures; they then stay where an episode ended.
    """

    vectorization: str = "sync"
    time_limit: int | None = None
    evaluation: bool = False
    drawn: bool = False


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

    def picture(self) -> np.ndarray:
        """Return a picture `[H, W, 3]` of the first environment, uint8; only with `HostOptions.drawn`."""
        raise NotImplementedError(f"{type(self).__name__} has no pictures")

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
        fps: frames per second of the pictures of batches; None if they have none.
    """

    on_host = True

    def __init__(self, make: Callable[[int], HostBatch], spec: HostSpec, fps: int | None = None) -> None:
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self._spec, self._fps = spec, fps
        self._batches = _Batches(make)
        self._failure: Exception | None = None
        # Also where `close` is never called, and at exit.
        weakref.finalize(self, self._batches.close)

    def reset(self, keys: jax.Array) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        (num_envs,) = keys.shape
        seeds = (jax.vmap(jax.random.bits)(keys) >> 1).astype(jnp.int32)
        batch, view = io_callback(self._reset, (_ids(num_envs), self._observations(num_envs)), seeds)
        return self._start(batch, Observation(self._spec.encode(view)))

    def step(self, keys: jax.Array, state: HostState, action: jax.Array) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.step`."""
        del keys
        num_envs = len(state.batch)
        batch, result = io_callback(self._step, (_ids(num_envs), self._step_spec(num_envs)), state.batch, action)
        start, successor = (
            Observation(self._spec.encode(view)) for view in (result.observation, result.next_observation)
        )
        timestep = jax.vmap(transition)(successor, result.reward, result.terminated, result.truncated)
        return HostState(batch, start), timestep

    def next_episodes(self, state: HostState) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.next_episodes`."""
        return self._start(state.batch, state.start)

    def release(self, state: HostState) -> None:
        """See `VectorEnvironment.release`."""
        io_callback(self._release, None, state.batch)

    def view_of(self, native: PyTree) -> PyTree:
        """See `VectorEnvironment.view_of`."""
        specs = self._spec.observation
        arrays = jax.tree.map(lambda spec, given: np.asarray(given, spec.dtype), specs, native)
        first, spec = jax.tree.leaves(arrays)[0], jax.tree.leaves(specs)[0]
        leading = first.shape[: first.ndim - len(spec.shape)]
        rows = jax.tree.map(lambda array: array.reshape(-1, *array.shape[len(leading) :]), arrays)
        return jax.tree.map(lambda array: array.reshape(*leading, *array.shape[1:]), self._spec.encode(rows))

    def scene(self) -> Scene | None:
        """See `VectorEnvironment.scene`."""
        return None if self._fps is None else from_pictures(lambda picture: picture, self._fps)

    def picture(self, state: HostState) -> np.ndarray:
        """Return a picture of the first environment, outside of compiled programs.

        Args:
            state: the state of the environments.

        Returns:
            `[H, W, 3]` uint8.

        Raises:
            HostEnvironmentError: an environment failed.
        """
        batch = int(state.batch[0])
        self.check()
        return self._batches[batch].picture()

    def check(self) -> None:
        """See `VectorEnvironment.check`."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            reason = f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
            raise HostEnvironmentError(f"{self._spec.name} failed: {reason}") from failure

    def close(self) -> None:
        """See `VectorEnvironment.close`."""
        self._batches.close()

    @staticmethod
    def _start(batch: jax.Array, observation: Observation) -> tuple[HostState, TimeStep]:
        return HostState(batch, observation), jax.vmap(restart)(observation)

    def _observations(self, num_envs: int) -> PyTree:
        return jax.tree.map(lambda leaf: _shape(num_envs, leaf.dtype, leaf.shape), self._spec.observation)

    def _step_spec(self, num_envs: int) -> HostStep:
        view, flag = self._observations(num_envs), _shape(num_envs, bool)
        return HostStep(view, view, _shape(num_envs, jnp.float32), flag, flag)

    def _reset(self, seeds: jax.Array) -> tuple[np.ndarray, PyTree]:
        num_envs, spec = len(seeds), self._observations(len(seeds))

        def reset() -> tuple[int, PyTree]:
            batch = self._batches.take(num_envs)
            return batch, _like(self._batches[batch].reset(np.asarray(seeds).tolist()), spec)

        batch, view = self._guarded(reset, lambda: (-1, _zeros(spec)))
        return np.full(num_envs, batch, np.int32), view

    def _step(self, batch: jax.Array, actions: jax.Array) -> tuple[np.ndarray, HostStep]:
        ids, spec = np.asarray(batch), self._step_spec(len(batch))

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


def _zeros(spec: T) -> T:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
