"""One space for agents of several kinds: vectors are padded with zeros, actions that only others have are masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import PyTree
from stoix_like.envs.spaces import Box, Discrete, Space, choices
from stoix_like.errors import ConfigError


def stack(*leaves: Any) -> jax.Array:
    """Stack arrays of one shape, or vectors, padded to the length of the longest."""
    if len({leaf.shape for leaf in leaves}) > 1:
        longest = max(len(leaf) for leaf in leaves)
        leaves = tuple(jnp.pad(leaf, (0, longest - len(leaf))) for leaf in leaves)
    return jnp.stack(leaves)


def check_views(views: Mapping[Any, PyTree], name: str) -> None:
    """Check that observations can be stacked."""
    first, *others = views
    for agent in others:
        if not _can_stack(views[first], views[agent]):
            one, two = shapes(views[first]), shapes(views[agent])
            raise ConfigError(f"{name}: {first} observes {one} and {agent} {two}: only vectors can be padded")


def shapes(view: PyTree) -> Any:
    """Return the shape of each leaf."""
    return jax.tree.map(lambda leaf: tuple(leaf.shape), view)


def common_actions(spaces: Mapping[Any, Space], name: str) -> Space:
    """Return the largest action space."""
    agents = list(spaces)
    largest = max(agents, key=lambda agent: (sum(choices(spaces[agent])), spaces[agent].shape))
    for agent in agents:
        if not _fits(spaces[agent], spaces[largest]):
            raise ConfigError(
                f"{name}: {agent} acts in {spaces[agent]} and {largest} in {spaces[largest]}: only Discrete spaces, and"
                " boxes with equal bounds, can be padded"
            )
    return spaces[largest]


def own_actions(actions: Any, spaces: Sequence[Space]) -> list[Any]:
    """Return the action of each agent, without padding.

    `actions`: `[A, ...]` elements of the common space; a single agent has no axis of agents.
    """
    rows = [actions] if len(spaces) == 1 else [actions[number] for number in range(len(spaces))]
    pairs = zip(rows, spaces, strict=True)
    return [row[tuple(map(slice, space.shape))] if isinstance(space, Box) else row for row, space in pairs]


def own_choices(spaces: Sequence[Space], size: int) -> np.ndarray:
    """Return which of `size` actions each agent has, `[A, size]` bool, of discrete action spaces."""
    return np.arange(size) < np.array([sum(choices(space)) for space in spaces])[:, None]


def legal_choices(rows: jax.Array, own: np.ndarray | bool = True) -> jax.Array:
    """Return masks `[..., size]`, with all own actions where none is legal, as a policy needs a legal one."""
    return jnp.where(rows.any(-1, keepdims=True), rows, own)


def _can_stack(one: PyTree, two: PyTree) -> bool:
    structure: Any = jax.tree.structure(one)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=False)
    return structure == jax.tree.structure(two) and all(a.shape == b.shape or a.ndim == b.ndim == 1 for a, b in pairs)


def _fits(space: Space, largest: Space) -> bool:
    if isinstance(space, Box) and isinstance(largest, Box):
        part = tuple(map(slice, space.shape))
        pairs = ((space.low, largest.low), (space.high, largest.high))
        return space.shape[1:] == largest.shape[1:] and all(np.all(one == np.asarray(two)[part]) for one, two in pairs)
    return (isinstance(space, Discrete) and isinstance(largest, Discrete)) or space == largest
