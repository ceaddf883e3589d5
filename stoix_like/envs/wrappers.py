"""Wrappers of vector environments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import EpisodeMetrics, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.legends import Legend
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete, ObservationSpace, Space, entries
from stoix_like.errors import ConfigError
from stoix_like.utils.jax_utils import as_floats

# Folded into the keys of a step, so that a repetition and the step itself draw independent numbers.
_STICKY_STREAM = 0x571C


class Wrapper(VectorEnvironment):
    """Base class that forwards every call to `env`; subclasses override what they change.

    Args:
        env: the environments to wrap.
    """

    def __init__(self, env: VectorEnvironment) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.on_host = env.on_host

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.reset`."""
        return self.on_start(*self.env.reset(keys))

    def next_episodes(self, state: State) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.next_episodes`."""
        return self.on_start(*self.env.next_episodes(self.inner_state(state)))

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        return self.env.step(keys, state, self.inner_action(action))

    def start_rollout(self, key: jax.Array, state: State) -> State:
        """See `VectorEnvironment.start_rollout`."""
        return self.with_inner_state(state, self.env.start_rollout(key, self.inner_state(state)))

    def release(self, state: State) -> None:
        """See `VectorEnvironment.release`."""
        self.env.release(self.inner_state(state))

    def check(self) -> None:
        """See `VectorEnvironment.check`."""
        self.env.check()

    def close(self) -> None:
        """See `VectorEnvironment.close`."""
        self.env.close()

    def scene(self) -> Scene | None:
        """See `VectorEnvironment.scene`."""
        return self.env.scene()

    def legend(self) -> Legend:
        """See `VectorEnvironment.legend`."""
        return self.env.legend()

    @property
    def unwrapped(self) -> VectorEnvironment:
        """See `VectorEnvironment.unwrapped`."""
        return self.env.unwrapped

    def rebased(self, base: VectorEnvironment) -> VectorEnvironment:
        """See `VectorEnvironment.rebased`."""
        wrapper = copy.copy(self)
        wrapper.env = self.env.rebased(base)
        return wrapper

    @property
    def params(self) -> Any:
        """See `VectorEnvironment.params`."""
        return self.env.params

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        """Wrap the start of an episode.

        Args:
            env_state: the state of the wrapped environments.
            timestep: their first time step `[N, ...]`.

        Returns:
            The state and the first time step with what the wrapper changes.
        """
        return env_state, timestep

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

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[CountedState, TimeStep]:
        """See `Wrapper.on_start`."""
        return CountedState(env_state, _zeros(timestep)), timestep

    def step(self, keys: jax.Array, state: CountedState, action: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        steps = state.steps + 1
        truncated = (timestep.truncated | (steps >= self.limit)) & ~timestep.terminated
        return CountedState(env_state, steps), timestep._replace(truncated=truncated)


class StickyState(NamedTuple):
    """The state of the wrapped environments, the action `[N, ...]` last taken, whether there is one, and the mask."""

    env_state: State
    previous: jax.Array
    has_previous: jax.Array
    mask: jax.Array | None


class StickyActions(StatefulWrapper):
    """A wrapper that repeats the previous action with some probability (Machado et al. 2018, arXiv:1709.06009).

    The first action of an episode is always taken, and so is one whose predecessor has become illegal.

    Args:
        env: the environments to wrap.
        probability: probability of a repetition in each step.
    """

    def __init__(self, env: VectorEnvironment, probability: float) -> None:
        super().__init__(env)
        self.probability = probability

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[StickyState, TimeStep]:
        """See `Wrapper.on_start`."""
        space, shape = self.action_space, timestep.reward.shape
        none = jnp.zeros((*shape, *space.shape), space.dtype)
        return StickyState(env_state, none, jnp.zeros(shape, bool), timestep.observation.action_mask), timestep

    def step(self, keys: jax.Array, state: StickyState, action: jax.Array) -> tuple[StickyState, TimeStep]:
        """See `VectorEnvironment.step`."""
        drawn = jax.vmap(jax.random.bernoulli, (0, None))(_fold_in(keys, _STICKY_STREAM), self.probability)
        repeats = drawn & state.has_previous & _is_legal(self.action_space, state.previous, state.mask)
        action = _where(repeats, state.previous, action.astype(state.previous.dtype))
        env_state, timestep = self.env.step(keys, state.env_state, action)
        return StickyState(env_state, action, jnp.ones_like(repeats), timestep.observation.action_mask), timestep


class RepeatActions(Wrapper):
    """A wrapper that takes each action several times and sums the rewards.

    It stops at the end of an episode, whose last observation is the true successor, and where the action becomes
    illegal.

    Args:
        env: the environments to wrap.
        repeats: steps per action.
    """

    def __init__(self, env: VectorEnvironment, repeats: int) -> None:
        super().__init__(env)
        self.repeats = repeats

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""

        def again(i: jax.Array, carry: tuple[State, TimeStep]) -> tuple[State, TimeStep]:
            state, timestep = carry
            legal = _is_legal(self.action_space, action, timestep.observation.action_mask)
            continues = legal & ~(timestep.terminated | timestep.truncated)
            after, successor = self.env.step(_fold_in(keys, i), state, action)
            successor = successor._replace(reward=timestep.reward + successor.reward)
            return _where(continues, (after, successor), carry)

        return jax.lax.fori_loop(1, self.repeats, again, self.env.step(keys, state, action))


class RandomStarts(Wrapper):
    """A wrapper that starts episodes after a random number of random legal actions.

    Their rewards are dropped. Where they would end the episode, it starts in the last state before its end. A limit of
    the environment's own counts their steps.

    Args:
        env: the environments to wrap.
        max_steps: the largest number of actions; each number from 0 on is equally likely.
    """

    def __init__(self, env: VectorEnvironment, max_steps: int) -> None:
        super().__init__(env)
        self.max_steps = max_steps

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.reset`."""
        keys, random_keys = _fold_in(keys, 0), _fold_in(keys, 1)
        num_steps = jax.vmap(lambda key: jax.random.randint(key, (), 0, self.max_steps + 1))(random_keys)
        start = self.env.reset(keys)

        def step(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            (state, timestep), active = carry
            step_keys = _fold_in(random_keys, i + 1)
            action = _sample(self.action_space, _fold_in(step_keys, 0), timestep.observation.action_mask)
            state, successor = self.env.step(_fold_in(step_keys, 1), state, action)
            active = active & (i < num_steps) & ~(successor.terminated | successor.truncated)
            return _where(active, (state, successor), carry[0]), active

        everywhere = jnp.ones(keys.shape, bool)
        (state, timestep), _ = jax.lax.fori_loop(0, self.max_steps, step, (start, everywhere))
        return state, start[1]._replace(observation=timestep.observation, next_observation=timestep.next_observation)


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

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        """See `Wrapper.on_start`."""
        return env_state, _flat(timestep)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, _flat(timestep)

    def legend(self) -> Legend:
        """See `VectorEnvironment.legend`: arrays keep the order of their entries, dictionaries lose their names."""
        legend = self.env.legend()
        return legend._replace(features=()) if isinstance(self.env.observation_space, Dict) else legend


class SelectEntries(Wrapper):
    """A wrapper that keeps some entries of a vector view and drops the others, such as velocities.

    Args:
        env: environments whose observations are vectors.
        indices: the entries to keep, in their new order.

    Raises:
        ConfigError: if the observations are not vectors, or the indices are not distinct entries of them.
    """

    def __init__(self, env: VectorEnvironment, indices: Sequence[int]) -> None:
        super().__init__(env)
        setting, space = f"env.observation_indices={list(indices)}", env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ConfigError(f"{setting} needs observations that are vectors, not {space}: flatten them, or leave it")
        size = space.shape[0]
        if not indices or len(set(indices)) < len(indices) or not set(indices) <= set(range(size)):
            raise ConfigError(f"{setting} must be distinct entries of observations [{size}]: use 0 to {size - 1}")
        self._indices = np.asarray(indices)
        self.observation_space = _box_of_shape(space, lambda bound: bound[self._indices])

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        """See `Wrapper.on_start`."""
        return env_state, self._select(timestep)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, self._select(timestep)

    def legend(self) -> Legend:
        """See `VectorEnvironment.legend`."""
        return self.env.legend().select(self._indices.tolist())

    def _select(self, timestep: TimeStep) -> TimeStep:
        return _with_view(timestep, timestep.observation.agent_view[:, self._indices])


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
        ConfigError: if the views are dictionaries or scalars.
    """

    def __init__(self, env: VectorEnvironment, num_frames: int) -> None:
        super().__init__(env)
        if isinstance(env.observation_space, Dict):
            raise ConfigError(
                f"env.frame_stack={num_frames} stacks arrays, but the observation is a dictionary of"
                f" {', '.join(entries(env.observation_space))}: set env.flatten_observation=true, or env.frame_stack=1"
            )
        if not env.observation_space.shape:
            raise ConfigError(
                f"env.frame_stack={num_frames} stacks along the last axis, but the observation is a scalar: set"
                " env.flatten_observation=true, or env.frame_stack=1"
            )
        self.num_frames = num_frames
        stacks = _box_of_shape(env.observation_space, lambda bound: _repeat(bound, num_frames))
        self.observation_space = replace(stacks, stacked=num_frames)

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[StackedState, TimeStep]:
        """See `Wrapper.on_start`."""
        frames = jnp.concatenate([timestep.observation.agent_view] * self.num_frames, axis=-1)
        return StackedState(env_state, frames), _with_view(timestep, frames)

    def step(self, keys: jax.Array, state: StackedState, action: jax.Array) -> tuple[StackedState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        newest = timestep.observation.agent_view
        frames = jnp.concatenate([state.frames[..., newest.shape[-1] :], newest], axis=-1)
        return StackedState(env_state, frames), _with_view(timestep, frames)

    def legend(self) -> Legend:
        """See `VectorEnvironment.legend`: a feature would be one of several frames."""
        return self.env.legend()._replace(features=())


class ClipObservation(Wrapper):
    """A wrapper that clips the agent's view to `[-limit, limit]`.

    Args:
        env: environments with float observations.
        limit: the largest absolute value.

    Raises:
        ConfigError: if the observations are not floats.
    """

    def __init__(self, env: VectorEnvironment, limit: float) -> None:
        super().__init__(env)
        self.limit = limit
        space = _float_box(env, f"env.observation_clip={limit}", "leave it null, or flatten dictionaries")
        low, high = np.clip(space.low, -limit, limit), np.clip(space.high, -limit, limit)
        self.observation_space = replace(space, low=low, high=high)

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        """See `Wrapper.on_start`."""
        return env_state, self._clip(timestep)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, self._clip(timestep)

    def _clip(self, timestep: TimeStep) -> TimeStep:
        return _with_view(timestep, jnp.clip(timestep.observation.agent_view, -self.limit, self.limit))


class AddTime(StatefulWrapper):
    """A wrapper that appends the remaining fraction of the time limit, from 1 down to 0, to vectors.

    Args:
        env: environments whose observations are float vectors.
        limit: the time limit in steps.

    Raises:
        ConfigError: if the observations are not float vectors.
    """

    def __init__(self, env: VectorEnvironment, limit: int) -> None:
        super().__init__(env)
        self.limit = limit
        space = _float_box(env, "env.time_in_observation=True", "use env.step_count=true")
        if len(space.shape) != 1:
            raise ConfigError(
                f"env.time_in_observation=True needs vectors, but observations have the shape {list(space.shape)}:"
                " set env.flatten_observation=true"
            )
        low, high = (np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (space.low, space.high))
        ends = np.append(low, low.dtype.type(0.0)), np.append(high, high.dtype.type(1.0))
        self.observation_space = Box(*ends, (space.shape[0] + 1,), space.dtype)

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[CountedState, TimeStep]:
        """See `Wrapper.on_start`."""
        steps = _zeros(timestep)
        return CountedState(env_state, steps), self._append(timestep, steps)

    def step(self, keys: jax.Array, state: CountedState, action: jax.Array) -> tuple[CountedState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        steps = state.steps + 1
        return CountedState(env_state, steps), self._append(timestep, steps)

    def _append(self, timestep: TimeStep, steps: jax.Array) -> TimeStep:
        view = timestep.observation.agent_view
        remaining = (1.0 - steps / self.limit).astype(view.dtype)
        return _with_view(timestep, jnp.concatenate([view, remaining[:, None]], axis=-1))


class CountSteps(StatefulWrapper):
    """A wrapper that sets `Observation.step_count` to the number of steps since the episode started.

    Args:
        env: the environments to wrap.
    """

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[CountedState, TimeStep]:
        """See `Wrapper.on_start`."""
        steps = _zeros(timestep)
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

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[RecordedState, TimeStep]:
        """See `Wrapper.on_start`."""
        return RecordedState(env_state, jnp.zeros_like(timestep.reward), _zeros(timestep)), timestep

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


def _fold_in(keys: jax.Array, number: Any) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def _sample(space: Space, keys: jax.Array, mask: jax.Array | None) -> jax.Array:
    return jax.vmap(space.sample)(keys) if mask is None else jax.vmap(space.sample)(keys, mask)


def _is_legal(space: Space, action: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return whether the mask `[N, A]` allows each action: `[N]` bool."""
    if mask is None or isinstance(space, Box):
        return jnp.ones(action.shape[:1], bool)
    sizes = space.nvec if isinstance(space, MultiDiscrete) else (space.n,)
    entries = action.reshape(action.shape[0], len(sizes)) + np.append(0, np.cumsum(sizes)[:-1])[None]
    return jnp.take_along_axis(mask, entries.astype(jnp.int32), axis=-1).all(-1)


def _where(condition: jax.Array, taken: Any, other: Any) -> Any:
    """Select each environment's leaves `[N, ...]` from one of two trees."""

    def select(one: jax.Array, two: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (one.ndim - 1)), one, two)

    return jax.tree.map(select, taken, other)


def _float_box(env: VectorEnvironment, setting: str, advice: str) -> Box:
    space = env.observation_space
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise ConfigError(f"{setting} needs observations that are arrays of floats, not {space}: {advice}")
    return space


def _zeros(timestep: TimeStep) -> jax.Array:
    return jnp.zeros(timestep.reward.shape, jnp.int32)


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
        raise ConfigError(
            f"observation_space={space} is not a Box: observe a one-hot vector, or leave out env.flatten_observation"
            " and env.frame_stack"
        )
    bounds = (np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (space.low, space.high))
    low, high = (reshape(bound) for bound in bounds)
    return Box(low, high, low.shape, space.dtype)
