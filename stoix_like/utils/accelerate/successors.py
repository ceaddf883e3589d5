"""The true successors of a rollout; only some differ from the observation of the next step.

A successor is needed for its value: where the episode continues, it is the observation of the next step, and where the
episode terminated, its value is zero. What is left are the successors of truncated steps and of the last step.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

TreeT = TypeVar("TreeT")

# With more truncations, the step of a rollout would write more than it saves.
_MOST_TRUNCATIONS = 4


def count_truncations(length: int, truncates_after: int | None) -> int | None:
    """Return how many truncations one environment can have in a rollout.

        M = ceil(T / L)

    Returns M; None if it is unknown, or if it saves too little to store only these successors.
    """
    if truncates_after is None:
        return None
    most = -(-length // truncates_after)
    return most if most <= _MOST_TRUNCATIONS and 2 * (most + 1) <= length else None


def no_successors(successor: TreeT, most: int) -> TreeT:
    """Return empty slots for the successors of truncated steps, `[M, N, ...]` for successors `[N, ...]`."""
    return jax.tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), successor)


def keep_truncated(slots: TreeT, count: jax.Array, successor: TreeT, truncated: jax.Array) -> tuple[TreeT, jax.Array]:
    """Store successors in the next free slot of each environment that was truncated.

    `slots`: `[M, N, ...]`.
    `count`: `[N]` int32, slots in use.
    `successor`: `[N, ...]`.
    `truncated`: `[N]` bool.
    """
    index = jnp.arange(len(jax.tree.leaves(slots)[0]), dtype=jnp.int32)[:, None]
    chosen = truncated[None] & (count[None] == index)

    def store(slot: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(chosen.reshape(chosen.shape + (1,) * (new.ndim - 1)), new[None], slot)

    return jax.tree.map(store, slots, successor), count + truncated


def with_last(slots: TreeT, last: TreeT) -> TreeT:
    """Return the successors of truncated steps, followed by the last step's: `[M + 1, N, ...]`."""
    return jax.tree.map(lambda slot, leaf: jnp.concatenate([slot, leaf[None]]), slots, last)


def successor_values(values: jax.Array, v_tm1: jax.Array, truncated: jax.Array) -> jax.Array:
    """Return the values of the true successors of all steps.

    `values`: `[S, N]` values of successors: of every step, S = T, or as from `with_last`.
    `v_tm1`: `[T, N]` values of the observations acted on.
    `truncated`: `[T, N]` bool.
    Returns `[T, N]`; where the episode terminated, the value of another observation, which counts nowhere.
    """
    if len(values) == len(v_tm1):
        return values
    following = jnp.concatenate([v_tm1[1:], values[-1:]])
    slot = jnp.clip(jnp.cumsum(truncated, 0) - 1, 0, max(len(values) - 2, 0))
    kept = values[:1] if len(values) <= 2 else jnp.take_along_axis(values[:-1], slot, 0)
    return jnp.where(truncated, kept, following)
