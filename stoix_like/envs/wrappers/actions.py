"""Wrappers of actions: joined to vectors, sticky, repeated, random at the start of an episode, rescaled and clipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, MultiDiscrete, Space, Tuple, choices, first_choices
from stoix_like.envs.wrappers.agents import all_agents, of_first_agent, where_rows
from stoix_like.envs.wrappers.base import StatefulWrapper, Wrapper, unstacked
from stoix_like.schema import INT32_MAX
from stoix_like.utils.jax_utils import fold_in_each, prepend_dims

# Folded into the keys of a step, so that a repetition and the step itself draw independent numbers.
_STICKY_STREAM, _REPEAT_STREAM = 0x571C, 0x2E9E


class JoinActions(Wrapper, keeps_ends=True):
    """A wrapper that takes dictionaries or tuples of actions as vectors."""

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        self.action_space = self._mixed = Mixed(env.action_space)

    def inner_action(self, action: jax.Array) -> Any:
        """Split vectors into the dictionary or the tuple."""
        return self._mixed.element(action)


class CountFromZero(Wrapper, keeps_ends=True):
    """A wrapper that takes discrete actions counted from 0."""

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        space: Any = env.action_space
        self._first = first_choices(space)

        def from_zero(part: Any) -> Any:
            return part if isinstance(part, Box) else replace(part, start=type(part).start)

        self.action_space = space.map(from_zero) if isinstance(space, Mixed) else from_zero(space)

    def inner_action(self, action: jax.Array) -> jax.Array:
        """Add the first options."""
        return action + prepend_dims(self._first, action.ndim).astype(action.dtype)

    def outer_action(self, action: np.ndarray) -> np.ndarray:
        """Subtract the first options."""
        return action - prepend_dims(self._first, action.ndim).astype(action.dtype)


def join_actions(env: VectorEnvironment) -> VectorEnvironment:
    """Apply `JoinActions` and `CountFromZero` where actions are dictionaries or tuples, or do not start at 0."""
    env = JoinActions(env) if isinstance(env.action_space, Dict | Tuple) else env
    counts = isinstance(env.action_space, Discrete | MultiDiscrete | Mixed)
    return CountFromZero(env) if counts and first_choices(env.action_space).any() else env


class StickyState(NamedTuple):
    """The state of the wrapped environments, the action `[N, ...]` last taken, whether there is one, and the mask."""

    env_state: State
    previous: jax.Array
    has_previous: jax.Array
    mask: jax.Array | None


class StickyActions(StatefulWrapper, keeps_ends=True):
    """A wrapper that repeats the previous action with some probability (Machado et al. 2018, arXiv:1709.06009).

    The first action of an episode is always taken, and so is an action if the previous one has become illegal.
    """

    def __init__(self, env: VectorEnvironment, probability: float) -> None:
        super().__init__(env)
        self.probability = probability

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[StickyState, TimeStep]:
        space, shape = self.action_space, timestep.reward.shape
        none = jnp.zeros((*shape, *space.shape), space.dtype)
        return StickyState(env_state, none, jnp.zeros(shape, bool), timestep.observation.action_mask), timestep

    def step(self, keys: jax.Array, state: StickyState, action: jax.Array) -> tuple[StickyState, TimeStep]:
        drawn = jax.vmap(jax.random.bernoulli, (0, None))(fold_in_each(keys, _STICKY_STREAM), self.probability)
        repeats = drawn & state.has_previous & _is_legal(self.action_space, state.previous, state.mask)
        action = where_rows(repeats, state.previous, action.astype(state.previous.dtype))
        env_state, timestep = self.env.step(keys, state.env_state, action)
        return StickyState(env_state, action, jnp.ones_like(repeats), timestep.observation.action_mask), timestep


class RepeatActions(Wrapper):
    """A wrapper that takes each action several times and sums the rewards.

    It stops at the end of an episode, where the last observation is the true successor, and where an agent's action
    becomes illegal.
    """

    keeps_goals = False

    def __init__(self, env: VectorEnvironment, repeats: int) -> None:
        super().__init__(env)
        self.observation_space = unstacked(env.observation_space)
        self.repeats = repeats

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        # An environment may split its own key, with the same parts as from folding numbers in.
        repeat_keys = fold_in_each(keys, _REPEAT_STREAM)

        def again(i: jax.Array, carry: tuple[State, TimeStep]) -> tuple[State, TimeStep]:
            state, timestep = carry
            legal = _is_legal(self.action_space, action, timestep.observation.action_mask)
            legal = all_agents(legal, self.num_agents)
            continues = legal & ~(timestep.terminated | timestep.truncated)
            after, successor = self.env.step(fold_in_each(repeat_keys, i), state, action)
            successor = successor._replace(reward=timestep.reward + successor.reward)
            return where_rows(continues, (after, successor), carry)

        return jax.lax.fori_loop(1, self.repeats, again, self.env.step(keys, state, action))

    @property
    def truncates_after(self) -> int | None:
        own = self.env.truncates_after
        return own if own in (None, INT32_MAX) else -(-own // self.repeats)


class RandomStarts(Wrapper):
    """A wrapper that starts episodes after a random number of random legal actions.

    Their rewards are dropped. Where they would end the episode, it starts in the last state before its end. A limit of
    the environment's own counts their steps.
    """

    def __init__(self, env: VectorEnvironment, max_steps: int) -> None:
        super().__init__(env)
        self.observation_space = unstacked(env.observation_space)
        self.max_steps = max_steps

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        return self._play(keys, self.env.reset)

    def next_episodes(self, keys: jax.Array, state: State) -> tuple[State, TimeStep]:
        return self._play(keys, lambda keys: self.env.next_episodes(keys, state))

    def _play(self, keys: jax.Array, begin: Callable[[jax.Array], tuple[State, TimeStep]]) -> tuple[State, TimeStep]:
        keys, random_keys = fold_in_each(keys, 0), fold_in_each(keys, 1)
        num_steps = jax.vmap(lambda key: jax.random.randint(key, (), 0, self.max_steps + 1))(random_keys)
        num_steps = of_first_agent(num_steps, self.num_agents)
        start = begin(keys)

        def step(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            (state, timestep), active = carry
            step_keys = fold_in_each(random_keys, i + 1)
            action = jax.vmap(self.action_space.sample)(fold_in_each(step_keys, 0), timestep.observation.action_mask)
            state, successor = self.env.step(fold_in_each(step_keys, 1), state, action)
            active = active & (i < num_steps) & ~(successor.terminated | successor.truncated)
            return where_rows(active, (state, successor), carry[0]), active

        (state, timestep), _ = jax.lax.fori_loop(0, self.max_steps, step, (start, jnp.ones(random_keys.shape, bool)))
        return state, start[1]._replace(observation=timestep.observation, next_observation=timestep.next_observation)

    @property
    def truncates_after(self) -> int | None:
        own = self.env.truncates_after
        if own in (None, INT32_MAX):
            return own
        return own - self.max_steps if own > self.max_steps else None


class RescaleActions(Wrapper, keeps_ends=True):
    """A wrapper that rescales continuous actions from `[-1, 1]` to the bounds of the environment."""

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        space = env.action_space
        if isinstance(space, Mixed):
            self.action_space = space.map(
                lambda part: replace(part, low=-1.0, high=1.0) if isinstance(part, Box) and part.bounded else part
            )
            scaled = (space.low != self.action_space.low) | (space.high != self.action_space.high)
            low, high = np.where(scaled, space.low, -1.0), np.where(scaled, space.high, 1.0)
        elif isinstance(space, Box) and space.bounded:
            self.action_space = replace(space, low=-1.0, high=1.0)
            low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
        else:
            raise ValueError(f"action_space={space} is not a bounded Box: RescaleActions needs finite bounds")
        self._middle, self._half_range = _halves(low.astype(space.dtype), high.astype(space.dtype))

    def inner_action(self, action: jax.Array) -> jax.Array:
        """Rescale actions to the bounds of the wrapped environments."""
        return self._middle + self._half_range * action

    def outer_action(self, action: np.ndarray) -> np.ndarray:
        """Rescale actions from the bounds of the wrapped environments; entries of one value only become 0."""
        return (action - self._middle) / np.where(self._half_range > 0.0, self._half_range, 1.0)


class ClipActions(Wrapper, keeps_ends=True):
    """A wrapper that clips actions to the bounds of the action space."""

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        space = env.action_space
        self._low, self._high = (np.full(space.shape, end, space.dtype)[None] for end in (space.low, space.high))

    def inner_action(self, action: jax.Array) -> jax.Array:
        """Clip actions to the bounds of the action space."""
        return jnp.clip(action, self._low, self._high)


def _halves(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and half the distance of bounds, `[1, ...]`, such that no action of [-1, 1] leaves them."""
    middle = (high + low) / 2
    half = np.minimum(high - middle, middle - low)
    while (beyond := (middle + half > high) | (middle - half < low)).any():
        half = np.where(beyond, np.nextafter(half, np.zeros_like(half)), half)
    return middle[None], half[None]


def _is_legal(space: Space, action: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return whether the mask `[N, A]` allows each action: `[N]` bool."""
    sizes = choices(space)
    if mask is None or not sizes:
        return jnp.ones(action.shape[:1], bool)
    chosen = action[:, ~space.is_continuous] if isinstance(space, Mixed) else action
    entries = chosen.reshape(action.shape[0], len(sizes)) + np.append(0, np.cumsum(sizes)[:-1])[None]
    return jnp.take_along_axis(mask, entries.astype(jnp.int32), axis=-1).all(-1)
