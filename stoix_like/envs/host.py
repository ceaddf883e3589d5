"""Environments that run on the host: the bridge between a compiled program and stateful environments.

Every call of the program to the host takes the id of a batch of environments from the environment state and returns it.
This dependence alone keeps the calls of one batch in order, in loops, under `vmap` and on several devices: the compiler
can neither drop nor reorder them. Ordered callbacks would serialise all devices, and cannot be vmapped.

Each batch has a thread that makes all calls to it, so that a call that hangs can be abandoned.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import VectorEnvironment, restart, transition
from stoix_like.envs.legends import Legend, find_legend
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import ObservationSpace, Space
from stoix_like.errors import HostEnvironmentError

T = TypeVar("T")
# Seconds that environments have to close, and that those have which hang.
_CLOSE_SECONDS = 10.0
_HUNG_SECONDS = 1.0


class HostOptions(NamedTuple):
    """How a suite builds environments on the host.

    Attributes:
        vectorization: how N environments are stepped together, `env.vectorization`.
        time_limit: truncate episodes after this many steps, in addition to the environment's own limit; None: no limit.
        evaluation: whether the environments are for evaluation.
        timeout: seconds that a call of the environments may take.
        drawn: whether they can be asked for pictures; they then stay where an episode ended.
    """

    vectorization: str = "sync"
    time_limit: int | None = None
    evaluation: bool = False
    timeout: float = 300.0
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

    def kill(self) -> None:  # noqa: B027
        """End the processes of environments that hang in another call; by default, do nothing."""


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
        timeout: seconds that a call of a batch may take.
        fps: frames per second of the pictures of batches; None if they have none.
    """

    on_host = True

    def __init__(
        self, make: Callable[[int], HostBatch], spec: HostSpec, timeout: float, fps: int | None = None
    ) -> None:
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self._spec, self._fps = spec, fps
        self._batches = _Batches(make, timeout)
        self._failure: BaseException | None = None
        # Also where `close` is never called, and at exit.
        weakref.finalize(self, self._batches.close)

    def reset(self, keys: jax.Array) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        (num_envs,) = keys.shape
        spec = self._observations(num_envs)
        return self.started(*_call_host(partial(self._reset, spec), (_ids(num_envs), spec), self.seeds(keys)))

    def step(self, keys: jax.Array, state: HostState, action: jax.Array) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.step`."""
        del keys
        num_envs = len(state.batch)
        spec = self.step_spec(num_envs)
        return self.stepped(*_call_host(partial(self._step, spec), (_ids(num_envs), spec), state.batch, action))

    def next_episodes(self, state: HostState) -> tuple[HostState, TimeStep]:
        """See `VectorEnvironment.next_episodes`."""
        return self._start(state.batch, state.start)

    def release(self, state: HostState) -> None:
        """See `VectorEnvironment.release`."""
        _call_host(self._release, None, state.batch)

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

    def legend(self) -> Legend:
        """See `VectorEnvironment.legend`."""
        return find_legend(self._spec.name.rsplit("/", 1)[-1])

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
        return self._batches[batch].call(lambda environments: environments.picture())

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

    def _error(self, failure: BaseException) -> HostEnvironmentError:
        message = str(failure).strip().partition("\n")[0]
        kind = "" if isinstance(failure, HostEnvironmentError) else type(failure).__name__
        return HostEnvironmentError(f"{self._spec.name} failed: {': '.join(filter(None, (kind, message)))}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the environment in the exceptions of the host."""
        try:
            yield
        except Exception as failure:
            raise self._error(failure) from failure

    def _reset(self, spec: PyTree, seeds: np.ndarray) -> tuple[np.ndarray, PyTree]:
        num_envs = len(seeds)

        def reset() -> tuple[int, PyTree]:
            batch = self._batches.take(num_envs)
            return batch, self._batches[batch].reset(seeds, spec)

        batch, view = self._guarded(reset, lambda: (-1, _zeros(spec)))
        return np.full(num_envs, batch, np.int32), view

    def _step(self, spec: HostStep, batch: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, HostStep]:
        def step() -> HostStep:
            return self._batches[int(batch[0])].step(actions, spec)

        def ended() -> HostStep:
            return _zeros(spec)._replace(terminated=np.ones(len(batch), bool))

        return batch, self._guarded(step, ended)

    def _release(self, batch: np.ndarray) -> None:
        self._guarded(lambda: self._batches.give_back(int(batch[0])), lambda: None)

    def _guarded(self, call: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Call the host; after an exception, stop calling it until `check` has raised."""
        if self._failure is None:
            try:
                return call()
            except BaseException as error:  # `sys.exit`, too.
                self._failure = error
        return otherwise()


class _Thread:
    """A thread that builds a batch of N environments and makes all calls to it."""

    def __init__(self, make: Callable[[int], HostBatch], num_envs: int, timeout: float) -> None:
        self.num_envs = num_envs
        self._timeout = timeout
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._batch: HostBatch | None = None
        # A daemon: the process may exit while a call hangs.
        threading.Thread(target=_serve, args=(self._calls,), daemon=True).start()
        try:
            self._batch = self._wait_for(lambda: make(num_envs), timeout)
        except BaseException:
            self.close()
            raise

    def call(self, function: Callable[[HostBatch], T]) -> T:
        """Call a function of the batch, and raise what it raises.

        Raises:
            HostEnvironmentError: it takes longer than the timeout.
        """
        assert self._batch is not None
        batch = self._batch
        return self._wait_for(lambda: function(batch), self._timeout)

    def reset(self, seeds: np.ndarray, spec: T) -> T:
        """Start an episode in each environment; return its observations in the shapes and types of `spec`."""
        view: T = _like(self.call(lambda envs: envs.reset(seeds.tolist())), spec)
        _refuse_nan(view, "observation")
        return view

    def step(self, actions: np.ndarray, spec: HostStep) -> HostStep:
        """Take one step in each environment; return its outcome in the shapes and types of `spec`."""
        outcome = _like(self.call(lambda envs: envs.step(actions)), spec)
        _refuse_nan(outcome.reward, "reward")
        _refuse_nan((outcome.observation, outcome.next_observation), "observation")
        return outcome

    def close(self) -> None:
        if self._batch is not None:
            with contextlib.suppress(Exception):
                self._wait_for(self._batch.close, min(self._timeout, _CLOSE_SECONDS))
        self._calls.put(None)

    def _wait_for(self, function: Callable[[], T], timeout: float) -> T:
        answer: queue.SimpleQueue[tuple[T, BaseException | None]] = queue.SimpleQueue()
        self._calls.put((function, answer))
        try:
            result, error = answer.get(timeout=timeout)
        except queue.Empty:
            self._timeout = _HUNG_SECONDS
            if self._batch is not None:
                self._batch.kill()
            raise HostEnvironmentError(f"no answer within {timeout:g} seconds (env.timeout)") from None
        if error is not None:
            raise error
        return result


def _serve(calls: queue.SimpleQueue[Any]) -> None:
    """Answer calls until None arrives; keep no reference to the last one."""
    while (call := calls.get()) is not None:
        function, answer = call
        try:
            answer.put((function(), None))
        except BaseException as error:
            answer.put((None, error))
        del call, function, answer


class DirectBatch:
    """A batch of environments that is stepped without a compiled program, by one thread.

    Args:
        batch: the environments.
        spec: shapes and types of the outcome of a step.
        errors: names the environment in exceptions.
    """

    def __init__(
        self, batch: _Thread, spec: HostStep, errors: Callable[[], contextlib.AbstractContextManager[None]]
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
            return _copies(self._batch.reset(np.asarray(seeds), self._spec.observation))

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
            return _copies(self._batch.step(np.asarray(actions), self._spec))


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

    def __init__(self, make: Callable[[int], HostBatch], timeout: float) -> None:
        self._make, self._timeout = make, timeout
        self._lock = threading.Lock()
        self._next_id = itertools.count()
        self._threads: dict[int, _Thread] = {}
        self._free: list[int] = []

    def __getitem__(self, batch: int) -> _Thread:
        return self._threads[batch]

    def take(self, num_envs: int) -> int:
        """Return the id of a batch of `num_envs` environments that nothing else uses."""
        with self._lock:
            for batch in self._free:
                if self._threads[batch].num_envs == num_envs:
                    self._free.remove(batch)
                    return batch
            batch = next(self._next_id)
        thread = _Thread(self._make, num_envs, self._timeout)
        with self._lock:
            self._threads[batch] = thread
        return batch

    def give_back(self, batch: int) -> None:
        with self._lock:
            self._free.append(batch)

    def close(self) -> None:
        with self._lock:
            threads = list(self._threads.values())
            self._threads.clear()
            self._free.clear()
        for thread in threads:
            thread.close()


def _call_host(function: Callable[..., Any], result: Any, *arguments: jax.Array) -> Any:
    """Call a function of numpy arrays from a program.

    Args:
        function: must not raise.
        result: shapes and dtypes of what it returns.
        *arguments: its arguments.

    Returns:
        What the function returns.
    """
    if jax.default_backend() != "cpu":
        return io_callback(lambda *given: function(*map(np.asarray, given)), result, *arguments)

    def write(context: Any, buffers: Any, *given: Any) -> None:
        del context
        # Copies: a call that hangs outlives the buffers.
        returned = function(*(np.asarray(argument).copy() for argument in given))
        for buffer, array in zip(jax.tree.leaves(buffers), jax.tree.leaves(returned), strict=True):
            np.asarray(buffer)[...] = array

    # A twentieth of the cost of `io_callback`, which converts every argument to an array of jax and back.
    return buffer_callback(write, result, has_side_effect=True, vmap_method="sequential")(*arguments)


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


def _refuse_nan(tree: PyTree, what: str) -> None:
    """Raise an error that names the first environment whose arrays `[N, ...]` have a NaN."""
    for leaf in jax.tree.leaves(tree):
        # NaN is the minimum of whatever contains it.
        if np.issubdtype(leaf.dtype, np.floating) and leaf.size and np.isnan(leaf.min()):
            index = int(np.isnan(leaf.reshape(len(leaf), -1)).any(axis=1).argmax())
            raise HostEnvironmentError(f"environment {index} of {len(leaf)} returned NaN in its {what}")
