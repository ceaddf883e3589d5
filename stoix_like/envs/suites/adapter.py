"""What adapters share: the code of suites is traced with the tolerance that it needs."""

from __future__ import annotations

import contextlib
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs.environment import Environment, State, restart, strongly_typed, transition
from stoix_like.envs.spaces import Box


@contextlib.contextmanager
def tolerance_of_bytes() -> Iterator[None]:
    """Allow arrays of different rank, and numbers that are written to arrays of a narrower type."""
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)
        yield


class SuiteEnvironment(Environment):
    """Base class of environments of a suite, which may add arrays of different rank and return weak types."""

    @staticmethod
    def tolerance() -> AbstractContextManager[Any]:
        """Return the context in which the suite is traced."""
        return jax.numpy_rank_promotion("allow")

    @abstractmethod
    def start(self, key: jax.Array) -> tuple[Any, State]:
        """Start an episode. Returns what the suite observes, and the state."""

    @abstractmethod
    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        """Take one step. Returns what the suite observes, the state, the reward, and the flags of `transition`."""

    def observe(self, native: Any) -> Observation:
        """Convert what the suite observes; by default, it is the agent's view."""
        return Observation(native)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        with self.tolerance():
            native, state = self.start(key)
            return strongly_typed(state), restart(self.observe(native))

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        with self.tolerance():
            native, state, *outcome = self.advance(key, state, action)
            return strongly_typed(state), transition(self.observe(native), *outcome)

    def shapes(self) -> Any:
        """Return the shapes and types of the views that `reset` returns."""
        return jax.eval_shape(self.reset, jax.random.key(0))[1].observation.agent_view

    def box(self, low: Any, high: Any) -> Box:
        """Return the space of the views that `reset` returns."""
        view = self.shapes()
        return Box(low, high, view.shape, view.dtype)
