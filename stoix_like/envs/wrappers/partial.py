"""Wrappers of partial observability: entries left out, noise, delays and flicker.

What is random takes its numbers from the keys of resets and steps, each wrapper from a stream of its own, so that other
random numbers stay as they are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import PyTree, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.legends import VELOCITIES
from stoix_like.envs.spaces import Box, mapped
from stoix_like.envs.wrappers.base import StatefulWrapper, Wrapper, unstacked, with_observation
from stoix_like.envs.wrappers.observations import SelectEntries, float_box
from stoix_like.errors import ConfigError, nearest
from stoix_like.utils.jax_utils import fold_in_each


def mask_entries(env: VectorEnvironment, mask: Sequence[str]) -> VectorEnvironment:
    """Leave entries out of a vector view."""
    setting, space = f"env.observation_mask=[{', '.join(mask)}]", env.observation_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ConfigError(f"{setting} needs observations that are vectors, not {space}: flatten them, or leave it")
    size, masked = space.shape[0], set[int]()
    for name in mask:
        places = (int(name),) if name.isdecimal() else env.legend().places_of(name)
        if not places:
            features = [feature.name for feature in env.legend().features]
            known = [name for name in (VELOCITIES, *features) if env.legend().places_of(name)]
            hint = nearest(name, known) if known else f"use indices from 0 to {size - 1}"
            raise ConfigError(f"{setting}: which entries of this environment are {name} is unknown: {hint}")
        masked.update(places)
    kept = [place for place in range(size) if place not in masked]
    if not kept or max(masked, default=0) >= size:
        raise ConfigError(f"{setting} must leave some of the entries 0 to {size - 1} of observations: name fewer")
    return SelectEntries(env, kept)


class _RandomViews(Wrapper, keeps_ends=True):
    """Base class of wrappers that change the agent's view at random and nothing else."""

    keeps_goals = False
    # Folded into keys, so that wrappers and environments draw independent numbers.
    stream: ClassVar[int]

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        return self._changed(keys, *self.env.reset(keys))

    def next_episodes(self, keys: jax.Array, state: State) -> tuple[State, TimeStep]:
        return self._changed(keys, *self.env.next_episodes(keys, state))

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        return self._changed(keys, *self.env.step(keys, state, action))

    def _changed(self, keys: jax.Array, state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        view = jax.vmap(self.view)(fold_in_each(keys, self.stream), timestep.observation.agent_view)
        return state, with_observation(timestep, agent_view=view)

    @abstractmethod
    def view(self, key: jax.Array, view: PyTree) -> PyTree:
        """Convert the view of one environment to an element of `observation_space`."""


class NoisyObservation(_RandomViews):
    """A wrapper that adds normal noise to the agent's view, new in every step."""

    stream: ClassVar[int] = 0x4015E

    def __init__(self, env: VectorEnvironment, scale: float | Sequence[float]) -> None:
        super().__init__(env)
        setting = f"env.observation_noise={list(scale) if isinstance(scale, Sequence) else scale}"
        space = float_box(env, setting, "leave it 0, or flatten dictionaries")
        self._scale = np.asarray(scale, space.dtype)
        if self._scale.ndim and self._scale.shape != space.shape:
            raise ConfigError(
                f"{setting} has {self._scale.size} entries, but observations have the shape {list(space.shape)}: use"
                " one number, or one for each entry of a vector"
            )
        self._scale = np.broadcast_to(self._scale, space.shape)
        noisy = self._scale > 0.0
        low, high = np.where(noisy, -np.inf, space.low), np.where(noisy, np.inf, space.high)
        self.observation_space = unstacked(replace(space, low=low.astype(space.dtype), high=high.astype(space.dtype)))

    def view(self, key: jax.Array, view: jax.Array) -> jax.Array:
        return view + self._scale * jax.random.normal(key, view.shape, view.dtype)


class FlickerObservation(_RandomViews):
    """A wrapper that replaces the agent's whole view by zeros in some steps.

    Source: Hausknecht & Stone 2015, arXiv:1507.06527, section 5.
    """

    stream: ClassVar[int] = 0xF11C

    def __init__(self, env: VectorEnvironment, probability: float) -> None:
        super().__init__(env)
        self.probability = probability
        self.observation_space = mapped(env.observation_space, _with_zero)

    def view(self, key: jax.Array, view: PyTree) -> PyTree:
        hidden = jax.random.bernoulli(key, self.probability)
        return jax.tree.map(lambda entry: jnp.where(hidden, jnp.zeros_like(entry), entry), view)


class DelayedState(NamedTuple):
    """The state of the wrapped environments, and their last k `views` `[N, k, ...]`, oldest first."""

    env_state: State
    views: PyTree


class DelayObservation(StatefulWrapper, keeps_ends=True):
    """A wrapper that shows each view some steps later; the first view of an episode fills the gap.

    Rewards, ends and action masks are not delayed.
    """

    keeps_goals = False

    def __init__(self, env: VectorEnvironment, delay: int) -> None:
        super().__init__(env)
        self.delay = delay

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[DelayedState, TimeStep]:
        views = jax.tree.map(lambda entry: jnp.stack([entry] * self.delay, axis=1), timestep.observation.agent_view)
        return DelayedState(env_state, views), timestep

    def step(self, keys: jax.Array, state: DelayedState, action: jax.Array) -> tuple[DelayedState, TimeStep]:
        env_state, timestep = self.env.step(keys, state.env_state, action)
        newest, views = timestep.observation.agent_view, state.views
        shifted = jax.tree.map(lambda old, new: jnp.concatenate([old[:, 1:], new[:, None]], axis=1), views, newest)
        oldest = jax.tree.map(lambda old: old[:, 0], views)
        return DelayedState(env_state, shifted), with_observation(timestep, agent_view=oldest)


def _with_zero(space: Any) -> Any:
    """Return a space that has zeros, besides all elements of another one; frames in stacks need not be successive."""
    if not isinstance(space, Box):
        return space
    return replace(space, low=np.minimum(space.low, 0), high=np.maximum(space.high, 0), stacked=1)
