"""Priorities in a sum tree of flashbax, set without a loop over the items of a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def set_priorities(state: Any, indices: jax.Array, priorities: jax.Array) -> Any:
    """Set the priorities of items, and recompute the sums above them, level by level.

    Args:
        state: the state of a buffer with priorities.
        indices: `[B]`, positions of the items; of equal ones, the largest priority counts.
        priorities: `[B]`, not negative.

    Returns:
        The next state.
    """
    tree = state.sum_tree_state
    # The children of node i are 2 i + 1 and 2 i + 2; the last level holds the items.
    nodes, node = tree.nodes, 2**tree.tree_depth - 1 + indices
    # In place only if nothing is written before the priorities are known, for which the tree may be read.
    nodes = nodes.at[node].set(jnp.minimum(priorities, 0.0)).at[node].max(priorities)
    for _ in range(tree.tree_depth):
        node = (node - 1) // 2
        nodes = nodes.at[node].set(nodes[2 * node + 1] + nodes[2 * node + 2])
    largest = jnp.maximum(tree.max_recorded_priority, jnp.max(priorities))
    return state.replace(sum_tree_state=tree.replace(nodes=nodes, max_recorded_priority=largest))
