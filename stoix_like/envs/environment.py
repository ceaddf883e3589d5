"""The protocol of environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import EpisodeMetrics, GoalReward, Observation, PyTree, TimeStep
from stoix_like.envs.legends import Legend
from stoix_like.envs.scenes import views
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import ActionSpace, ObservationSpace
from stoix_like.errors import ConfigError
from stoix_like.user_code import name_of
from stoix_like.utils.jax_utils import with_attribute

State = Any
"""The state of an environment: a pytree of leaves that keep their shapes and dtypes."""


class EnvFacts:
    """What environments say of themselves, besides the space of actions."""

    observation_space: ObservationSpace
    """The space of `Observation.agent_view`, in one environment."""
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
    goal_reward: GoalReward | None = None
    """The reward and the end of a step as a function of goals; None without goals.

    `(achieved, desired) -> (reward, terminated)` of the entries `achieved_goal` and `desired_goal` of the view after a
    step, in one environment. A pure function, by which `system.relabel` computes the outcome for other goals.
    """
    faults: tuple[str, ...] = ()
    """Sentences about what environments declare and do not keep to, although they can be trained."""

    def take_facts(self, env: EnvFacts) -> None:
        """Say of players, agents and goals what other environments say."""
        self.num_players, self.num_agents, self.team_reward = env.num_players, env.num_agents, env.team_reward
        self.goal_reward = env.goal_reward

    def against(self, opponent: Any) -> Any:
        """Return games for two in which actions move one player, who starts in half of them, with the same states.

        `opponent`: the other player, as `env.eval_opponent`.
        """
        raise ConfigError(
            f"env.eval_opponent={name_of(opponent)}: {type(self).__name__} has no opponents: define its `against`"
        )

    def scene(self) -> Scene | None:
        """Return how to draw episodes of `unwrapped`, by default as the images of the observation; None if unknown."""
        return views.find_scene(self.observation_space)

    def legend(self) -> Legend:
        """Return the names of features of `observation_space`, and of the actions of `unwrapped`; by default, none."""
        return Legend()


class Physics(NamedTuple):
    """The model of a simulation."""

    model: Any  # a pytree of its parameters
    # Returns a context in which the environment computes with another model.
    replaced: Callable[[Any], AbstractContextManager[Any]]
    # Returns the function of the suite that draws parameters; None without one.
    registered: Callable[[], Any] = lambda: None


def physics_of(env: Any, name: str) -> Physics:
    """Return the physics of an environment that computes with the model in its attribute `name`."""
    return Physics(getattr(env, name), partial(with_attribute, env, name))


class Environment(EnvFacts, ABC):
    """A single environment without automatic reset; the leaves of its time steps have no leading axis.

    Subclass this for an environment written in JAX, and wrap it in `Vectorize`.
    """

    action_space: ActionSpace
    physics: Physics | None = None
    """The model that `env.randomization` varies, as `physics_of` returns it; None without one."""
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


class VectorEnvironment(EnvFacts, ABC):
    """N environments stepped together; the interface between suites, wrappers and rollouts."""

    keeps_parameters: bool = False
    """True if the state of an environment holds parameters that the next episode keeps."""
    action_space: Any
    """The space of the action in one environment, without the axis N: `Space`; of unwrapped ones, `ActionSpace`."""
    on_host: bool = False
    """True if the environments run on the host: they reset themselves, and a checkpoint cannot hold their state."""

    @abstractmethod
    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """Start an episode in each environment.

        `keys`: `[N]` typed PRNG keys.
        Returns the state and the first time step `[N, ...]`.
        """

    @abstractmethod
    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """Take one step in each environment.

        `keys`: `[N]` typed PRNG keys.
        `action`: `[N, ...]` elements of `action_space`.
        Returns the next state and the time step `[N, ...]`.
        """

    def start_rollout(self, key: jax.Array, state: State) -> State:
        """Prepare for a rollout, and return the state to pass to its first step; by default, do nothing."""
        return state

    def next_episodes(self, keys: jax.Array, state: State) -> tuple[State, TimeStep]:
        """Start the episodes after those that ended in the last step; by default, like `reset`.

        Environments on the host have started them already.

        `state`: the state after the step, which the next episodes may depend on, see `keeps_parameters`.
        Returns the state and the first time step `[N, ...]`, used only where an episode ended.
        """
        return self.reset(keys)

    def release(self, state: State) -> None:
        """Give back what environments on the host hold, after their last step; by default, do nothing."""

    def check(self) -> None:
        """Raise a `HostEnvironmentError` if an environment on the host has failed."""

    def close(self) -> None:
        """Close all environments on the host."""

    @property
    def truncates_after(self) -> int | None:
        """The fewest steps after which an episode can be truncated; INT32_MAX if it never is, None if unknown."""
        return None

    @property
    def unwrapped(self) -> VectorEnvironment:
        """The environments of the suite, without wrappers."""
        return self

    def rebased(self, base: VectorEnvironment) -> VectorEnvironment:
        """Return a copy of the wrappers around another `unwrapped`, with the same spaces and states."""
        return base

    def native_action(self, action: jax.Array) -> jax.Array:
        """Convert actions `[N, ...]` of `action_space` to the units of the suite, `unwrapped.action_space`."""
        return action

    def view_of(self, native: Any) -> Any:
        """Convert observations of the suite, with any batch axes, to elements of `unwrapped.observation_space`."""
        return native

    def native_state(self, state: State) -> State:
        """Return the state of the suite's environments, without the state of wrappers."""
        return state


class Vectorize(VectorEnvironment):
    """N copies of an environment, vmapped, without automatic reset; N is the number of keys passed to `reset`."""

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
    search. `name`: the field or entry of the raw key.
    """

    def replace(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        return jax.random.key_data(key) if jax.tree_util.keystr(path[-1:], simple=True) == name else leaf

    return jax.tree_util.tree_map_with_path(replace, state)


def _no_episode(measures: Mapping[str, jax.Array] | None) -> EpisodeMetrics:
    named = {name: jnp.asarray(value, jnp.float32) for name, value in (measures or {}).items()}
    return EpisodeMetrics(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), bool), named)
