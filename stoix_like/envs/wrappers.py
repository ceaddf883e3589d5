"""Wrappers around one environment, and `Vectorize`, which sets many of them side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import EpisodeMetrics, TimeStep
from stoix_like.envs.environment import Environment, State, VectorEnvironment
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space


class Wrapper(Environment):
    """Passes everything on to `env`; a wrapper overrides what it changes.

    Args:
        env: the environment to wrap.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.reset`."""
        return self.env.reset(key)

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.step`."""
        return self.env.step(key, state, self.inner_action(action))

    @property
    def unwrapped(self) -> Environment:
        """See `Environment.unwrapped`."""
        return self.env.unwrapped

    def inner_action(self, action: jax.Array) -> jax.Array:
        """The action that the environment inside is handed.

        Args:
            action: one of this environment's `action_space`.

        Returns:
            One of the `action_space` of the environment inside.
        """
        return action

    def inner_state(self, state: State) -> State:
        """The state of the environment inside.

        Args:
            state: of this environment.

        Returns:
            The part of it that the environment inside keeps.
        """
        return state

    def native_action(self, action: jax.Array) -> jax.Array:
        """See `Environment.native_action`."""
        return self.env.native_action(self.inner_action(action))

    def native_state(self, state: State) -> State:
        """See `Environment.native_state`."""
        return self.env.native_state(self.inner_state(state))


class StatefulWrapper(Wrapper):
    """A wrapper that remembers something; its state has the field `env_state` for that of the environment inside."""

    def inner_state(self, state: State) -> State:
        """See `Wrapper.inner_state`."""
        return state.env_state


class CountedState(NamedTuple):
    """The state of the environment inside and `steps`, int32, taken since the episode began."""

    env_state: State
    steps: jax.Array


class TimeLimit(StatefulWrapper):
    """Truncates an episode after so many steps.

    Args:
        env: the environment to wrap.
        limit: steps.
    """

    def __init__(self, env: Environment, limit: int) -> None:
        super().__init__(env)
        self.limit = limit

    def reset(self, key: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `Environment.reset`."""
        env_state, timestep = self.env.reset(key)
        return CountedState(env_state, jnp.zeros((), jnp.int32)), timestep

    def step(self, key: jax.Array, state: CountedState, action: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `Environment.step`."""
        env_state, timestep = self.env.step(key, state.env_state, action)
        steps = state.steps + 1
        truncated = (timestep.truncated | (steps >= self.limit)) & ~timestep.terminated
        return CountedState(env_state, steps), timestep._replace(truncated=truncated)


class RescaleActions(Wrapper):
    """Takes actions in `[-1, 1]` and stretches them to the bounds of the environment.

    Args:
        env: an environment with a bounded `Box` of actions.

    Raises:
        ValueError: if the action space is another one.
    """

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ValueError(f"only a bounded Box of actions can be rescaled, not {space}")
        low, high = (np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (space.low, space.high))
        self._middle, self._half_range = (high + low) / 2, (high - low) / 2
        self.action_space = replace(space, low=-1.0, high=1.0)

    def inner_action(self, action: jax.Array) -> jax.Array:
        """The action between the bounds of the environment inside."""
        return self._middle + self._half_range * action


class ClipActions(Wrapper):
    """Clips actions to the bounds of the action space.

    Args:
        env: an environment with a `Box` of actions.

    Raises:
        ValueError: if the action space is another one.
    """

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, Box):
            raise ValueError(f"only a Box of actions can be clipped, not {env.action_space}")
        self._low, self._high = env.action_space.low, env.action_space.high

    def inner_action(self, action: jax.Array) -> jax.Array:
        """The action, or the nearest one within the bounds."""
        return jnp.clip(action, self._low, self._high)


class FlattenObservation(Wrapper):
    """Makes one vector of the agent's view.

    Args:
        env: the environment to wrap.
    """

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.observation_space = _box_of_shape(env.observation_space, lambda bound: bound.reshape(-1))

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.reset`."""
        env_state, timestep = self.env.reset(key)
        return env_state, _with_view(timestep, timestep.observation.agent_view.reshape(-1))

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.step`."""
        env_state, timestep = self.env.step(key, state, action)
        return env_state, _with_view(timestep, timestep.observation.agent_view.reshape(-1))


class StackedState(NamedTuple):
    """The state of the environment inside and the last `frames` `[..., C * k]`, the newest at the end."""

    env_state: State
    frames: jax.Array


class StackFrames(StatefulWrapper):
    """Joins the last views along their last axis; at a reset the first one fills the stack.

    Args:
        env: the environment to wrap.
        num_frames: how many views make a stack.
    """

    def __init__(self, env: Environment, num_frames: int) -> None:
        super().__init__(env)
        self.num_frames = num_frames
        self.observation_space = _box_of_shape(env.observation_space, lambda bound: _repeat(bound, num_frames))

    def reset(self, key: jax.Array) -> tuple[StackedState, TimeStep]:
        """See `Environment.reset`."""
        env_state, timestep = self.env.reset(key)
        frames = jnp.concatenate([timestep.observation.agent_view] * self.num_frames, axis=-1)
        return StackedState(env_state, frames), _with_view(timestep, frames)

    def step(self, key: jax.Array, state: StackedState, action: jax.Array) -> tuple[StackedState, TimeStep]:
        """See `Environment.step`."""
        env_state, timestep = self.env.step(key, state.env_state, action)
        newest = timestep.observation.agent_view
        frames = jnp.concatenate([state.frames[..., newest.shape[-1] :], newest], axis=-1)
        return StackedState(env_state, frames), _with_view(timestep, frames)


class CountSteps(StatefulWrapper):
    """Fills `Observation.step_count` with the steps since the episode began.

    Args:
        env: the environment to wrap.
    """

    def reset(self, key: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `Environment.reset`."""
        env_state, timestep = self.env.reset(key)
        steps = jnp.zeros((), jnp.int32)
        return CountedState(env_state, steps), _with_observation(timestep, step_count=steps)

    def step(self, key: jax.Array, state: CountedState, action: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `Environment.step`."""
        env_state, timestep = self.env.step(key, state.env_state, action)
        steps = state.steps + 1
        return CountedState(env_state, steps), _with_observation(timestep, step_count=steps)


class RecordedState(NamedTuple):
    """The state of the environment inside and the sums of the episode so far."""

    env_state: State
    episode_return: jax.Array
    episode_length: jax.Array


class RecordEpisode(StatefulWrapper):
    """Fills `TimeStep.episode` with the return and the length of the episode so far.

    Args:
        env: the environment to wrap, before its rewards are scaled or clipped.
    """

    def reset(self, key: jax.Array) -> tuple[RecordedState, TimeStep]:
        """See `Environment.reset`."""
        env_state, timestep = self.env.reset(key)
        return RecordedState(env_state, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)), timestep

    def step(self, key: jax.Array, state: RecordedState, action: jax.Array) -> tuple[RecordedState, TimeStep]:
        """See `Environment.step`."""
        env_state, timestep = self.env.step(key, state.env_state, action)
        total, length = state.episode_return + timestep.reward, state.episode_length + 1
        episode = EpisodeMetrics(total, length, timestep.terminated | timestep.truncated)
        return RecordedState(env_state, total, length), timestep._replace(episode=episode)


class ScaleReward(Wrapper):
    """Multiplies rewards.

    Args:
        env: the environment to wrap.
        scale: what rewards are multiplied by.
    """

    def __init__(self, env: Environment, scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.step`."""
        env_state, timestep = self.env.step(key, state, action)
        return env_state, timestep._replace(reward=timestep.reward * self.scale)


class ClipReward(Wrapper):
    """Clips rewards to `[-limit, limit]`.

    Args:
        env: the environment to wrap.
        limit: the largest absolute reward.
    """

    def __init__(self, env: Environment, limit: float) -> None:
        super().__init__(env)
        self.limit = limit

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.step`."""
        env_state, timestep = self.env.step(key, state, action)
        return env_state, timestep._replace(reward=jnp.clip(timestep.reward, -self.limit, self.limit))


class Vectorize(VectorEnvironment):
    """N copies of an environment, stepped together; none is reset when its episode ends.

    Args:
        env: the environment; N is the number of keys that `reset` is given.
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


def _with_observation(timestep: TimeStep, **changes: jax.Array) -> TimeStep:
    # Below the automatic reset the observation to act on and the true successor are one and the same.
    observation = timestep.observation._replace(**changes)
    return timestep._replace(observation=observation, next_observation=observation)


def _with_view(timestep: TimeStep, view: jax.Array) -> TimeStep:
    return _with_observation(timestep, agent_view=view)


def _repeat(bound: np.ndarray, times: int) -> np.ndarray:
    return np.concatenate([bound] * times, axis=-1)


def _box_of_shape(space: Space, reshape: Any) -> Box:
    """The box of views that `reshape` makes of the views of `space`."""
    if isinstance(space, Discrete | MultiDiscrete):
        raise ValueError(f"the observations must be arrays of features, not {space}")
    bounds = (np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (space.low, space.high))
    low, high = (reshape(bound) for bound in bounds)
    return Box(low, high, low.shape, space.dtype)
