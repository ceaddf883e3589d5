"""Action and observation spaces named as in gymnasium, with jittable sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.errors import ConfigError


@dataclass(frozen=True)
class Discrete:
    """The integers `start … start + n - 1`; policies count actions from 0."""

    n: int
    dtype: Any = jnp.int32
    start: int = 0
    shape: ClassVar[tuple[int, ...]] = ()  # shape of one element

    def __repr__(self) -> str:
        """Return the space as gymnasium writes it."""
        return f"Discrete({self.n}{f', start={self.start}' if self.start else ''})"

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element uniformly among the legal ones.

        `mask`: `[n]` bool, True where an element is legal; if None or all False, every element is legal.
        """
        if mask is None:
            return jax.random.randint(key, (), self.start, self.start + self.n, self.dtype)
        return (_choose(key, mask) + self.start).astype(self.dtype)


@dataclass(frozen=True)
class MultiDiscrete:
    """Integer vectors with entry `i` in `start[i] … start[i] + nvec[i] - 1`; without `start`, from 0."""

    nvec: tuple[int, ...]
    dtype: Any = jnp.int32
    start: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not any(self.start or ()):
            object.__setattr__(self, "start", None)

    def __repr__(self) -> str:
        """Return the space as gymnasium writes it."""
        return f"MultiDiscrete({[*map(int, self.nvec)]}{f', start={[*map(int, self.start)]}' if self.start else ''})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element."""
        return (len(self.nvec),)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element uniformly among the legal ones."""
        if mask is None:
            low, high = bounds(self)
            return jax.random.randint(key, self.shape, low, high + 1, self.dtype)
        parts = jnp.split(mask, np.cumsum(self.nvec)[:-1])
        keys = jax.random.split(key, len(parts))
        chosen = jnp.stack([_choose(*each) for each in zip(keys, parts, strict=True)])
        return (chosen + first_choices(self)).astype(self.dtype)


@dataclass(frozen=True, eq=False)
class Box:
    """Arrays between `low` and `high`, which broadcast to `shape` and may be infinite."""

    low: np.ndarray | float  # lower bounds
    high: np.ndarray | float  # upper bounds
    shape: tuple[int, ...]  # shape of one element
    dtype: Any = jnp.float32  # its dtype
    # Frames of successive steps along the last axis of an observation, the newest last.
    stacked: int = 1

    def __repr__(self) -> str:
        """Return the space as gymnasium writes it, with the least and the largest bound."""
        least = np.min(self.low) if np.size(self.low) else 0
        largest = np.max(self.high) if np.size(self.high) else 0
        stacked = f", stacked={self.stacked}" if self.stacked > 1 else ""
        return f"Box({least:.10g}, {largest:.10g}, {tuple(self.shape)}, {jnp.dtype(self.dtype)}{stacked})"

    @property
    def bounded(self) -> bool:
        """True if all bounds are finite; the largest float32 counts as infinite."""
        return bool(np.all(_is_finite(self.low)) and np.all(_is_finite(self.high)))

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds, float32 arrays of `shape`; -1 and 1 for entries that lack one."""
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), self.shape) for bound in (self.low, self.high))
        both = _is_finite(low) & _is_finite(high)
        return np.where(both, low, np.float32(-1.0)), np.where(both, high, np.float32(1.0))

    @property
    def half_width(self) -> np.ndarray:
        """Half the distance between the bounds, an array of `shape`; 1 for entries that lack one."""
        low, high = self.ends
        return high / 2 - low / 2

    @property
    def centre(self) -> np.ndarray:
        """The middle between the bounds, an array of `shape`; 0 for entries that lack one."""
        low, high = self.ends
        return low / 2 + high / 2

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element.

        Floats are uniform between their bounds, exponentially distributed from a lone one on, and standard normal
        without any. Integers and flags are uniform, without bounds among the numbers of 32 bits.
        """
        if jnp.issubdtype(self.dtype, jnp.bool_):
            return jax.random.bernoulli(key, 0.5, self.shape)
        if jnp.issubdtype(self.dtype, jnp.integer):
            info = np.iinfo(self.dtype)
            least, largest = max(info.min, -(2**31)), min(info.max, 2**31 - 2)
            ends = (np.clip(np.asarray(bound, np.float64), least, largest) for bound in (self.low, self.high))
            first, last = (end.astype(np.int32) for end in ends)
            return jax.random.randint(key, self.shape, first, last + 1).astype(self.dtype)
        uniform = jax.random.uniform(key, self.shape, self.dtype, *(jnp.asarray(end, self.dtype) for end in self.ends))
        if self.bounded:
            return uniform
        low, high = (jnp.broadcast_to(jnp.asarray(bound, self.dtype), self.shape) for bound in (self.low, self.high))
        distance, number = (draw(key, self.shape, self.dtype) for draw in (jax.random.exponential, jax.random.normal))
        above, below = (np.broadcast_to(_is_finite(bound), self.shape) for bound in (self.low, self.high))
        lone = jnp.where(above, low + distance, jnp.where(below, high - distance, number))
        return jnp.where(above & below, uniform, lone)


class Dict:
    """Dictionaries of arrays, with one space per entry; for observations, and for actions."""

    def __init__(self, spaces: Mapping[str, ObservationSpace]) -> None:
        # In the order in which jax flattens dictionaries.
        self.spaces: dict[str, ObservationSpace] = dict(sorted(spaces.items()))

    def __repr__(self) -> str:
        return f"Dict({self.spaces})"

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> dict[str, Any]:
        """Draw each entry on its own."""
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(each) for each, (name, space) in zip(keys, self.spaces.items(), strict=True)}


class Tuple:
    """Tuples of arrays, with one space per entry; for actions."""

    def __init__(self, spaces: Sequence[Any]) -> None:
        self.spaces = tuple(spaces)

    def __repr__(self) -> str:
        return f"Tuple({list(self.spaces)})"

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> tuple[Any, ...]:
        """Draw each entry on its own."""
        keys = jax.random.split(key, len(self.spaces))
        return tuple(space.sample(each) for each, space in zip(keys, self.spaces, strict=True))


class Mixed:
    """Float vectors that hold one element of each part of a `Dict` or a `Tuple`, side by side, as policies see them.

    Choices are whole numbers, which float32 represents exactly up to 2^24.
    """

    dtype: Any = jnp.float32  # its dtype

    def __init__(self, space: Dict | Tuple) -> None:
        self.space = space
        named = entries(space)
        for name, part in named.items():
            if not isinstance(part, Discrete | MultiDiscrete | Box):
                raise ConfigError(
                    f"action_space: {name} is a {type(part).__name__}: use Box, Discrete or MultiDiscrete"
                )
        if not named:
            raise ConfigError("action_space has no parts: use a Dict or a Tuple of at least one space")
        self.names, self.parts = list(named), list(named.values())
        self._structure = jax.tree.structure(mapped(space, lambda part: part, dict, tuple))
        sizes = [math.prod(part.shape) for part in self.parts]
        self._ends = np.cumsum(sizes).tolist()
        self.shape = (self._ends[-1],)
        # `[D]` bool, True for entries of a `Box`.
        self.is_continuous = np.repeat([isinstance(part, Box) for part in self.parts], sizes)
        # Bounds, `[D]`; the first and the last option for choices.
        ends = [[np.full(part.shape, end, np.float32).ravel() for end in bounds(part)] for part in self.parts]
        self.low, self.high = map(np.concatenate, zip(*ends, strict=True))

    def __repr__(self) -> str:
        return f"Mixed({self.space})"

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element of each part, uniformly among the legal ones. Returns the vector, `[D]`."""
        keys, masks = jax.random.split(key, len(self.parts)), self.masks(mask)
        return self.join([part.sample(*each) for part, *each in zip(self.parts, keys, masks, strict=True)])

    def masks(self, mask: jax.Array | None) -> list[jax.Array | None]:
        """Split a mask of all choices `[..., L]` by part; None for a `Box`, and without a mask."""
        if mask is None:
            return [None] * len(self.parts)
        sizes = [sum(choices(part)) for part in self.parts]
        pieces = jnp.split(mask, np.cumsum(sizes)[:-1], axis=-1)
        return [piece if size else None for piece, size in zip(pieces, sizes, strict=True)]

    def join(self, values: Sequence[jax.Array]) -> jax.Array:
        """Concatenate elements of the parts, `[..., *part.shape]`, to vectors `[..., D]`."""
        pairs = zip(values, self.parts, strict=True)
        rows = [value.reshape(*value.shape[: value.ndim - len(part.shape)], -1) for value, part in pairs]
        return jnp.concatenate([row.astype(self.dtype) for row in rows], axis=-1)

    def split(self, vector: jax.Array) -> list[jax.Array]:
        """Split vectors `[..., D]` into elements of the parts, `[..., *part.shape]`, with their dtypes."""
        pieces = jnp.split(vector, self._ends[:-1], axis=-1)
        pairs = zip(pieces, self.parts, strict=True)
        return [piece.reshape(*vector.shape[:-1], *part.shape).astype(part.dtype) for piece, part in pairs]

    def element(self, vector: jax.Array) -> Any:
        """Convert vectors `[..., D]` to elements of `space`."""
        return jax.tree.unflatten(self._structure, self.split(vector))

    def map(self, change: Callable[[Any], Any]) -> Mixed:
        """Return the space with other parts, of the same shapes."""
        return Mixed(mapped(self.space, change))


def mapped(space: Any, change: Callable[[Any], Any], of_dict: Any = Dict, of_tuple: Any = Tuple) -> Any:
    """Return nested spaces with other parts, in containers of these kinds."""
    if isinstance(space, Dict):
        return of_dict({name: mapped(part, change, of_dict, of_tuple) for name, part in space.spaces.items()})
    if isinstance(space, Tuple):
        return of_tuple([mapped(part, change, of_dict, of_tuple) for part in space.spaces])
    return change(space)


def bounds(space: Space) -> tuple[Any, Any]:
    """Return the smallest and the largest values of the entries of an element, which broadcast to its shape."""
    if isinstance(space, Box | Mixed):
        return space.low, space.high
    first = first_choices(space)
    return first, first + np.asarray(space.n if isinstance(space, Discrete) else space.nvec) - 1


def first_choices(space: Space) -> np.ndarray:
    """Return the first option of each entry of an action that is a choice, and 0 for the others, of its shape."""
    if isinstance(space, Mixed):
        return np.concatenate([first_choices(part).ravel() for part in space.parts])
    start = 0 if isinstance(space, Box) or space.start is None else space.start
    return np.broadcast_to(np.asarray(start, np.int32), space.shape)


def plain_bound(bound: Any) -> np.ndarray | float:
    """Return a bound as a number, or as float32 where entries have their own."""
    array = np.asarray(bound, np.float32)
    return array if array.ndim else float(array)


def choices(space: Any) -> tuple[int, ...]:
    """Return the number of options of each discrete choice of an action; `()` for a `Box`."""
    if isinstance(space, Mixed):
        return tuple(size for part in space.parts for size in choices(part))
    if isinstance(space, MultiDiscrete):
        return tuple(int(size) for size in space.nvec)
    return (space.n,) if isinstance(space, Discrete) else ()


def is_picture(space: Any) -> bool:
    """Return whether the bytes of a box are pixels, 0 … 255 with at least two axes; others are plain numbers."""
    return len(space.shape) >= 2 and bool(np.all(np.equal(space.low, 0)) and np.all(np.equal(space.high, 255)))


def is_vector(space: Any) -> bool:
    """Return whether a space is of vectors of floats."""
    return isinstance(space, Box) and len(space.shape) == 1 and bool(jnp.issubdtype(space.dtype, jnp.floating))


def appended(space: Any, low: Any, high: Any) -> Box:
    """Return the space of vectors with further entries, between these bounds."""
    ends = ((space.low, low), (space.high, high))
    least, largest = (
        np.append(np.broadcast_to(np.asarray(bound, space.dtype), space.shape), np.asarray(end, space.dtype))
        for bound, end in ends
    )
    return Box(least, largest, least.shape, space.dtype)


def space_of(view: Any, batch_dims: int = 0) -> ObservationSpace:
    """Return the space of views without declared bounds, by their shapes after the leading axes."""
    if isinstance(view, Mapping):
        return Dict({name: space_of(entry, batch_dims) for name, entry in view.items()})
    low, high = (0, 255) if view.dtype == jnp.uint8 else (-np.inf, np.inf)
    return Box(low, high, view.shape[batch_dims:], view.dtype)


def one_hot(space: ArraySpace, values: jax.Array) -> jax.Array:
    """Encode elements `[N, *shape]` of a discrete space as concatenated one-hot vectors `[N, D]`."""
    columns = values.reshape(len(values), -1) - first_choices(space).reshape(1, -1)
    vectors = [jax.nn.one_hot(columns[:, i], size, dtype=jnp.float32) for i, size in enumerate(choices(space))]
    return jnp.concatenate(vectors, axis=-1)


def _choose(key: jax.Array, mask: jax.Array) -> jax.Array:
    # One number for all elements: a categorical distribution would need one for each.
    legal = mask | ~mask.any()
    rank = jnp.floor(jax.random.uniform(key) * legal.sum())
    return jnp.argmax(jnp.cumsum(legal) > rank)


ArraySpace = Discrete | MultiDiscrete | Box
Space = ArraySpace | Mixed
ObservationSpace = ArraySpace | Dict
ActionSpace = Space | Dict | Tuple
"""Declared action space; wrappers and policies see a `Mixed` space instead of a `Dict` or a `Tuple`."""


def entries(nest: Any, name: str = "") -> dict[str, Any]:
    """Return the entries of nested dictionaries or spaces, in the order of jax: sorted by name at each level."""
    children = nest.spaces if isinstance(nest, Dict) else nest
    children = dict(enumerate(nest.spaces)) if isinstance(nest, Tuple) else children
    if not isinstance(children, Mapping):
        return {name: nest}
    prefix = f"{name}." if name else ""
    nested = (entries(child, f"{prefix}{key}") for key, child in sorted(children.items()))
    return {path: entry for part in nested for path, entry in part.items()}


def action_facts(action_space: Space) -> dict[str, Any]:
    """Return the properties of an action space under the argument names of heads."""
    if isinstance(action_space, Discrete):
        return {"action_space": action_space, "action_dim": action_space.n}
    if isinstance(action_space, MultiDiscrete):
        sizes = choices(action_space)
        return {"action_space": action_space, "action_dim": len(sizes), "number_of_dims_per_distribution": sizes}
    if isinstance(action_space, Mixed):
        return {"action_space": action_space, "action_dim": action_space.shape[0]}
    shape = tuple(action_space.shape)
    facts = {"action_space": action_space, "action_dim": shape[0] if len(shape) == 1 else shape}
    if action_space.bounded:
        facts["minimum"] = _as_tuples(np.broadcast_to(action_space.low, shape).tolist())
        facts["maximum"] = _as_tuples(np.broadcast_to(action_space.high, shape).tolist())
    return facts


def fits(head: Any, action_space: Space) -> bool:
    """Return whether a head or a system supports an action space.

    Both declare the class variables `action_spaces`, by default every type of space, and `needs_bounds`, by default
    False; see `heads.PolicyHead`. Bounds have a distance.
    """
    if not isinstance(action_space, getattr(head, "action_spaces", object)):
        return False
    if not isinstance(action_space, Box) or not getattr(head, "needs_bounds", False):
        return True
    return action_space.bounded and not _has_points(action_space)


def describe(action_space: Space) -> str:
    """Describe an action space for messages."""
    if isinstance(action_space, Discrete):
        return f"{action_space.n} discrete actions"
    if isinstance(action_space, MultiDiscrete):
        return f"discrete actions of sizes {choices(action_space)}"
    if isinstance(action_space, Mixed):
        pairs = zip(action_space.names, action_space.parts, strict=True)
        return f"mixed actions ({', '.join(f'{name}: {describe(part)}' for name, part in pairs)})"
    bounded = "bounded" if action_space.bounded else "unbounded"
    points = ", with entries of one value only" if _has_points(action_space) else ""
    return f"{bounded} continuous actions of shape {action_space.shape}{points}"


def _is_finite(bound: Any) -> np.ndarray:
    """Return whether bounds are finite; the largest float32 counts as infinite."""
    return np.asarray(np.abs(bound) < np.finfo(np.float32).max)


def _has_points(box: Box) -> bool:
    """Return whether entries have one value only, on which no density exists."""
    return not (box.half_width > 0.0).all()


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list | tuple) else value
