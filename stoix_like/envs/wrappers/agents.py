"""Rows of agents: games of several agents as environments of one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import EnvFacts, State, VectorEnvironment
from stoix_like.envs.spaces import Dict, ObservationSpace, appended, entries, is_vector, mapped
from stoix_like.envs.worlds import OWN, WORLD
from stoix_like.envs.wrappers.base import Wrapper, layers, with_observation
from stoix_like.errors import ConfigError
from stoix_like.utils.jax_utils import append_dims, merge_leading_dims

AGENT_IDS = ("none", "one_hot")


class AgentRows(Wrapper, keeps_ends=True):
    """A wrapper that makes a row of each agent: arrays `[N, A, ...]` of N games become `[N * A, ...]`.

    The rows of a game are adjacent, in the order of its agents, with the flags of the game and the reward of the
    agent. Keys `[N * A]` are per row; a game takes its first agent's. The state of a game stays one entry.
    """

    keeps_goals = False

    def __init__(self, env: VectorEnvironment, team_reward: bool = False, agent_ids: str = "none") -> None:
        self._sums = team_reward and not env.team_reward
        super().__init__(env)
        self._ids = agent_ids == "one_hot"
        if self._ids:
            # Actors may see only their own view.
            space, ids = env.observation_space, (np.zeros(env.num_agents), np.ones(env.num_agents))
            own = space.spaces[OWN] if isinstance(space, Dict) and {OWN, WORLD} <= space.spaces.keys() else space
            if not any(map(is_vector, entries(own).values())):
                raise ConfigError(
                    "env.agent_ids=one_hot appends to vectors of floats, and the agents observe none: use none"
                )
            self.observation_space = mapped(space, lambda part: appended(part, *ids) if is_vector(part) else part)

    def take_facts(self, env: EnvFacts) -> None:
        super().take_facts(env)
        self.team_reward |= self._sums

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        state, timestep = self.env.reset(keys[:: self.num_agents])
        return state, self._rows(timestep)

    def next_episodes(self, keys: jax.Array, state: State) -> tuple[State, TimeStep]:
        state, timestep = self.env.next_episodes(keys[:: self.num_agents], state)
        return state, self._rows(timestep)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        state, timestep = self.env.step(keys[:: self.num_agents], state, self.inner_action(action))
        return state, self._rows(timestep)

    def inner_action(self, action: Any) -> Any:
        """Return the actions of games, `[N, A, ...]`."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, self.num_agents, *leaf.shape[1:]), action)

    def native_action(self, action: jax.Array) -> jax.Array:
        """Convert the actions of any number of rows."""
        return self.env.native_action(action)

    def _rows(self, timestep: TimeStep) -> TimeStep:
        def each(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.repeat(leaf, self.num_agents, axis=0), tree)

        reward, terminated, truncated = timestep.reward, each(timestep.terminated), each(timestep.truncated)
        if reward.ndim == 1:
            reward = each(reward)
        else:
            reward = each(jnp.sum(reward, axis=1)) if self._sums else reward.reshape(-1)
        observation = jax.tree.map(lambda leaf: merge_leading_dims(leaf, 2), timestep.observation)
        # Below automatic resets, an observation is the true successor.
        rows = TimeStep(observation, reward, terminated, truncated, observation, each(timestep.episode))
        return with_observation(rows, agent_view=self.identified(observation.agent_view))

    def identified(self, view: PyTree) -> PyTree:
        """Append the numbers of the agents to views `[N * A, ...]`, where `agent_ids` says so."""
        if not self._ids:
            return view
        ids = jnp.tile(jnp.eye(self.num_agents), (len(jax.tree.leaves(view)[0]) // self.num_agents, 1))

        def append(space: ObservationSpace, view: Any) -> Any:
            if isinstance(space, Dict):
                return {name: append(entry, view[name]) for name, entry in space.spaces.items()}
            return jnp.concatenate([view, ids.astype(view.dtype)], axis=-1) if is_vector(space) else view

        return append(self.env.observation_space, view)


def find_rows(env: VectorEnvironment) -> AgentRows | None:
    """Return the wrapper of environments that makes rows of agents; None if there is none."""
    return next((layer for layer in layers(env) if isinstance(layer, AgentRows)), None)


def with_agent_ids(env: VectorEnvironment, observation: Observation) -> Observation:
    """Append the numbers of the agents to an observation `[N * A, ...]`, where `env.agent_ids` says so."""
    rows = find_rows(env)
    return observation if rows is None else observation._replace(agent_view=rows.identified(observation.agent_view))


def where_rows(condition: jax.Array, taken: Any, other: Any) -> Any:
    """Select the entries of one of two trees, row by row.

    `condition`: `[N * A]` bool, equal for all rows of a game.
    `taken`: arrays `[N * A, ...]` of rows, or `[N, ...]` of games, where it is True.
    """

    def select(one: jax.Array, two: jax.Array) -> jax.Array:
        chosen = condition if len(one) == len(condition) else condition[:: len(condition) // len(one)]
        return jnp.where(append_dims(chosen, one.ndim), one, two)

    return jax.tree.map(select, taken, other)


def sum_over_agents(rows: jax.Array, num_agents: int) -> jax.Array:
    """Replace the entry of each row `[N * A]` by the sum over the agents of its game."""
    return jnp.repeat(jnp.sum(rows.reshape(-1, num_agents), axis=1), num_agents)


def all_agents(rows: jax.Array, num_agents: int) -> jax.Array:
    """Replace the entry of each row `[N * A]` bool by whether it is True for all agents of its game."""
    return rows if num_agents == 1 else jnp.repeat(jnp.all(rows.reshape(-1, num_agents), axis=1), num_agents)


def of_first_agent(rows: jax.Array, num_agents: int) -> jax.Array:
    """Replace the entry of each row `[N * A]` by the entry of the first agent of its game."""
    return rows if num_agents == 1 else jnp.repeat(rows[::num_agents], num_agents)
