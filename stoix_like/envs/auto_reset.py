"""Wrappers that reset environments automatically.

When an episode ends, a start state replaces the state and `TimeStep.observation`; reward, flags, `next_observation` and
`episode` still belong to the last step. The modes differ in how they obtain start states.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.stagger import IN_LOCKSTEP, Stagger
from stoix_like.envs.wrappers.agents import where_rows
from stoix_like.envs.wrappers.base import StatefulWrapper, Wrapper
from stoix_like.utils.jax_utils import apply_where, fold_in_each, largest_of_batch, merge_leading_dims

# Folded into the keys of a step, so that a reset and the step itself draw independent numbers.
_RESET_STREAM = 0x5EED


class Start(NamedTuple):
    """Start states and their observations."""

    env_state: State
    observation: Observation


class AutoResetState(NamedTuple):
    """The state of the environments, the start states that the mode stores, and the state of `Stagger`."""

    env_state: State
    store: PyTree
    remaining: PyTree = ()


class PoolStore(NamedTuple):
    """Start states `[pool_size, ...]`, and the number of them used in this rollout."""

    starts: Start
    taken: jax.Array


class AutoReset(StatefulWrapper, keeps_ends=True):
    """Base class of automatic resets; subclasses provide the start states."""

    stagger: Stagger = IN_LOCKSTEP  # where the first episodes are truncated

    def reset(self, keys: jax.Array) -> tuple[AutoResetState, TimeStep]:
        env_state, timestep = self.env.reset(keys)
        store = self.init_store(keys, Start(env_state, timestep.observation))
        return AutoResetState(env_state, store, self.stagger.init(keys)), timestep

    def step(self, keys: jax.Array, state: AutoResetState, action: jax.Array) -> tuple[AutoResetState, TimeStep]:
        env_state, timestep = self.env.step(keys, state.env_state, action)
        remaining, timestep = self.stagger.truncate(state.remaining, timestep)
        done = timestep.terminated | timestep.truncated
        current, store = self.replace_ended(keys, state.store, done, Start(env_state, timestep.observation))
        return AutoResetState(current.env_state, store, remaining), timestep._replace(observation=current.observation)

    def init_store(self, keys: jax.Array, starts: Start) -> PyTree:
        """Build the initial store; empty by default.

        `keys`: `[N]` keys that `starts` was drawn with.
        `starts`: `[N, ...]` initial states of the environments.
        """
        return ()

    @abstractmethod
    def replace_ended(self, keys: jax.Array, store: PyTree, done: jax.Array, current: Start) -> tuple[Start, PyTree]:
        """Replace the states of environments at the end of their episode by start states.

        `keys`: `[N]` keys of the step.
        `done`: `[N]` bool, whether the episode ended.
        `current`: `[N, ...]` states and observations after the step.
        Returns `[N, ...]`: start states where `done` is True, `current` elsewhere; and the new store.
        """

    def _replace_by_drawn(self, done: jax.Array, current: Start, draw: Callable[[], Start]) -> Start:
        """Draw start states and replace ended episodes by them; on a CPU, only if an episode ended."""

        def replaced() -> Start:
            return where_rows(done, draw(), current)

        # With few environments a branch skips most resets, but an accelerator would have to wait for the condition.
        return jax.lax.platform_dependent(
            cpu=lambda: jax.lax.cond(largest_of_batch(done), replaced, lambda: current), default=replaced
        )

    def _draw(self, keys: jax.Array) -> Start:
        env_state, timestep = self.env.reset(_of_resets(keys))
        return Start(env_state, timestep.observation)


class FreshReset(AutoReset):
    """A new start state for each episode, at the cost of resetting all environments whenever one episode ends."""

    def replace_ended(self, keys: jax.Array, store: PyTree, done: jax.Array, current: Start) -> tuple[Start, PyTree]:
        def draw() -> Start:
            if not self.env.keeps_parameters:
                return self._draw(keys)
            env_state, timestep = self.env.next_episodes(_of_resets(keys), current.env_state)
            return Start(env_state, timestep.observation)

        return self._replace_by_drawn(done, current, draw), store


class PoolReset(AutoReset):
    """Start states drawn in one batch before a rollout, if the one before used any, and used in order.

    All start states of a rollout are independent if at most `pool_size` episodes end in it; further episodes reuse the
    pool.
    """

    def __init__(self, env: VectorEnvironment, pool_size: int) -> None:
        super().__init__(env)
        self.pool_size = pool_size

    def start_rollout(self, key: jax.Array, state: AutoResetState) -> AutoResetState:
        """Fill the pool if it was used."""
        env_state = self.env.start_rollout(key, state.env_state)
        # Start states may cost as much as many steps, and no episode may have ended.
        store = apply_where(state.store.taken > 0, lambda _: self._fill(key), state.store)
        return state._replace(env_state=env_state, store=store)

    def init_store(self, keys: jax.Array, starts: Start) -> PoolStore:
        return self._fill(keys[0])

    def replace_ended(self, keys: jax.Array, store: PyTree, done: jax.Array, current: Start) -> tuple[Start, PyTree]:
        rank = jnp.cumsum(done[:: self.num_agents], dtype=jnp.int32)
        starts = _take(store.starts, (store.taken + rank - 1) % self.pool_size, self.pool_size)
        return where_rows(done, starts, current), store._replace(taken=store.taken + rank[-1])

    def _fill(self, key: jax.Array) -> PoolStore:
        return PoolStore(self._draw(jax.random.split(key, self.pool_size * self.num_agents)), jnp.zeros((), jnp.int32))


class OptimisticReset(AutoReset):
    """A few start states per step, distributed over the environments at the end of their episode.

    With N environments, each step draws `ceil(N / reset_ratio)` start states. If more episodes than that end in the
    same step, several environments share a start state; episodes that always end together, for example by a time limit,
    are then correlated.
    """

    def __init__(self, env: VectorEnvironment, reset_ratio: int) -> None:
        super().__init__(env)
        self.reset_ratio = reset_ratio

    def replace_ended(self, keys: jax.Array, store: PyTree, done: jax.Array, current: Start) -> tuple[Start, PyTree]:
        num_resets = math.ceil(len(keys) / self.num_agents / self.reset_ratio)

        def draw() -> Start:
            entry = (jnp.cumsum(done[:: self.num_agents], dtype=jnp.int32) - 1) % num_resets
            return _take(self._draw(keys[: num_resets * self.num_agents]), entry, num_resets)

        return self._replace_by_drawn(done, current, draw), store


class CachedReset(AutoReset):
    """A single start state per environment, drawn at the first reset and reused for every episode."""

    def init_store(self, keys: jax.Array, starts: Start) -> Start:
        # A copy: a donated buffer must not appear twice.
        return jax.tree.map(jnp.copy, starts)

    def replace_ended(self, keys: jax.Array, store: Start, done: jax.Array, current: Start) -> tuple[Start, Start]:
        return where_rows(done, store, current), store


class HostReset(Wrapper):
    """Continuation with the episodes that environments on the host have started themselves."""

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        env_state, timestep = self.env.step(keys, state, action)
        starts, first = self.env.next_episodes(_of_resets(keys), env_state)
        done = timestep.terminated | timestep.truncated
        current = where_rows(done, Start(starts, first.observation), Start(env_state, timestep.observation))
        return current.env_state, timestep._replace(observation=current.observation)


def without_store(state: State) -> State:
    """Return the state of environments without their automatic reset, if they have one."""
    return state.env_state if isinstance(state, AutoResetState) else state


def _of_resets(keys: jax.Array) -> jax.Array:
    return fold_in_each(keys, _RESET_STREAM)


def _take(starts: Start, entry: jax.Array, number: int) -> Start:
    """Gather games; arrays of a number of them have one entry, or one row of each agent, for every game."""

    def take(leaf: jax.Array) -> jax.Array:
        if len(leaf) == number:
            return leaf[entry]
        return merge_leading_dims(leaf.reshape(number, -1, *leaf.shape[1:])[entry], 2)

    return jax.tree.map(take, starts)
