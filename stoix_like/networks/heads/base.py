"""The declarations of a policy head, and helpers that all heads share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.networks.utils import Initializer, parse_initializer

Shape = int | Sequence[int]
"""A number of actions, or the shape of one action."""
Embedding = Float[Array, "*batch D"]
"""The output of a torso: `[..., D]`."""
Mask = Bool[Array, "*batch A"]
"""True where an action is legal: `[..., A]`."""
Epsilon = int | float | Float[Array, "..."]
"""Probability of a random action: a number, or one per environment."""
Bounds = int | float | Float[Array, "..."] | Sequence[Any]
"""Lower or upper bounds: a number, or an array or nested sequence of the shape of an action."""


class PolicyHead:
    """The class variables by which a policy head declares what it supports.

    A flax module inherits from this class, or just sets the class variables itself.
    """

    # Types of the action spaces that the head supports.
    action_spaces: ClassVar[tuple[type, ...]] = (Discrete, MultiDiscrete, Box)
    needs_bounds: ClassVar[bool] = False  # whether the head supports a `Box` only with finite bounds
    within_bounds: ClassVar[bool] = False  # whether no sample leaves the bounds, as in squashed policies
    # Whether `__call__` takes `action_mask`, True where an action is legal. Where it is False, a head for discrete
    # actions raises a ValueError for observations with an action mask, and a head only for `Box` ignores the mask.
    takes_action_mask: ClassVar[bool] = False
    # What the head computes, such as "a policy" or "action values"; systems compare it with what they need, see
    # `networks.requirements`. None is compared with nothing.
    outputs: ClassVar[str | None] = None


def mask_argument(head: nn.Module, action_mask: Any) -> dict[str, Any]:
    """Return an action mask as a keyword argument of a policy head, see `PolicyHead` for what it declares.

    `action_mask`: True where an action is legal; None where all are legal.
    Returns `{}` where the mask is None or the head is only for `Box`.
    """
    if action_mask is None:
        return {}
    if getattr(head, "takes_action_mask", PolicyHead.takes_action_mask):
        return {"action_mask": action_mask}
    if all(issubclass(space, Box) for space in getattr(head, "action_spaces", PolicyHead.action_spaces)):
        return {}
    raise ValueError(
        f"action_head={type(head).__name__} does not take the action mask of the observation: set"
        " `takes_action_mask = True` in the class and take `action_mask` in its `__call__`, or, for continuous actions,"
        " set `action_spaces = (Box,)`"
    )


def action_shape(size: Shape) -> tuple[int, ...]:
    """Return the shape of one action; a number is the length of a vector."""
    return (size,) if isinstance(size, int | np.integer) else tuple(size)


def dense(embedding: Array, shape: tuple[int, ...], kernel_init: Initializer | str) -> Array:
    """Apply a dense layer from `[..., D]` to `[..., *shape]`; call it in a compact method."""
    x = nn.Dense(math.prod(shape), kernel_init=parse_initializer(kernel_init))(embedding)
    return x.reshape(*embedding.shape[:-1], *shape)


def two_parameters(embedding: Array, action_dim: Shape, kernel_init: Initializer | str) -> tuple[Array, Array]:
    """Return two parameters per entry of an action, from one dense layer; call it in a compact method."""
    shape = action_shape(action_dim)
    first, second = jnp.moveaxis(dense(embedding, (2, *shape), kernel_init), -1 - len(shape), 0)
    return first, second


def location_and_spread(
    embedding: Array, action_dim: Shape, kernel_init: Initializer | str, state_dependent: bool
) -> tuple[Array, Array]:
    """Return a location and a positive spread per entry of an action; call it in a compact method.

    The spread is initially close to log 2: softplus(s) with s from the embedding, or log(2) exp(p) with free parameters
    p, the same in all states.
    """
    if state_dependent:
        loc, spread = two_parameters(embedding, action_dim, kernel_init)
        return loc, jax.nn.softplus(spread)
    loc = dense(embedding, action_shape(action_dim), kernel_init)
    log_scale = FreeParameter(action_shape(action_dim), name="log_scale")()
    return loc, math.log(2.0) * jnp.broadcast_to(jnp.exp(log_scale), loc.shape)


class FreeParameter(nn.Module):
    """Parameters that depend on no input, initially 0."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> Array:
        """Return the parameters."""
        return self.param("value", nn.initializers.zeros, self.shape, jnp.float32)
