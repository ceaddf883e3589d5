"""The protocol of environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import EpisodeMetrics, Observation, PyTree, TimeStep
from stoix_like.envs.legends import Legend
from stoix_like.envs.scenes import views
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import ActionSpace, ObservationSpace
from stoix_like.errors import ConfigError
from stoix_like.user_code import name_of

State = Any
"""The state of an environment: a pytree of leaves that keep their shapes and dtypes."""


class EnvFacts:
    """What environments say of themselves, besides their spaces."""

    num_players: int = 1
    """The number of players that actions are taken for: 1, or 2 that move in turn in a zero-sum game.

    With 2, each step is a move of the player to move, the reward is that player's, and the observation after it
    belongs to the player to move next.
    """
    num_agents: int = 1
    """The number of agents that act at the same time in each environment, A.

    With several, observations, masks and actions are `[A, ...]`, for each agent in `observation_space` and
    `action_space`, rewards `[A]`, and flags scalars; of `VectorEnvironment.unwrapped`, after the axis N.
    `wrappers.AgentRows` makes a row of each agent.
    """
    team_reward: bool = False
    """True if the agents of an environment have one reward in common, and not one each."""
    faults: tuple[str, ...] = ()
    """Sentences about what environments declare and do not keep to, although they can be trained."""

    def take_facts(self, env: EnvFacts) -> None:
        """Say of players and agents what other environments say."""
        self.num_players, self.num_agents, self.team_reward = env.num_players, env.num_agents, env.team_reward


class Environment(EnvFacts, ABC):
    """A single environment without automatic reset; the leaves of its time steps have no leading axis.

    Subclass this for an environment written in JAX, and wrap it in `Vectorize`.
    """

    observation_space: ObservationSpace
    """The space of `Observation.agent_view`."""
    action_space: ActionSpace
    truncates_after: int | None = None
    """See `VectorEnvironment.truncates_after`."""

    @abstractmethod
    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Start an episode.

        Args:
            key: a typed PRNG key.

        Returns:
            The state, and the first time step as built by `restart`.
        """

    @abstractmethod
    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """Take one step.

        Args:
            key: a typed PRNG key.
            state: the state before the step.
            action: an element of `action_space`.

        Returns:
            The next state, and the time step as built by `transition`.
        """

    def against(self, opponent: Any) -> Environment:
        """Return a game for two with an opponent, see `VectorEnvironment.against`."""
        raise ConfigError(
            f"env.eval_opponent={name_of(opponent)}: {type(self).__name__} has no opponents: define its `against`"
        )

    def scene(self) -> Scene | None:
        """Return how to draw episodes; None if they cannot be drawn. By default, as the images of the observation."""
        return views.find_scene(self.observation_space)

    def legend(self) -> Legend:
        """Return the names of features of the observation and of actions; by default, none."""
        return Legend()


class VectorEnvironment(EnvFacts, ABC):
    """N environments stepped together; the interface between suites, wrappers and rollouts."""

    observation_space: ObservationSpace
    """The space of `Observation.agent_view` in one environment, without the axis N."""
    keeps_parameters: bool = False
    """True if the state of an environment holds parameters that the next episode keeps."""
    action_space: Any
    """The space of the action in one environment, without the axis N: `Space`; of unwrapped ones, `ActionSpace`."""
    on_host: bool = False
    """True if the environments run on the host: they reset themselves, and a checkpoint cannot hold their state."""

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
            The next state and the time step `[N, ...]`.
        """

    def start_rollout(self, key: jax.Array, state: State) -> State:
        """Prepare for a rollout; by default, do nothing.

        Args:
            key: a typed PRNG key.
            state: the state at the start of the rollout.

        Returns:
            The state to pass to the first step.
        """
        del key
        return state

    def next_episodes(self, keys: jax.Array, state: State) -> tuple[State, TimeStep]:
        """Start the episodes after those that ended in the last step; by default, like `reset`.

        Environments on the host have started them already.

        Args:
            keys: `[N]` typed PRNG keys.
            state: the state after the step, which the next episodes may depend on, see `keeps_parameters`.

        Returns:
            The state and the first time step `[N, ...]`, used only where an episode ended.
        """
        del state
        return self.reset(keys)

    def release(self, state: State) -> None:
        """Give back what environments on the host hold, after their last step; by default, do nothing.

        Args:
            state: the state after the last step.
        """

    def against(self, opponent: Any) -> VectorEnvironment:
        """Return games for two in which actions move one player, who starts in half of them.

        Args:
            opponent: the other player, as `env.eval_opponent`.

        Returns:
            The environments, with the same states.

        Raises:
            ConfigError: the opponent is not one, or the environments have none.
        """
        raise ConfigError(
            f"env.eval_opponent={name_of(opponent)}: {type(self).__name__} has no opponents: define its `against`"
        )

    def check(self) -> None:
        """Check that all environments on the host work.

        Raises:
            HostEnvironmentError: one of them failed.
        """

    def close(self) -> None:
        """Close all environments on the host."""

    def scene(self) -> Scene | None:
        """Return how to draw episodes of `unwrapped`; None if they cannot be drawn.

        By default, they are drawn as the images of the observation.

        Raises:
            ConfigError: they could be drawn, but something on this machine is missing.
        """
        return views.find_scene(self.observation_space)

    def legend(self) -> Legend:
        """Return the names of features of `observation_space`, and of the actions of `unwrapped`; by default, none."""
        return Legend()

    @property
    def truncates_after(self) -> int | None:
        """The fewest steps of an episode after which it can be truncated.

        INT32_MAX if it never is; None if that is not known.
        """
        return None

    @property
    def unwrapped(self) -> VectorEnvironment:
        """The environments of the suite, without wrappers."""
        return self

    def rebased(self, base: VectorEnvironment) -> VectorEnvironment:
        """Return a copy of the wrappers around other environments.

        Args:
            base: environments to take the place of `unwrapped`, with the same spaces and states.

        Returns:
            The wrapped environments.
        """
        return base

    @property
    def params(self) -> Any:
        """The parameters of the suite's environments, such as masses and limits; None if there are none."""
        return None

    def native_action(self, action: jax.Array) -> jax.Array:
        """Convert actions to the units of the suite.

        Args:
            action: `[N, ...]` elements of `action_space`, which wrappers may have changed.

        Returns:
            `[N, ...]` elements of `unwrapped.action_space`.
        """
        return action

    def view_of(self, native: Any) -> Any:
        """Convert observations as the suite's own environments return them.

        Args:
            native: observations `[..., *shape]` of the suite, with any batch axes.

        Returns:
            `[..., *observation_space.shape]`, elements of `unwrapped.observation_space`.
        """
        return native

    def native_state(self, state: State) -> State:
        """Return the state of the suite's environments, without the state of wrappers."""
        return state


class Vectorize(VectorEnvironment):
    """N copies of an environment, vmapped, without automatic reset.

    Args:
        env: the environment; N is the number of keys passed to `reset`.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.faults = env.faults
        self.take_facts(env)

    @property
    def truncates_after(self) -> int | None:
        return self.env.truncates_after

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        return jax.vmap(self.env.reset)(keys)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        return jax.vmap(self.env.step)(keys, state, action)

    def against(self, opponent: Any) -> VectorEnvironment:
        return Vectorize(self.env.against(opponent))

    def scene(self) -> Scene | None:
        return self.env.scene()

    def legend(self) -> Legend:
        return self.env.legend()

    @property
    def params(self) -> Any:
        return getattr(self.env, "params", None)


def restart(observation: Observation, measures: Mapping[str, jax.Array] | None = None) -> TimeStep:
    """Build the first time step of an episode.

    Args:
        observation: the observation of one environment, without a leading axis; of several agents, `[A, ...]`.
        measures: further scalars of the episode so far, see `EpisodeMetrics`.

    Returns:
        A time step with zero reward, both flags False, and zero episode metrics.
    """
    zero, false = jnp.zeros((), jnp.float32), jnp.zeros((), bool)
    return TimeStep(observation, zero, false, false, observation, _no_episode(measures))


def transition(
    observation: Observation,
    reward: Any,
    terminated: Any,
    truncated: Any,
    measures: Mapping[str, jax.Array] | None = None,
) -> TimeStep:
    """Build the time step that follows an action.

    Args:
        observation: the true successor, without a leading axis; of several agents, `[A, ...]`.
        reward: scalar, or `[A]`, cast to float32.
        terminated: scalar, whether the episode terminated.
        truncated: scalar, whether the episode was truncated; ignored if it also terminated.
        measures: further scalars of the episode so far, see `EpisodeMetrics`; the same names as at its `restart`.

    Returns:
        The time step; `wrappers.RecordEpisode` fills in its episode metrics.
    """
    terminated = jnp.asarray(terminated, bool)
    truncated = jnp.asarray(truncated, bool) & ~terminated
    episode = _no_episode(measures)
    return TimeStep(observation, jnp.asarray(reward, jnp.float32), terminated, truncated, observation, episode)


def strongly_typed(tree: PyTree) -> PyTree:
    """Convert the leaves to arrays without weak types, as a scan requires of its carry."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)


def with_raw_key(state: State, name: str, key: jax.Array) -> State:
    """Replace the raw key that the state of a suite holds.

    A suite that draws from its state would repeat the random events of a state that is used again, and show them to a
    search.

    Args:
        state: state of one environment.
        name: name of the field or entry of the key.
        key: key of the step.

    Returns:
        The state with the data of `key`.
    """

    def replace(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        return jax.random.key_data(key) if jax.tree_util.keystr(path[-1:], simple=True) == name else leaf

    return jax.tree_util.tree_map_with_path(replace, state)


def _no_episode(measures: Mapping[str, jax.Array] | None) -> EpisodeMetrics:
    named = {name: jnp.asarray(value, jnp.float32) for name, value in (measures or {}).items()}
    return EpisodeMetrics(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), bool), named)
