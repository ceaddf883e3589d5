"""Goals for entries of an observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import ACHIEVED, DESIRED, TimeStep
from stoix_like.envs.environment import EnvFacts, State, VectorEnvironment
from stoix_like.envs.spaces import Box, Dict
from stoix_like.envs.wrappers.base import StatefulWrapper, with_observation
from stoix_like.utils.jax_utils import fold_in_each

# Folded into the keys of resets, which environments split themselves.
_GOAL_STREAM = 0x60A1


class DesiredState(NamedTuple):
    """The state of the wrapped environments, and the goals `[N, G]`."""

    env_state: State
    desired: jax.Array


class ReachEntries(StatefulWrapper):
    """A wrapper whose agent is to bring entries of the observation, a vector, to a goal.

    Every step costs 1, and the one that reaches the goal is free and terminates the episode; rewards of the wrapped
    environments are dropped. The goal is the same in all episodes or, with `until`, drawn uniformly in each.
    """

    def __init__(
        self,
        env: VectorEnvironment,
        entries: Sequence[int],  # indices of the entries
        goal: Sequence[float],  # their goal, or with `until` its lower bounds, in the units of the observation
        until: Sequence[float] | None = None,  # upper bounds of the goal
        radius: float = 0.05,  # distance at which it is reached
    ) -> None:
        space, until = env.observation_space, until or goal
        size = space.shape[0] if isinstance(space, Box) and len(space.shape) == 1 else 0
        if not set(entries) <= set(range(size)):
            raise ValueError(f"entries={list(entries)} must be indices of a vector, of {size} entries here")
        if not len(entries) == len(goal) == len(until):
            raise ValueError(
                f"goal={list(goal)}, until={list(until)}: use one number for each of {len(entries)} entries"
            )
        self._entries, self._radius = np.asarray(entries), radius
        self._low, self._high = np.asarray(goal, np.float32), np.asarray(until, np.float32)
        super().__init__(env)
        goals = Box(-jnp.inf, jnp.inf, self._low.shape)
        self.observation_space = Dict({"observation": env.observation_space, ACHIEVED: goals, DESIRED: goals})

    def take_facts(self, env: EnvFacts) -> None:
        super().take_facts(env)
        self.goal_reward = self._outcome

    def reset(self, keys: jax.Array) -> tuple[DesiredState, TimeStep]:
        return self._start(keys, *self.env.reset(keys))

    def next_episodes(self, keys: jax.Array, state: DesiredState) -> tuple[DesiredState, TimeStep]:
        return self._start(keys, *self.env.next_episodes(keys, state.env_state))

    def step(self, keys: jax.Array, state: DesiredState, action: jax.Array) -> tuple[DesiredState, TimeStep]:
        env_state, timestep = self.env.step(keys, state.env_state, action)
        timestep, reward, reached = self._observed(timestep, state.desired)
        terminated = timestep.terminated | reached
        timestep = timestep._replace(reward=reward, terminated=terminated, truncated=timestep.truncated & ~reached)
        return state._replace(env_state=env_state), timestep

    def _start(self, keys: jax.Array, env_state: State, timestep: TimeStep) -> tuple[DesiredState, TimeStep]:
        draw = jax.vmap(lambda key: jax.random.uniform(key, self._low.shape, None, self._low, self._high))
        desired = draw(fold_in_each(keys, _GOAL_STREAM))
        return DesiredState(env_state, desired), self._observed(timestep, desired)[0]

    def _outcome(self, achieved: jax.Array, desired: jax.Array) -> tuple[jax.Array, jax.Array]:
        reached = jnp.linalg.norm(achieved - desired) <= self._radius
        return reached.astype(jnp.float32) - 1.0, reached

    def _observed(self, timestep: TimeStep, desired: jax.Array) -> tuple[TimeStep, jax.Array, jax.Array]:
        """Add the goals to what is observed; also return their rewards, and where they are reached."""
        view = timestep.observation.agent_view
        achieved = view[:, self._entries]
        reward, reached = jax.vmap(self._outcome)(achieved, desired)
        measures = timestep.episode.measures | {"success_rate": reached.astype(jnp.float32)}
        views = {"observation": view, ACHIEVED: achieved, DESIRED: desired}
        timestep = with_observation(timestep, agent_view=views)
        return timestep._replace(episode=timestep.episode._replace(measures=measures)), reward, reached
