"""Wrappers of episodes: their limit, their return and length, and their rewards."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import EpisodeMetrics, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.wrappers.agents import sum_over_agents
from stoix_like.envs.wrappers.base import CountingWrapper, RewardWrapper, StatefulWrapper

AGENT_RETURN = "agent_return"
"""The measure of an episode that is the return of each agent."""


class TimeLimit(CountingWrapper):
    """A wrapper that truncates episodes at a time limit."""

    def __init__(self, env: VectorEnvironment, limit: int) -> None:
        super().__init__(env)
        self.limit = limit

    def at_step(self, timestep: TimeStep, steps: jax.Array) -> TimeStep:
        return timestep._replace(truncated=(timestep.truncated | (steps >= self.limit)) & ~timestep.terminated)

    @property
    def truncates_after(self) -> int | None:
        own = self.env.truncates_after
        return None if own is None else min(own, self.limit)


class RecordedState(NamedTuple):
    """The state of the wrapped environments, and the return and length `[N]` of the episode so far, of each agent."""

    env_state: State
    episode_return: jax.Array
    episode_length: jax.Array


class RecordEpisode(StatefulWrapper, keeps_ends=True):
    """A wrapper that sets `TimeStep.episode` to the return and length of the episode so far.

    Of two players, the return is the one of the first to move, which is minus the other's. Of several agents with
    their own rewards, it is the sum of their returns, and each agent's is the measure `agent_return`.
    """

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[RecordedState, TimeStep]:
        timestep = _in_32_bits(timestep)
        length, total = jnp.zeros(timestep.reward.shape, jnp.int32), jnp.zeros_like(timestep.reward)
        measures = timestep.episode.measures | self._of_agents(total)
        timestep = timestep._replace(episode=timestep.episode._replace(measures=measures))
        return RecordedState(env_state, total, length), timestep

    def step(self, keys: jax.Array, state: RecordedState, action: jax.Array) -> tuple[RecordedState, TimeStep]:
        env_state, timestep = self.env.step(keys, state.env_state, action)
        timestep = _in_32_bits(timestep)
        reward, length = timestep.reward, state.episode_length + 1
        if self.num_players == 2:
            reward = jnp.where(state.episode_length % 2 == 0, reward, -reward)
        total = state.episode_return + reward
        measures = timestep.episode.measures | self._of_agents(total)
        of_team = sum_over_agents(total, self.num_agents) if self._of_agents(total) else total
        episode = EpisodeMetrics(of_team, length, timestep.terminated | timestep.truncated, measures)
        return RecordedState(env_state, total, length), timestep._replace(episode=episode)

    def _of_agents(self, total: jax.Array) -> dict[str, jax.Array]:
        return {} if self.num_agents == 1 or self.team_reward else {AGENT_RETURN: total}


def _in_32_bits(timestep: TimeStep) -> TimeStep:
    """Return a time step with a reward of the type that agents store, with `jax_enable_x64`, too."""
    return timestep._replace(reward=timestep.reward.astype(jnp.float32))


class ScaleReward(RewardWrapper):
    """A wrapper that multiplies rewards by a factor."""

    def __init__(self, env: VectorEnvironment, scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: jax.Array) -> jax.Array:
        return reward * self.scale


class ClipReward(RewardWrapper):
    """A wrapper that clips rewards to `[-limit, limit]`."""

    def __init__(self, env: VectorEnvironment, limit: float) -> None:
        super().__init__(env)
        self.limit = limit

    def reward(self, reward: jax.Array) -> jax.Array:
        return jnp.clip(reward, -self.limit, self.limit)
