"""Environments that run on the host: the bridge between a compiled program and stateful environments.

Every call of the program to the host takes the id of a batch of environments from the environment state and returns it.
This dependence alone keeps the calls of one batch in order, in loops, under `vmap` and on several devices: the compiler
can neither drop nor reorder them. Ordered callbacks would serialise all devices, and cannot be vmapped.

They reset themselves: `HostReset` takes the place of the other automatic resets, and the wrappers rebuild their state
at the start of an episode in `Wrapper.on_start`. No exception reaches the program, which continues with episodes that
terminate at once; the host then raises the exception, drops what was computed in the last call of the program, and
saves the rest without the replay buffer. Workers watch their parent, and exit when it dies.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import VectorEnvironment, restart, transition
from stoix_like.envs.host_batches import Batches, DirectBatch, HostBatch, HostStep
from stoix_like.envs.legends import Legend, find_legend
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import ActionSpace, ObservationSpace
from stoix_like.errors import HostEnvironmentError
from stoix_like.exact import as_dtype
from stoix_like.utils.accelerate.platform import on_cpu

T = TypeVar("T")


class HostSpec(NamedTuple):
    """Specification of environments on the host."""

    name: str  # suite and scenario, for messages
    observation: PyTree  # `jax.ShapeDtypeStruct`s of one observation as the host returns it
    # Converts observations `[N, ...]` of the host into elements of `observation_space`.
    encode: Callable[[PyTree], PyTree]
    observation_space: ObservationSpace  # the space of the agent's view
    action_space: ActionSpace  # the space of the actions that the host takes
    # Returns the legal actions of observations `[N, ...]` of the host; None: all are legal.
    mask: Callable[[PyTree], jax.Array] | None = None
    num_agents: int = 1


class HostState(NamedTuple):
    """The state of N environments on the host."""

    batch: jax.Array  # `[N]` int32, the id of the batch that the environments belong to, the same for all
    start: Observation  # `[N, ...]` the first observation of the next episode where an episode ended in the last step


class HostEnvironment(VectorEnvironment):
    """Vectorised environments on the host.

    Every `reset` takes its own batch of environments, so that devices, update batches, members of a population and
    evaluations never share one. `release` makes a batch available to later resets.

    An exception on the host does not reach the program, where it would leave other devices waiting. The program
    continues with episodes that terminate at once, and `check` raises the exception afterwards.

    `timeout`: seconds that a call of a batch may take.
    `fps`: frames per second of the pictures of batches; None if they have none.
    """

    on_host = True

    def __init__(
        self, make: Callable[[int], HostBatch], spec: HostSpec, timeout: float, fps: int | None = None
    ) -> None:
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self._spec, self._fps, self.num_agents = spec, fps, spec.num_agents
        self._batches = Batches(make, timeout)
        self._failure: BaseException | None = None
        # Also where `close` is never called, and at exit.
        weakref.finalize(self, self._batches.close)

    def reset(self, keys: jax.Array) -> tuple[HostState, TimeStep]:
        (num_envs,) = keys.shape
        spec = self._observations(num_envs)
        return self.started(*_call_host(partial(self._reset, spec), (_shape(num_envs), spec), self.seeds(keys)))

    def step(self, keys: jax.Array, state: HostState, action: jax.Array) -> tuple[HostState, TimeStep]:
        num_envs = len(state.batch)
        spec = self.step_spec(num_envs)
        return self.stepped(*_call_host(partial(self._step, spec), (_shape(num_envs), spec), state.batch, action))

    def next_episodes(self, keys: jax.Array, state: HostState) -> tuple[HostState, TimeStep]:
        return self._start(state.batch, state.start)

    def release(self, state: HostState) -> None:
        _call_host(self._release, None, state.batch)

    def view_of(self, native: PyTree) -> PyTree:
        specs = self._spec.observation
        what = f"observation of {self._spec.name}"
        arrays = jax.tree.map(lambda spec, array: as_dtype(spec.dtype, array, what), specs, native)
        first, spec = jax.tree.leaves(arrays)[0], jax.tree.leaves(specs)[0]
        leading = first.shape[: first.ndim - len(spec.shape)]
        rows = jax.tree.map(lambda array: array.reshape(-1, *array.shape[len(leading) :]), arrays)
        return jax.tree.map(lambda array: array.reshape(*leading, *array.shape[1:]), self._spec.encode(rows))

    def is_native(self, observation: Any) -> bool:
        """Return whether observations have the form that `view_of` takes, not the one that policies take."""
        return _has_form(self._spec.observation, observation)

    def scene(self) -> Scene | None:
        return None if self._fps is None else from_pictures(lambda picture: picture, self._fps)

    def legend(self) -> Legend:
        return find_legend(self._spec.name.rsplit("/", 1)[-1], self.observation_space)

    def picture(self, state: HostState) -> np.ndarray:
        """Return a picture of the first environment, outside of compiled programs. Returns `[H, W, 3]` uint8."""
        batch = int(state.batch[0])
        self.check()
        with self._errors():
            return self._batches[batch].call(lambda environments: environments.picture())

    def check(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if not isinstance(failure, Exception):
                raise failure
            raise self._error(failure) from failure

    def close(self) -> None:
        self._batches.close()

    def open(self, num_envs: int) -> DirectBatch:
        """Take a batch of environments, to step it without a compiled program; `close` closes it."""
        with self._errors():
            return DirectBatch(self._batches[self._batches.take(num_envs)], self.step_spec(num_envs), self._errors)

    @staticmethod
    def seeds(keys: jax.Array) -> jax.Array:
        """Derive the seeds of environments from their keys `[N]`: `[N]` int32, at least 0."""
        return (jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32))(keys) >> 1).astype(jnp.int32)

    def started(self, batch: jax.Array, view: PyTree) -> tuple[HostState, TimeStep]:
        """Build the result of `reset` from the host's result; `batch`: `[N]`."""
        return self._start(batch, self._observe(view))

    def stepped(self, batch: jax.Array, outcome: HostStep) -> tuple[HostState, TimeStep]:
        """Build the result of `step` from the host's result; `batch`: `[N]`."""
        start, successor = self._observe(outcome.observation), self._observe(outcome.next_observation)
        timestep = jax.vmap(transition)(successor, outcome.reward, outcome.terminated, outcome.truncated)
        return HostState(batch, start), timestep

    def step_spec(self, num_envs: int) -> HostStep:
        """Return the shapes `[N, ...]` and types of the outcome of a step."""
        view, flag = self._observations(num_envs), _shape(num_envs, bool)
        of_agents = () if self.num_agents == 1 else (self.num_agents,)
        return HostStep(view, view, _shape(num_envs, jnp.float32, of_agents), flag, flag)

    def _observe(self, view: PyTree) -> Observation:
        spec = self._spec
        return Observation(spec.encode(view), None if spec.mask is None else spec.mask(view))

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
        def reset() -> tuple[int, PyTree]:
            batch = self._batches.take(len(seeds))
            return batch, self._batches[batch].reset(seeds, spec)

        batch, view = self._guarded(reset, lambda: (-1, _zeros(spec)))
        return np.full(len(seeds), batch, np.int32), view

    def _step(self, spec: HostStep, batch: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, HostStep]:
        return batch, self._guarded(
            lambda: self._batches[int(batch[0])].step(actions, spec),
            lambda: _zeros(spec)._replace(terminated=np.ones(len(batch), bool)),
        )

    def _release(self, batch: np.ndarray) -> None:
        self._guarded(lambda: self._batches.give_back(int(batch[0])), lambda: None)

    def _guarded(self, call: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Call the host; after an exception, stop calling it until `check` has raised."""
        if self._failure is None:
            try:
                return call()
            except BaseException as error:  # Ctrl-C, too, which a compiled program cannot pass on.
                self._failure = error
        return otherwise()


def _has_form(spec: PyTree, given: Any) -> bool:
    if isinstance(spec, Mapping):
        same = isinstance(given, Mapping) and given.keys() == spec.keys()
        return same and all(_has_form(part, given[name]) for name, part in spec.items())
    if isinstance(given, Mapping | Observation):
        return False
    shape, dtype = np.shape(given), np.asarray(given).dtype
    if not spec.shape and np.issubdtype(spec.dtype, np.integer) and not np.issubdtype(dtype, np.integer):
        return False  # a one-hot vector
    return shape[max(len(shape) - len(spec.shape), 0) :] == spec.shape


def _call_host(function: Callable[..., Any], result: Any, *arguments: PyTree) -> Any:
    """Call a function of numpy arrays from a program."""
    if not on_cpu():
        return io_callback(lambda *given: function(*jax.tree.map(np.asarray, given)), result, *arguments)

    def write(context: Any, buffers: Any, *given: Any) -> None:
        # Copies: a call that hangs outlives the buffers.
        returned = function(*jax.tree.map(lambda argument: np.asarray(argument).copy(), given))
        for buffer, array in zip(jax.tree.leaves(buffers), jax.tree.leaves(returned), strict=True):
            np.asarray(buffer)[...] = array

    # A twentieth of the cost of `io_callback`, which converts every argument to an array of jax and back.
    return buffer_callback(write, result, has_side_effect=True, vmap_method="sequential")(*arguments)


def _shape(num_envs: int, dtype: Any = jnp.int32, shape: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_envs, *shape), dtype)


def _zeros(spec: T) -> T:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
