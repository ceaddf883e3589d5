"""Staying near the actions of the data, by distances of actions: TD3+BC and ReBRAC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Axes
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, above
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class BehaviourDistance(Part):
    """Hyperparameters of the distance to the actions of the data, in units of half the action range."""

    bc_coef: Annotated[float | None, above(0.0)] = None  # weight of the squared distance to the recorded action
    critic_bc_coef: Annotated[float | None, above(0.0)] = None  # its weight at the successor, in targets; None: off

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Refuse distances to actions that are not known."""
        if self.critic_bc_coef is not None and not (config.replay.only_data and config.replay.n_step == 1):
            raise ConfigError(
                f"system.critic_bc_coef={self.critic_bc_coef} needs the action after every step, which only data hold:"
                " use arch=offline system.n_step=1, or null"
            )


class Behaviour(NamedTuple):
    """Regularisation towards the actions of the data; the identity without it."""

    # `(q [B], action [B, ...], batch) -> loss`, of the values and the actions of the policy.
    actor_loss: Callable[[jax.Array, jax.Array, Batch], jax.Array]
    # `(q_t [B, C], action [B, ...], batch) -> q_t`, of the target policy's action at the successor.
    target: Callable[[jax.Array, jax.Array, Batch], jax.Array]


def make_behaviour(config: BehaviourDistance, unit: jax.Array, axes: Axes) -> Behaviour:
    """Build the distances to the actions of the data.

        L = -mean(Q(s, pi(s))) / mean|Q| + bc_coef mean |pi(s) - a|^2
        y = r + gamma (Q(s', a') - critic_bc_coef |a' - a'_data|^2)

    Source: Fujimoto & Gu 2021 (TD3+BC), arXiv:2106.06860, equations 3 to 5, with `bc_coef` = 1 / (A alpha), because its
    authors' code averages over the A entries of an action; Tarasov et al. 2023 (ReBRAC), arXiv:2305.09836, equations 4
    and 5, where the authors' policy climbs the minimum of the critics, and this one the first, as in TD3.
    """

    def distance(action: jax.Array, other: jax.Array) -> jax.Array:
        errors = (action - other) / unit[None]
        return jnp.sum(jnp.square(errors).reshape(len(errors), -1), axis=-1)

    def actor_loss(q: jax.Array, action: jax.Array, batch: Batch) -> jax.Array:
        loss = -jnp.mean(batch.weight * q)
        if config.bc_coef is None:
            return loss
        return loss / value_scale(q, axes) + config.bc_coef * jnp.mean(batch.weight * distance(action, batch.action))

    def target(q_t: jax.Array, action: jax.Array, batch: Batch) -> jax.Array:
        if config.critic_bc_coef is None:
            return q_t
        after, is_known = batch.next_action
        penalty = config.critic_bc_coef * jnp.where(is_known, distance(action, after), 0.0)
        return q_t - penalty[:, None]

    return Behaviour(actor_loss, target)


def value_scale(q: jax.Array, axes: Axes) -> jax.Array:
    """Return the mean magnitude of values `[B]` over all shards, without a gradient; 1 while all of them are zero."""
    scale = jax.lax.stop_gradient(axes.mean(jnp.mean(jnp.abs(q))))
    return jnp.where(scale > 0.0, scale, 1.0)
