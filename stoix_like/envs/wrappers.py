"""Wrappers of vector environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import EpisodeMetrics, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.spaces import Box, Dict, Discrete, ObservationSpace, Space, entries
from stoix_like.errors import ConfigError
from stoix_like.utils.jax_utils import as_floats


class Wrapper(VectorEnvironment):
    """Base class that forwards every call to `env`; subclasses override what they change.

    Args:
        env: the environments to wrap.
    """

    def __init__(self, env: VectorEnvironment) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.reset`."""
        return self.env.reset(keys)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        return self.env.step(keys, state, self.inner_action(action))

    def start_rollout(self, key: jax.Array, state: State) -> State:
        """See `VectorEnvironment.start_rollout`."""
        return self.with_inner_state(state, self.env.start_rollout(key, self.inner_state(state)))

    @property
    def unwrapped(self) -> VectorEnvironment:
        """See `VectorEnvironment.unwrapped`."""
        return self.env.unwrapped

    @property
    def params(self) -> Any:
        """See `VectorEnvironment.params`."""
        return self.env.params

    def inner_action(self, action: jax.Array) -> jax.Array:
        """Convert actions to those of the wrapped environments.

        Args:
            action: `[N, ...]`, elements of `action_space`.

        Returns:
            `[N, ...]`, elements of the wrapped environments' `action_space`.
        """
        return action

    def inner_state(self, state: State) -> State:
        """Return the state of the wrapped environments."""
        return state

    def with_inner_state(self, state: State, inner: State) -> State:
        """Replace the state of the wrapped environments in `state`."""
        del state
        return inner

    def native_action(self, action: jax.Array) -> jax.Array:
        """See `VectorEnvironment.native_action`."""
        return self.env.native_action(self.inner_action(action))

    def native_state(self, state: State) -> State:
        """See `VectorEnvironment.native_state`."""
        return self.env.native_state(self.inner_state(state))


class StatefulWrapper(Wrapper):
    """Base class of wrappers with state: a named tuple whose `env_state` is the state of the wrapped environments."""

    def inner_state(self, state: State) -> State:
        """See `Wrapper.inner_state`."""
        return state.env_state

    def with_inner_state(self, state: State, inner: State) -> State:
        """See `Wrapper.with_inner_state`."""
        return state._replace(env_state=inner)


class CountedState(NamedTuple):
    """The state of the wrapped environments, and `steps` `[N]` int32 since the episode started."""

    env_state: State
    steps: jax.Array


class TimeLimit(StatefulWrapper):
    """A wrapper that truncates episodes at a time limit.

    Args:
        env: the environments to wrap.
        limit: the largest number of steps per episode.
    """

    def __init__(self, env: VectorEnvironment, limit: int) -> None:
        super().__init__(env)
        self.limit = limit

    def reset(self, keys: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        env_state, timestep = self.env.reset(keys)
        return CountedState(env_state, jnp.zeros(keys.shape, jnp.int32)), timestep

    def step(self, keys: jax.Array, state: CountedState, action: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        steps = state.steps + 1
        truncated = (timestep.truncated | (steps >= self.limit)) & ~timestep.terminated
        return CountedState(env_state, steps), timestep._replace(truncated=truncated)


class RescaleActions(Wrapper):
    """A wrapper that rescales actions from `[-1, 1]` to the bounds of the environment.

    Args:
        env: environments whose action space is a bounded `Box`.

    Raises:
        ValueError: if the action space is not a bounded `Box`.
    """

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ValueError(f"action_space={space} is not a bounded Box: RescaleActions needs finite bounds")
        low, high = (np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (space.low, space.high))
        self._middle, self._half_range = ((high + low) / 2)[None], ((high - low) / 2)[None]
        self.action_space = replace(space, low=-1.0, high=1.0)

    def inner_action(self, action: jax.Array) -> jax.Array:
        """Rescale actions to the bounds of the wrapped environments."""
        return self._middle + self._half_range * action


class ClipActions(Wrapper):
    """A wrapper that clips actions to the bounds of the action space.

    Args:
        env: environments whose action space is a `Box`.

    Raises:
        ValueError: if the action space is not a `Box`.
    """

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, Box):
            raise ValueError(f"action_space={env.action_space} is not a Box: ClipActions needs bounds")
        self._low, self._high = _per_env(env.action_space.low), _per_env(env.action_space.high)

    def inner_action(self, action: jax.Array) -> jax.Array:
        """Clip actions to the bounds of the action space."""
        return jnp.clip(action, self._low, self._high)


class FlattenObservation(Wrapper):
    """A wrapper that flattens the agent's view to a vector.

    The entries of a dictionary become one float32 vector: converted by `as_floats`, and concatenated sorted by name.

    Args:
        env: the environments to wrap.
    """

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        self.observation_space = _flat_box(env.observation_space)

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.reset`."""
        env_state, timestep = self.env.reset(keys)
        return env_state, _flat(timestep)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, _flat(timestep)


class StackedState(NamedTuple):
    """The state of the wrapped environments, and the last k `frames` `[N, ..., C * k]`, oldest first."""

    env_state: State
    frames: jax.Array


class StackFrames(StatefulWrapper):
    """A wrapper that stacks the last views along their last axis; a reset fills the stack with the first view.

    Args:
        env: the environments to wrap.
        num_frames: views per stack, k.

    Raises:
        ConfigError: if the views are dictionaries.
    """

    def __init__(self, env: VectorEnvironment, num_frames: int) -> None:
        super().__init__(env)
        if isinstance(env.observation_space, Dict):
            raise ConfigError(
                f"env.frame_stack={num_frames} stacks arrays, but the observation is a dictionary of"
                f" {', '.join(entries(env.observation_space))}: set env.flatten_observation=true, or env.frame_stack=1"
            )
        self.num_frames = num_frames
        self.observation_space = _box_of_shape(env.observation_space, lambda bound: _repeat(bound, num_frames))

    def reset(self, keys: jax.Array) -> tuple[StackedState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        env_state, timestep = self.env.reset(keys)
        frames = jnp.concatenate([timestep.observation.agent_view] * self.num_frames, axis=-1)
        return StackedState(env_state, frames), _with_view(timestep, frames)

    def step(self, keys: jax.Array, state: StackedState, action: jax.Array) -> tuple[StackedState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        newest = timestep.observation.agent_view
        frames = jnp.concatenate([state.frames[..., newest.shape[-1] :], newest], axis=-1)
        return StackedState(env_state, frames), _with_view(timestep, frames)


class CountSteps(StatefulWrapper):
    """A wrapper that sets `Observation.step_count` to the number of steps since the episode started.

    Args:
        env: the environments to wrap.
    """

    def reset(self, keys: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        env_state, timestep = self.env.reset(keys)
        steps = jnp.zeros(keys.shape, jnp.int32)
        return CountedState(env_state, steps), _with_observation(timestep, step_count=steps)

    def step(self, keys: jax.Array, state: CountedState, action: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        steps = state.steps + 1
        return CountedState(env_state, steps), _with_observation(timestep, step_count=steps)


class RecordedState(NamedTuple):
    """The state of the wrapped environments, and the return and length `[N]` of the episode so far."""

    env_state: State
    episode_return: jax.Array
    episode_length: jax.Array


class RecordEpisode(StatefulWrapper):
    """A wrapper that sets `TimeStep.episode` to the return and length of the episode so far.

    Args:
        env: the environments to wrap, before their rewards are scaled or clipped.
    """

    def reset(self, keys: jax.Array) -> tuple[RecordedState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        env_state, timestep = self.env.reset(keys)
        return RecordedState(env_state, jnp.zeros(keys.shape), jnp.zeros(keys.shape, jnp.int32)), timestep

    def step(self, keys: jax.Array, state: RecordedState, action: jax.Array) -> tuple[RecordedState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        total, length = state.episode_return + timestep.reward, state.episode_length + 1
        episode = EpisodeMetrics(total, length, timestep.terminated | timestep.truncated)
        return RecordedState(env_state, total, length), timestep._replace(episode=episode)


class ScaleReward(Wrapper):
    """A wrapper that multiplies rewards by a factor.

    Args:
        env: the environments to wrap.
        scale: the factor.
    """

    def __init__(self, env: VectorEnvironment, scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, timestep._replace(reward=timestep.reward * self.scale)


class ClipReward(Wrapper):
    """A wrapper that clips rewards to `[-limit, limit]`.

    Args:
        env: the environments to wrap.
        limit: the largest absolute reward.
    """

    def __init__(self, env: VectorEnvironment, limit: float) -> None:
        super().__init__(env)
        self.limit = limit

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, timestep._replace(reward=jnp.clip(timestep.reward, -self.limit, self.limit))


def _with_observation(timestep: TimeStep, **changes: jax.Array) -> TimeStep:
    # Wrappers below the automatic reset see the true successor in both fields.
    observation = timestep.observation._replace(**changes)
    return timestep._replace(observation=observation, next_observation=observation)


def _with_view(timestep: TimeStep, view: jax.Array) -> TimeStep:
    return _with_observation(timestep, agent_view=view)


def _flat(timestep: TimeStep) -> TimeStep:
    view = timestep.observation.agent_view
    if not isinstance(view, Mapping):
        return _with_view(timestep, view.reshape(view.shape[0], -1))
    parts = [as_floats(entry).reshape(entry.shape[0], -1) for entry in entries(view).values()]
    return _with_view(timestep, jnp.concatenate(parts, axis=-1).astype(jnp.float32))


def _flat_box(space: ObservationSpace) -> Box:
    """Return the box of views from `space` after `_flat`."""
    if not isinstance(space, Dict):
        return _box_of_shape(space, lambda bound: bound.reshape(-1))
    bounds = [_float_bounds(entry) for entry in entries(space).values()]
    low, high = (np.concatenate(parts) for parts in zip(*bounds, strict=True))
    return Box(low, high, low.shape)


def _float_bounds(space: Space) -> list[np.ndarray]:
    """Return the smallest and the largest value `[D]` of a flattened entry after `as_floats`."""
    bounds: tuple[Any, Any]
    if isinstance(space, Box):
        bounds = (space.low, space.high)
    else:
        bounds = (0, np.asarray(space.n if isinstance(space, Discrete) else space.nvec) - 1)
    scale = 255 if space.dtype == jnp.uint8 else 1
    return [np.broadcast_to(np.asarray(bound, np.float32) / scale, space.shape).reshape(-1) for bound in bounds]


def _per_env(bound: np.ndarray | float) -> np.ndarray | float:
    """Add a leading axis to the bound of one action, to broadcast it over N environments."""
    return np.asarray(bound)[None] if np.ndim(bound) else bound


def _repeat(bound: np.ndarray, times: int) -> np.ndarray:
    return np.concatenate([bound] * times, axis=-1)


def _box_of_shape(space: ObservationSpace, reshape: Callable[[np.ndarray], np.ndarray]) -> Box:
    """Return the box of views from `space` after `reshape`."""
    if not isinstance(space, Box):
        raise ValueError(f"observation_space={space} is not a Box: only arrays can be flattened or stacked")
    bounds = (np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (space.low, space.high))
    low, high = (reshape(bound) for bound in bounds)
    return Box(low, high, low.shape, space.dtype)
