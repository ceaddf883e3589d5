"""The protocol of environments: one at a time, and many side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import EpisodeMetrics, Observation, PyTree, TimeStep
from stoix_like.envs.spaces import Space

State = Any
"""What an environment carries from step to step: a pytree whose leaves keep their shapes and dtypes."""


class Environment(ABC):
    """One environment: the leaves of its time steps have no leading axis. It never resets itself."""

    observation_space: Space
    """The space of `Observation.agent_view`."""
    action_space: Space

    @abstractmethod
    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Begin an episode.

        Args:
            key: a typed PRNG key.

        Returns:
            The state and the first time step, as `restart` makes it.
        """

    @abstractmethod
    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """Take one step.

        Args:
            key: a typed PRNG key.
            state: the state before the step.
            action: an element of `action_space`.

        Returns:
            The state after the step and the time step, as `transition` makes it.
        """

    @property
    def unwrapped(self) -> Environment:
        """The environment of the suite, without what is wrapped around it."""
        return self

    def native_action(self, action: jax.Array) -> jax.Array:
        """The action as the suite's own environment takes it, in its units.

        Args:
            action: an element of `action_space`, which wrappers may have changed.

        Returns:
            An element of `unwrapped.action_space`.
        """
        return action

    def native_state(self, state: State) -> State:
        """The state of the suite's own environment, without what wrappers remember."""
        return state


class VectorEnvironment(ABC):
    """N environments side by side, as a rollout sees them."""

    observation_space: Space
    """The space of one environment's `Observation.agent_view`, without the axis N."""
    action_space: Space

    @abstractmethod
    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """Begin an episode in each environment.

        Args:
            keys: `[N]` typed PRNG keys.

        Returns:
            The state and the first time step `[N, ...]`.
        """

    @abstractmethod
    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """Take one step in each environment.

        Args:
            keys: `[N]` typed PRNG keys.
            state: the state before the step.
            action: `[N, ...]` elements of `action_space`.

        Returns:
            The state after the step and the time step `[N, ...]`.
        """

    def begin_rollout(self, key: jax.Array, state: State) -> State:
        """Prepare for a rollout; most environments have nothing to prepare.

        Args:
            key: a typed PRNG key.
            state: the state that the rollout starts from.

        Returns:
            The state to hand to the rollout's first step.
        """
        del key
        return state


def restart(observation: Observation) -> TimeStep:
    """The first time step of an episode.

    Args:
        observation: of one environment, without a leading axis.

    Returns:
        A time step with no reward, no end and empty episode statistics.
    """
    zero, false = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
    return TimeStep(observation, zero, false, false, observation, _no_episode())


def transition(observation: Observation, reward: Any, terminated: Any, truncated: Any) -> TimeStep:
    """The time step that follows an action.

    Args:
        observation: the true successor, without a leading axis.
        reward: scalar, cast to float32.
        terminated: scalar, the task ended.
        truncated: scalar, a limit was reached; not reported where the task ended too.

    Returns:
        The time step; its episode statistics are filled in by `wrappers.RecordEpisode`.
    """
    terminated = jnp.asarray(terminated, bool)
    truncated = jnp.asarray(truncated, bool) & ~terminated
    return TimeStep(observation, jnp.asarray(reward, jnp.float32), terminated, truncated, observation, _no_episode())


def strongly_typed(tree: PyTree) -> PyTree:
    """The same values as arrays without weak types, so that a scan can carry them."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)


def _no_episode() -> EpisodeMetrics:
    return EpisodeMetrics(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
