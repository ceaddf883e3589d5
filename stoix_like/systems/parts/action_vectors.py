"""Actions as vectors, the inputs of networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.envs.spaces import Box, Discrete, Mixed, MultiDiscrete, Space
from stoix_like.utils.jax_utils import Scalar, prepend_dims


def as_vector(space: Space, action: jax.Array) -> jax.Array:
    """Return actions as vectors, the concatenated one-hot vectors of discrete choices.

    `action`: actions of this space, with any leading axes.
    Returns `[..., D]` floats.
    """
    if isinstance(space, Discrete):
        return jax.nn.one_hot(action, space.n, dtype=jnp.float32)
    if isinstance(space, MultiDiscrete):
        parts = [jax.nn.one_hot(action[..., i], size, dtype=jnp.float32) for i, size in enumerate(space.nvec)]
        return jnp.concatenate(parts, axis=-1)
    return action


def action_vector(space: Space, action: jax.Array) -> jax.Array:
    """Return actions as vectors.

    `action`: actions of this space, with any leading axes.
    Returns `[..., D]`: one-hot choices.
    """
    if isinstance(space, Mixed):
        pairs = zip(space.parts, space.split(action), strict=True)
        return jnp.concatenate([action_vector(part, each) for part, each in pairs], axis=-1)
    vector = as_vector(space, action)
    if not isinstance(space, Box):
        return vector
    scaled = (vector - prepend_dims(space.centre, vector.ndim)) / prepend_dims(unit(space), vector.ndim)
    return scaled.astype(vector.dtype).reshape(*vector.shape[: vector.ndim - len(space.shape)], -1)


def from_unit_vector(space: Box, vector: jax.Array) -> jax.Array:
    """Return the actions `[..., *shape]` of vectors `[..., D]`; the inverse of `action_vector` within bounds."""
    action = vector.reshape(*vector.shape[:-1], *space.shape)
    action = prepend_dims(space.centre, action.ndim) + prepend_dims(unit(space), action.ndim) * action
    return clip_to_bounds(space, action.astype(space.dtype))


def unit(space: Box) -> np.ndarray:
    """Return half the width of a box, an array of its shape; 1 for entries that are unbounded or constant."""
    return np.where(space.half_width > 0.0, space.half_width, np.float32(1.0))


def target_entropy(space: Box, scale: Scalar) -> Scalar:
    """Return `-scale` nats for each entry of an action, in units of half its range."""
    width = unit(space)
    return float(np.log(width).sum()) - scale * width.size


def clip_to_bounds(space: Space, action: jax.Array) -> jax.Array:
    """Clip actions to the bounds of their space, as `env.clip_actions` does.

    `action`: `[..., *shape]` actions of this space, or beyond its bounds.
    Returns `[..., *shape]` the nearest actions of the space.
    """
    if not isinstance(space, Box | Mixed):
        return action
    low, high = (prepend_dims(np.broadcast_to(end, space.shape), action.ndim) for end in (space.low, space.high))
    return jnp.clip(action, low, high).astype(action.dtype)
