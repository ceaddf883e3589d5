"""State of an agent with a deterministic policy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import OnlineAndTarget, PyTree
from stoix_like.systems.parts.action_vectors import unit


class DDPGParams(NamedTuple):
    """Online and target parameters of the policy and the critics."""

    actor_params: OnlineAndTarget
    q_params: OnlineAndTarget


class DDPGOptStates(NamedTuple):
    """Optimiser states of policy and critics."""

    actor_opt_state: PyTree
    q_opt_state: PyTree


class ActionRange(NamedTuple):
    """The range of actions, as arrays of the shape of one action."""

    minimum: jax.Array  # lower bounds, -inf if unbounded
    maximum: jax.Array  # upper bounds, inf if unbounded
    middle: jax.Array  # middle of the range, 0 if unbounded
    unit: jax.Array  # half the range, 1 if unbounded

    def add_noise(self, action: jax.Array, noise: jax.Array) -> jax.Array:
        """Add noise `[B, ...]` in units of half the action range to actions `[B, ...]`, and clip to the bounds."""
        return jnp.clip(action + self.unit[None] * noise, self.minimum[None], self.maximum[None])

    def to_unit(self, action: jax.Array) -> jax.Array:
        """Return actions `[B, ...]` as distances from the middle, in units of half the action range."""
        return (action - self.middle[None]) / self.unit[None]

    def from_unit(self, action: jax.Array) -> jax.Array:
        """Return the actions `[B, ...]` at distances from the middle; the inverse of `to_unit`."""
        return self.middle[None] + self.unit[None] * action


def action_range(space: Any) -> ActionRange:
    """Return the range of a `Box` of actions."""
    bounds = (space.low, space.high, space.centre, unit(space))
    return ActionRange(*(jnp.broadcast_to(jnp.asarray(bound, jnp.float32), space.shape) for bound in bounds))
