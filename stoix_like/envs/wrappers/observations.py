"""Wrappers of observations: flattened, selected, stacked, clipped, and with the time or the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import ACHIEVED, DESIRED, Observation, PyTree, TimeStep
from stoix_like.envs import spaces
from stoix_like.envs.environment import EnvFacts, State, VectorEnvironment
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Box, Dict, ObservationSpace, choices, entries
from stoix_like.envs.wrappers.base import CountingWrapper, ObservationWrapper, StatefulWrapper, with_observation
from stoix_like.errors import ConfigError
from stoix_like.utils.jax_utils import as_floats


class AsDeclared(ObservationWrapper):
    """A wrapper that lets views and `observation_space` agree on what a number means, and masks be booleans.

    Pixels (`spaces.is_picture`) stay bytes, which networks divide by 255; other bytes become int16. Discrete
    observations become one-hot vectors. Integers and flags become floats where these are declared; otherwise, the space
    has the dtype of the view. Masks of actions without choices are dropped.

    `view`: the shapes of their views `[N, ...]`.
    """

    keeps_goals = True

    def __init__(self, env: VectorEnvironment, view: PyTree) -> None:
        super().__init__(env)
        self._declared = view
        self.observation_space = _agreed(env.observation_space, view)

    def take_facts(self, env: EnvFacts) -> None:
        super().take_facts(env)
        if (inner := env.goal_reward) is not None:
            self.goal_reward = lambda *goals: inner(*map(self._element, (ACHIEVED, DESIRED), goals))

    def converted(self, observation: Observation) -> Observation:
        observation, mask = super().converted(observation), observation.action_mask
        mask = mask.astype(bool) if mask is not None and choices(self.action_space) else None
        return observation._replace(action_mask=mask)

    def view(self, view: PyTree) -> PyTree:
        pairs = (entries(space).values() for space in (self.env.observation_space, self.observation_space))
        leaves, structure = jax.tree.flatten(view)
        return jax.tree.unflatten(structure, [_as_box(*each) for each in zip(leaves, *pairs, strict=True)])

    def _element(self, name: str, goal: PyTree) -> PyTree:
        """Return one goal as the wrapped environments observe it."""
        space: Any = self.env.observation_space
        leaves, structure = jax.tree.flatten(goal)
        declared = entries(space.spaces[name]).values(), jax.tree.leaves(self._declared[name])
        return jax.tree.unflatten(structure, [_from_box(*each) for each in zip(leaves, *declared, strict=True)])


def as_declared(env: VectorEnvironment, traced: bool = True) -> VectorEnvironment:
    """Apply `AsDeclared` to environments that it changes; return others as they are."""
    if not traced:
        canonical, space = jax.dtypes.canonicalize_dtype, env.observation_space
        view = spaces.mapped(space, lambda part: jax.ShapeDtypeStruct(part.shape, canonical(part.dtype)), dict)
        wrapped = AsDeclared(env, view)
        return env if repr(space) == repr(wrapped.observation_space) else wrapped
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), env.num_agents))
    observed = jax.eval_shape(env.reset, keys)[1].observation
    wrapped = AsDeclared(env, observed.agent_view)
    same = jax.eval_shape(wrapped.converted, observed) == observed
    return env if same and str(env.observation_space) == str(wrapped.observation_space) else wrapped


def _as_box(leaf: jax.Array, declared: Any, box: Box) -> jax.Array:
    return leaf.astype(box.dtype) if isinstance(declared, Box) else spaces.one_hot(declared, leaf)


def _from_box(leaf: jax.Array, declared: Any, like: Any) -> jax.Array:
    """Undo `_as_box` for one element."""
    if sizes := choices(declared):
        parts = jnp.split(leaf, np.cumsum(sizes)[:-1])
        leaf = jnp.stack([jnp.argmax(part) for part in parts]).reshape(declared.shape) + spaces.first_choices(declared)
    return leaf.astype(like.dtype)


def _agreed(space: ObservationSpace, view: PyTree) -> ObservationSpace:
    """Return the space of converted views."""
    if isinstance(space, Dict):
        return Dict({name: _agreed(part, view[name]) for name, part in space.spaces.items()})
    if not isinstance(space, Box):
        return Box(0.0, 1.0, (sum(choices(space)),))
    is_integer = not jnp.issubdtype(view.dtype, jnp.floating)
    if spaces.is_picture(space) and jnp.uint8 in (view.dtype, space.dtype) and is_integer:
        dtype = jnp.uint8
    elif jnp.issubdtype(space.dtype, jnp.floating) and is_integer:
        return space
    else:
        # With `jax_enable_x64`, views may have 64 bits.
        dtype = {jnp.dtype("uint8"): jnp.int16, jnp.dtype("float64"): jnp.float32}.get(view.dtype, view.dtype)
    # Arrays of jax have 32 bits where a space has 64.
    return space if dtype == jax.dtypes.canonicalize_dtype(space.dtype) else replace(space, dtype=jnp.dtype(dtype))


class FlattenObservation(ObservationWrapper):
    """A wrapper that flattens the agent's view to a vector.

    The entries of a dictionary become one float32 vector: converted by `as_floats`, and concatenated sorted by name.
    """

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        self.observation_space = _flat_box(env.observation_space)

    def legend(self) -> Legend:
        """Arrays keep the order of their entries, dictionaries lose their names."""
        legend = self.env.legend()
        return legend._replace(features=()) if isinstance(self.env.observation_space, Dict) else legend

    def view(self, view: PyTree) -> jax.Array:
        if not isinstance(view, Mapping):
            return view.reshape(view.shape[0], -1)
        parts = [as_floats(entry).reshape(entry.shape[0], -1) for entry in entries(view).values()]
        return jnp.concatenate(parts, axis=-1).astype(jnp.float32)


class SelectEntries(ObservationWrapper):
    """A wrapper that keeps some entries of a vector view and drops the others, such as velocities."""

    def __init__(self, env: VectorEnvironment, indices: Sequence[int]) -> None:
        super().__init__(env)
        self._indices = np.asarray(indices)
        self.observation_space = _box_of_shape(env.observation_space, lambda bound: bound[self._indices])

    def legend(self) -> Legend:
        return self.env.legend().select(self._indices.tolist())

    def view(self, view: jax.Array) -> jax.Array:
        return view[:, self._indices]


class StackedState(NamedTuple):
    """The state of the wrapped environments, and the last k `frames` `[N, ..., C * k]`, oldest first."""

    env_state: State
    frames: jax.Array


class StackFrames(StatefulWrapper, keeps_ends=True):
    """A wrapper that stacks the last views along their last axis; a reset fills the stack with the first view."""

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
        stacks = _box_of_shape(env.observation_space, lambda bound: np.concatenate([bound] * num_frames, axis=-1))
        self.observation_space = replace(stacks, stacked=num_frames)

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[StackedState, TimeStep]:
        frames = jnp.concatenate([timestep.observation.agent_view] * self.num_frames, axis=-1)
        return StackedState(env_state, frames), with_observation(timestep, agent_view=frames)

    def step(self, keys: jax.Array, state: StackedState, action: jax.Array) -> tuple[StackedState, TimeStep]:
        env_state, timestep = self.env.step(keys, state.env_state, action)
        newest = timestep.observation.agent_view
        frames = jnp.concatenate([state.frames[..., newest.shape[-1] :], newest], axis=-1)
        return StackedState(env_state, frames), with_observation(timestep, agent_view=frames)

    def legend(self) -> Legend:
        """A feature would be one of several frames."""
        return self.env.legend()._replace(features=())


class ClipObservation(ObservationWrapper):
    """A wrapper that clips the agent's view to `[-limit, limit]`."""

    def __init__(self, env: VectorEnvironment, limit: float) -> None:
        super().__init__(env)
        self.limit = limit
        space = float_box(env, f"env.observation_clip={limit}", "leave it null, or flatten dictionaries")
        low, high = np.clip(space.low, -limit, limit), np.clip(space.high, -limit, limit)
        self.observation_space = replace(space, low=low, high=high)

    def view(self, view: jax.Array) -> jax.Array:
        return jnp.clip(view, -self.limit, self.limit)


class AddTime(CountingWrapper, keeps_ends=True):
    """A wrapper that appends the remaining fraction of the time limit, from 1 down to 0, to vectors."""

    def __init__(self, env: VectorEnvironment, limit: int) -> None:
        super().__init__(env)
        self.limit = limit
        space = float_box(env, "env.time_in_observation=True", "use env.step_count=true")
        if len(space.shape) != 1:
            raise ConfigError(
                f"env.time_in_observation=True needs vectors, but observations have the shape {list(space.shape)}:"
                " set env.flatten_observation=true"
            )
        self.observation_space = spaces.appended(space, 0.0, 1.0)

    def at_step(self, timestep: TimeStep, steps: jax.Array) -> TimeStep:
        view = timestep.observation.agent_view
        remaining = (1.0 - steps / self.limit).astype(view.dtype)
        return with_observation(timestep, agent_view=jnp.concatenate([view, remaining[:, None]], axis=-1))


class CountSteps(CountingWrapper, keeps_ends=True):
    """A wrapper that sets `Observation.step_count` to the number of steps since the episode started."""

    def at_step(self, timestep: TimeStep, steps: jax.Array) -> TimeStep:
        return with_observation(timestep, step_count=steps)


def float_box(env: VectorEnvironment, setting: str, advice: str) -> Box:
    """Return the observation space of environments, and refuse one that is not of floats, in a sentence."""
    space = env.observation_space
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise ConfigError(f"{setting} needs observations that are arrays of floats, not {space}: {advice}")
    return space


def _flat_box(space: ObservationSpace) -> Box:
    """Return the box of views from `space` after `FlattenObservation`."""
    if not isinstance(space, Dict):
        return _box_of_shape(space, lambda bound: bound.reshape(-1))
    bounds = [_float_bounds(entry) for entry in entries(space).values()]
    low, high = (np.concatenate(parts) for parts in zip(*bounds, strict=True))
    return Box(low, high, low.shape)


def _float_bounds(space: Any) -> list[np.ndarray]:
    """Return the smallest and the largest value `[D]` of a flattened entry after `as_floats`."""
    scale = 255 if space.dtype == jnp.uint8 else 1
    return [
        np.broadcast_to(np.asarray(bound, np.float32) / scale, space.shape).reshape(-1)
        for bound in spaces.bounds(space)
    ]


def _box_of_shape(space: ObservationSpace, reshape: Callable[[np.ndarray], np.ndarray]) -> Box:
    """Return the box of views from `space` after `reshape`."""
    if not isinstance(space, Box):
        raise ConfigError(f"observation_space={space} is not a Box: observe a one-hot vector, or one of its entries")
    bounds = (np.broadcast_to(_bound(bound, space.dtype), space.shape) for bound in (space.low, space.high))
    low, high = (reshape(bound) for bound in bounds)
    return Box(low, high, low.shape, space.dtype)


def _bound(bound: np.ndarray | float, dtype: Any) -> np.ndarray:
    """Return a bound in its dtype; integers may have infinite ones."""
    array = np.asarray(bound)
    return array.astype(dtype) if np.isfinite(array).all() else array
