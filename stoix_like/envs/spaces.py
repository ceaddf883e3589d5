"""Action and observation spaces named as in gymnasium, with jittable sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Discrete:
    """The integers `0 … n - 1`."""

    n: int
    dtype: Any = jnp.int32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element."""
        return ()

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element uniformly among the legal ones.

        Args:
            key: a typed PRNG key.
            mask: `[n]` bool, True where an element is legal; if None or all False, every element is legal.

        Returns:
            The element, a scalar.
        """
        if mask is None:
            return jax.random.randint(key, (), 0, self.n, self.dtype)
        return _choose(key, mask).astype(self.dtype)


@dataclass(frozen=True)
class MultiDiscrete:
    """Integer vectors with entry `i` in `0 … nvec[i] - 1`."""

    nvec: tuple[int, ...]
    dtype: Any = jnp.int32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element."""
        return (len(self.nvec),)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element uniformly among the legal ones.

        Args:
            key: a typed PRNG key.
            mask: `[sum(nvec)]` bool, the concatenated masks of the entries, see `Discrete.sample`.

        Returns:
            The element, `[len(nvec)]`.
        """
        if mask is None:
            return jax.random.randint(key, self.shape, 0, jnp.asarray(self.nvec), self.dtype)
        parts = jnp.split(mask, np.cumsum(self.nvec)[:-1])
        keys = jax.random.split(key, len(parts))
        return jnp.stack([_choose(*each) for each in zip(keys, parts, strict=True)]).astype(self.dtype)


@dataclass(frozen=True, eq=False)
class Box:
    """Arrays between `low` and `high`, which broadcast to `shape` and may be infinite.

    Attributes:
        low: lower bounds.
        high: upper bounds.
        shape: shape of one element.
        dtype: its dtype.
        stacked: frames of successive steps along the last axis of an observation, the newest last; the first frame of
            an episode fills the stack. Replay buffers then store each frame once.
    """

    low: np.ndarray | float
    high: np.ndarray | float
    shape: tuple[int, ...]
    dtype: Any = jnp.float32
    stacked: int = 1

    @property
    def bounded(self) -> bool:
        """Whether all bounds are finite; the largest float32 counts as infinite."""
        largest = np.finfo(np.float32).max
        return bool(np.all(np.abs(self.low) < largest) and np.all(np.abs(self.high) < largest))

    @property
    def half_width(self) -> np.ndarray:
        """Half the distance between the bounds, an array of `shape`; ones if the box is unbounded."""
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), self.shape) for bound in (self.low, self.high))
        return (high - low) / 2 if self.bounded else np.ones(self.shape, np.float32)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element.

        Floats are uniform in a bounded box, and otherwise standard normal, clipped to the bounds. Integers are uniform.

        Args:
            key: a typed PRNG key.
            mask: ignored.

        Returns:
            The element, an array of `shape`.
        """
        del mask
        if jnp.issubdtype(self.dtype, jnp.integer):
            first, last = np.asarray(self.low, np.int64), np.asarray(self.high, np.int64)
            return jax.random.randint(key, self.shape, first, last + 1).astype(self.dtype)
        low = jnp.broadcast_to(jnp.asarray(self.low, self.dtype), self.shape)
        high = jnp.broadcast_to(jnp.asarray(self.high, self.dtype), self.shape)
        if self.bounded:
            return jax.random.uniform(key, self.shape, self.dtype, low, high)
        return jnp.clip(jax.random.normal(key, self.shape, self.dtype), low, high)


class Dict:
    """Dictionaries of arrays, with one space per entry; for observations.

    Args:
        spaces: the space of each entry by name; an entry may be a `Dict` again.
    """

    def __init__(self, spaces: Mapping[str, ObservationSpace]) -> None:
        # In the order in which jax flattens dictionaries.
        self.spaces: dict[str, ObservationSpace] = dict(sorted(spaces.items()))

    def __repr__(self) -> str:
        return f"Dict({self.spaces})"

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> dict[str, Any]:
        """Draw each entry on its own.

        Args:
            key: a typed PRNG key.
            mask: ignored.

        Returns:
            The dictionary.
        """
        del mask
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(each) for each, (name, space) in zip(keys, self.spaces.items(), strict=True)}


def _choose(key: jax.Array, mask: jax.Array) -> jax.Array:
    # One number for all elements: a categorical distribution would need one for each.
    legal = mask | ~mask.any()
    rank = jnp.floor(jax.random.uniform(key) * legal.sum())
    return jnp.argmax(jnp.cumsum(legal) > rank)


Space = Discrete | MultiDiscrete | Box
ObservationSpace = Space | Dict


def entries(nest: Any, name: str = "") -> dict[str, Any]:
    """Return the entries of nested dictionaries, in the order of jax: sorted by name at each level.

    Args:
        nest: a space or a view of the agent; anything else than a dictionary is a single entry.
        name: name of the nest, which starts the names of its entries.

    Returns:
        The entries by dotted name, such as `grid` and `agent.position`.
    """
    children = nest.spaces if isinstance(nest, Dict) else nest
    if not isinstance(children, Mapping):
        return {name: nest}
    prefix = f"{name}." if name else ""
    nested = (entries(child, f"{prefix}{key}") for key, child in sorted(children.items()))
    return {path: entry for part in nested for path, entry in part.items()}


def action_facts(action_space: Space) -> dict[str, Any]:
    """Return the properties of an action space under the argument names of heads.

    Args:
        action_space: the action space.

    Returns:
        `action_space`; `action_dim`, the number of actions, of sub-actions, or of entries of an action, or the shape of
        an action that is not a vector; for `MultiDiscrete`, `number_of_dims_per_distribution`; for a bounded `Box`,
        `minimum` and `maximum`.
    """
    if isinstance(action_space, Discrete):
        return {"action_space": action_space, "action_dim": action_space.n}
    if isinstance(action_space, MultiDiscrete):
        sizes = tuple(int(size) for size in action_space.nvec)
        return {
            "action_space": action_space,
            "action_dim": len(sizes),
            "number_of_dims_per_distribution": sizes,
        }
    shape = tuple(action_space.shape)
    facts = {"action_space": action_space, "action_dim": shape[0] if len(shape) == 1 else shape}
    if action_space.bounded:
        facts["minimum"] = _as_tuples(np.broadcast_to(action_space.low, shape).tolist())
        facts["maximum"] = _as_tuples(np.broadcast_to(action_space.high, shape).tolist())
    return facts


def fits(head: Any, action_space: Space) -> bool:
    """Return whether a head or a system supports an action space.

    Both declare the class variables `action_spaces`, by default every type of space, and `needs_bounds`, by default
    False; see `heads.PolicyHead`.

    Args:
        head: a head, a system's `Config`, or the class of either.
        action_space: the action space.
    """
    if not isinstance(action_space, getattr(head, "action_spaces", object)):
        return False
    bounded = not isinstance(action_space, Box) or action_space.bounded
    return bounded or not getattr(head, "needs_bounds", False)


def describe(action_space: Space) -> str:
    """Describe an action space for messages."""
    if isinstance(action_space, Discrete):
        return f"{action_space.n} discrete actions"
    if isinstance(action_space, MultiDiscrete):
        return f"discrete actions of sizes {action_facts(action_space)['number_of_dims_per_distribution']}"
    return f"{'bounded' if action_space.bounded else 'unbounded'} continuous actions of shape {action_space.shape}"


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list | tuple) else value
