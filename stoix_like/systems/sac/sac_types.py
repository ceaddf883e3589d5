"""State of a soft actor-critic agent, and its ensemble of critics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import OnlineAndTarget, PyTree
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, between


class SACParams(NamedTuple):
    """Parameters of the policy and the critics, and the log-temperature, a scalar."""

    actor_params: PyTree
    q_params: OnlineAndTarget
    log_alpha: jax.Array


class SACOptStates(NamedTuple):
    """Optimiser states of policy, critics and temperature."""

    actor_opt_state: PyTree
    q_opt_state: PyTree
    alpha_opt_state: PyTree


@dataclass(frozen=True, kw_only=True)
class TargetCritics(Part):
    """Hyperparameters of the targets of an ensemble of critics."""

    num_target_critics: Annotated[int, between(1, 1000)]  # critics drawn per step; their minimum is the target

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Check that there are as many critics as the target needs."""
        if self.num_target_critics > config.num_critics:
            raise ConfigError(
                f"system.num_target_critics={self.num_target_critics} must not exceed"
                f" system.num_critics={config.num_critics}: use at most {config.num_critics}"
            )


class Ensemble(NamedTuple):
    """Selection of critics for targets and for the policy, of values `[B, C]`, one per critic; both use the minimum."""

    target: Callable[[jax.Array, jax.Array], jax.Array]  # `(q, key) -> q`, for a target
    policy: Callable[[jax.Array], jax.Array]  # `(q) -> q`, for the policy


def make_ensemble(config: TargetCritics | None, num_critics: int) -> Ensemble:
    """Build an ensemble with the minimum of a random subset as targets (Chen et al. 2021, REDQ, algorithm 1)."""
    number = num_critics if config is None else config.num_target_critics
    if number == num_critics:
        return Ensemble(lambda q, key: q, lambda q: q)

    def target(q: jax.Array, key: jax.Array) -> jax.Array:
        # Folded: the key itself draws the action.
        subset = jax.random.choice(jax.random.fold_in(key, 2), num_critics, (number,), replace=False)
        return jnp.broadcast_to(jnp.min(q[:, subset], axis=-1, keepdims=True), q.shape)

    return Ensemble(target, lambda q: jnp.mean(q, axis=-1, keepdims=True))
