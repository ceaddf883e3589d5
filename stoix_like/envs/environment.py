"""The protocol of environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import EpisodeMetrics, Observation, PyTree, TimeStep
from stoix_like.envs.spaces import Space

State = Any
"""The state of an environment: a pytree whose leaves keep their shapes and dtypes."""


class Environment(ABC):
    """One environment that can be vmapped: the leaves of its time steps have no leading axis. It never resets itself.

    Subclass this for an environment written in JAX, and pass it through `Vectorize`.
    """

    observation_space: Space
    """The space of `Observation.agent_view`."""
    action_space: Space

    @abstractmethod
    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Start an episode.

        Args:
            key: a typed PRNG key.

        Returns:
            The state and the first time step, as `restart` returns it.
        """

    @abstractmethod
    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """Take one step.

        Args:
            key: a typed PRNG key.
            state: the state before the step.
            action: an element of `action_space`.

        Returns:
            The state after the step and the time step, as `transition` returns it.
        """


class VectorEnvironment(ABC):
    """N environments side by side, as a suite provides them and as a rollout steps them."""

    observation_space: Space
    """The space of one environment's `Observation.agent_view`, without the axis N."""
    action_space: Space
    """The space of one environment's action, without the axis N."""

    @abstractmethod
    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """Start an episode in each environment.

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
            The state to pass to the rollout's first step.
        """
        del key
        return state

    @property
    def unwrapped(self) -> VectorEnvironment:
        """The suite's environments, without wrappers."""
        return self

    @property
    def params(self) -> Any:
        """The parameters of the suite's environments, such as limits and lengths; None where there are none."""
        return None

    def native_action(self, action: jax.Array) -> jax.Array:
        """Return actions in the suite's own units.

        Args:
            action: `[N, ...]` elements of `action_space`, which wrappers may have changed.

        Returns:
            `[N, ...]` elements of `unwrapped.action_space`.
        """
        return action

    def native_state(self, state: State) -> State:
        """Return the state of the suite's environments, without what wrappers added to it."""
        return state


class Vectorize(VectorEnvironment):
    """N copies of an environment, stepped by one vmapped function; none is reset when its episode ends.

    Args:
        env: the environment; N is the number of keys passed to `reset`.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.reset`."""
        return jax.vmap(self.env.reset)(keys)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        return jax.vmap(self.env.step)(keys, state, action)

    @property
    def params(self) -> Any:
        """See `VectorEnvironment.params`."""
        return getattr(self.env, "params", None)


def restart(observation: Observation) -> TimeStep:
    """Return the first time step of an episode.

    Args:
        observation: of one environment, without a leading axis.

    Returns:
        A time step with zero reward, neither flag set, and empty episode metrics.
    """
    zero, false = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
    return TimeStep(observation, zero, false, false, observation, _no_episode())


def transition(observation: Observation, reward: Any, terminated: Any, truncated: Any) -> TimeStep:
    """Return the time step that follows an action.

    Args:
        observation: the true successor, without a leading axis.
        reward: scalar, cast to float32.
        terminated: scalar, whether the episode terminated.
        truncated: scalar, whether the episode was truncated; ignored where it also terminated.

    Returns:
        The time step; `wrappers.RecordEpisode` fills in its episode metrics.
    """
    terminated = jnp.asarray(terminated, bool)
    truncated = jnp.asarray(truncated, bool) & ~terminated
    return TimeStep(observation, jnp.asarray(reward, jnp.float32), terminated, truncated, observation, _no_episode())


def strongly_typed(tree: PyTree) -> PyTree:
    """Convert the leaves to arrays without weak types, so that a scan can carry them."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)


def _no_episode() -> EpisodeMetrics:
    return EpisodeMetrics(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
