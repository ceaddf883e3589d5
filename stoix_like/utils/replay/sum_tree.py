"""Priorities in a sum tree of flashbax, set without a loop over the items of a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.utils.accelerate.platform import on_gpu


def set_priorities(state: Any, indices: jax.Array, priorities: jax.Array) -> Any:
    """Set the priorities of items, and recompute the sums above them, level by level.

    `indices`: `[B]`, positions of the items; of equal ones, the largest priority counts.
    `priorities`: `[B]`, not negative; zero where they are not finite, because one such item would spoil every sum.
    """
    tree, priorities = state.sum_tree_state, jnp.where(jnp.isfinite(priorities), priorities, 0.0)
    # The children of node i are 2 i + 1 and 2 i + 2; the last level holds the items.
    update = _sum_all if on_gpu() else _sum_above
    nodes = update(tree.nodes, 2**tree.tree_depth - 1, tree.tree_depth, indices, priorities)
    largest = jnp.maximum(tree.max_recorded_priority, jnp.max(priorities))
    return state.replace(sum_tree_state=tree.replace(nodes=nodes, max_recorded_priority=largest))


def _set(items: jax.Array, indices: jax.Array, priorities: jax.Array) -> jax.Array:
    # In place only if nothing is written before the priorities are known, for which the tree may be read.
    return items.at[indices].set(jnp.minimum(priorities, 0.0)).at[indices].max(priorities)


def _sum_above(nodes: jax.Array, first: int, depth: int, indices: jax.Array, priorities: jax.Array) -> jax.Array:
    node = first + indices
    nodes = _set(nodes, node, priorities)
    for _ in range(depth):
        node = (node - 1) // 2
        nodes = nodes.at[node].set(nodes[2 * node + 1] + nodes[2 * node + 2])
    return nodes


def _sum_all(nodes: jax.Array, first: int, depth: int, indices: jax.Array, priorities: jax.Array) -> jax.Array:
    """Compute the sums of all items: on a GPU, a pass over the tree takes less than a scatter for each level."""
    levels = [_set(nodes[first:], indices, priorities)]
    for _ in range(depth):
        levels.append(levels[-1][0::2] + levels[-1][1::2])
    return jnp.concatenate(levels[::-1])
