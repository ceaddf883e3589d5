"""Automatic resets: what an environment goes on from when its episode has ended.

Only the state and `TimeStep.observation` change; reward, flags, `next_observation` and `episode` stay those of the
step that ended. The modes differ in where start states come from.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.wrappers import StatefulWrapper

# Start states are drawn from a stream of their own, apart from what a step draws from the same key.
_RESET_STREAM = 0x5EED


class Start(NamedTuple):
    """States to begin an episode from, and what an agent sees there."""

    env_state: State
    observation: Observation


class AutoResetState(NamedTuple):
    """The state of the environments and whatever start states the mode keeps in store."""

    env_state: State
    store: PyTree


class PoolStore(NamedTuple):
    """Start states `[pool_size, ...]` and how many of them this rollout has taken."""

    starts: Start
    taken: jax.Array


class AutoReset(StatefulWrapper):
    """Replaces the state by a start state wherever an episode ends; a subclass provides the start states.

    Args:
        env: environments without automatic reset.
    """

    def reset(self, keys: jax.Array) -> tuple[AutoResetState, TimeStep]:
        """See `VectorEnvironment.reset`."""
        env_state, timestep = self.env.reset(keys)
        return AutoResetState(env_state, self.init_store(keys, Start(env_state, timestep.observation))), timestep

    def step(self, keys: jax.Array, state: AutoResetState, action: jax.Array) -> tuple[AutoResetState, TimeStep]:
        """See `VectorEnvironment.step`."""
        env_state, timestep = self.env.step(keys, state.env_state, action)
        done = timestep.terminated | timestep.truncated
        starts, store = self.take_starts(keys, state.store, done)
        current = _select(done, starts, Start(env_state, timestep.observation))
        return AutoResetState(current.env_state, store), timestep._replace(observation=current.observation)

    def init_store(self, keys: jax.Array, starts: Start) -> PyTree:
        """What to keep from the reset of all environments.

        Args:
            keys: `[N]`, those that `starts` was drawn with.
            starts: `[N, ...]` the states that the environments begin from.

        Returns:
            The store; empty unless a mode keeps start states.
        """
        del keys, starts
        return ()

    @abstractmethod
    def take_starts(self, keys: jax.Array, store: PyTree, done: jax.Array) -> tuple[Start, PyTree]:
        """Start states for the environments whose episode ended.

        Args:
            keys: `[N]` keys of the step.
            store: as `init_store` made it.
            done: `[N]` bool, whether the episode ended.

        Returns:
            `[N, ...]` start states, of which only those at `done` are used, and the new store.
        """

    def _draw_if_any(self, keys: jax.Array, done: jax.Array) -> Start:
        """Start states `[len(keys), ...]`, without meaning where no episode ended."""

        def draw() -> Start:
            return self._draw(keys)

        def unused() -> Start:
            return jax.tree.map(lambda leaf: jax.lax.full(leaf.shape, 0, leaf.dtype), jax.eval_shape(draw))

        # A branch saves most resets where there are few environments, but an accelerator would wait for its condition.
        return jax.lax.platform_dependent(cpu=lambda: jax.lax.cond(_any(done), draw, unused), default=draw)

    def _draw(self, keys: jax.Array) -> Start:
        env_state, timestep = self.env.reset(jax.vmap(jax.random.fold_in, (0, None))(keys, _RESET_STREAM))
        return Start(env_state, timestep.observation)


class FreshReset(AutoReset):
    """A new start state at each end, at the price of resetting all environments in every step in which one ends."""

    def take_starts(self, keys: jax.Array, store: PyTree, done: jax.Array) -> tuple[Start, PyTree]:
        """See `AutoReset.take_starts`."""
        return self._draw_if_any(keys, done), store


class PoolReset(AutoReset):
    """Start states drawn in one batch per rollout; each end takes the next one.

    They are independent as long as a rollout has at most `pool_size` ends; after that the pool is used again.

    Args:
        env: environments that do not reset themselves.
        pool_size: start states drawn for a rollout.
    """

    def __init__(self, env: VectorEnvironment, pool_size: int) -> None:
        super().__init__(env)
        self.pool_size = pool_size

    def begin_rollout(self, key: jax.Array, state: AutoResetState) -> AutoResetState:
        """Fill the pool; see `VectorEnvironment.begin_rollout`."""
        env_state = self.env.begin_rollout(key, state.env_state)
        return AutoResetState(env_state, self._fill(key))

    def init_store(self, keys: jax.Array, starts: Start) -> PoolStore:
        """See `AutoReset.init_store`."""
        del starts
        return self._fill(keys[0])

    def take_starts(self, keys: jax.Array, store: PoolStore, done: jax.Array) -> tuple[Start, PoolStore]:
        """See `AutoReset.take_starts`."""
        del keys
        rank = jnp.cumsum(done, dtype=jnp.int32)
        entry = (store.taken + rank - 1) % self.pool_size
        starts = jax.tree.map(lambda leaf: leaf[entry], store.starts)
        return starts, store._replace(taken=store.taken + rank[-1])

    def _fill(self, key: jax.Array) -> PoolStore:
        return PoolStore(self._draw(jax.random.split(key, self.pool_size)), jnp.zeros((), jnp.int32))


class OptimisticReset(AutoReset):
    """Few resets per step, shared out among the environments that ended.

    With N environments, `ceil(N / reset_ratio)` start states are drawn in each step. While no more episodes than
    that end in one step, every end gets a start state of its own; when more do, several go on from the same one,
    so that environments which end together, as under a time limit, stay correlated.

    Args:
        env: environments that do not reset themselves.
        reset_ratio: environments per reset.
    """

    def __init__(self, env: VectorEnvironment, reset_ratio: int) -> None:
        super().__init__(env)
        self.reset_ratio = reset_ratio

    def take_starts(self, keys: jax.Array, store: PyTree, done: jax.Array) -> tuple[Start, PyTree]:
        """See `AutoReset.take_starts`."""
        num_resets = math.ceil(len(keys) / self.reset_ratio)
        drawn = self._draw_if_any(keys[:num_resets], done)
        entry = (jnp.cumsum(done, dtype=jnp.int32) - 1) % num_resets
        return jax.tree.map(lambda leaf: leaf[entry], drawn), store


class CachedReset(AutoReset):
    """Each environment goes back, at every end, to the one start state that it was given at first."""

    def init_store(self, keys: jax.Array, starts: Start) -> Start:
        """See `AutoReset.init_store`."""
        del keys
        # A copy, because a donated buffer must not appear twice.
        return jax.tree.map(jnp.copy, starts)

    def take_starts(self, keys: jax.Array, store: Start, done: jax.Array) -> tuple[Start, Start]:
        """See `AutoReset.take_starts`."""
        del keys, done
        return store, store


@jax.custom_batching.custom_vmap
def _any(done: jax.Array) -> jax.Array:
    return jnp.any(done)


@_any.def_vmap
def _any_of_batch(axis_size: int, in_batched: list[bool], done: jax.Array) -> tuple[jax.Array, bool]:
    # One answer for the whole batch: a condition of its own for each entry would make both branches run.
    del axis_size, in_batched
    return _any(done), False


def _select(done: jax.Array, starts: Start, current: Start) -> Start:
    def pick(start: jax.Array, now: jax.Array) -> jax.Array:
        return jnp.where(done.reshape(done.shape + (1,) * (now.ndim - 1)), start, now)

    return jax.tree.map(pick, starts, current)
