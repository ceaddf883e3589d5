"""Slowly updated copies of parameters, as functions that are passed to algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import OnlineAndTarget, PyTree, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, Part, Range, between


@dataclass(frozen=True, kw_only=True)
class SoftTarget(Part):
    """Hyperparameters of target parameters."""

    tau: Annotated[float, Range(0.0, 1.0, without_low=True)]  # Polyak step size of the target parameters (soft update)


@dataclass(frozen=True, kw_only=True)
class PeriodicTarget(Part):
    """Hyperparameters of target parameters that follow softly, or by a copy in every period."""

    tau: Annotated[float, between(0.0, 1.0)]  # Polyak step size of the target parameters (soft update)
    target_update_period: Annotated[int | None, between(0, INT32_MAX)] = None  # gradient steps per copy (hard update)

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that the target network follows."""
        if self.tau == 0.0 and not self.target_update_period:
            raise ConfigError(
                "system.tau=0 leaves the target network as it starts: use 0.005, or a system.target_update_period"
            )

    def update(self, params: OnlineAndTarget, steps: jax.Array) -> OnlineAndTarget:
        """Update the target parameters after a number of gradient steps."""
        if self.target_update_period:
            target = optax.periodic_update(params.online, params.target, steps, self.target_update_period)
        else:
            target = optax.incremental_update(params.online, params.target, self.tau)
        return params._replace(target=target)


class TargetParameters(NamedTuple):
    """Slowly updated copies of parameters."""

    init: Callable[[PyTree], OnlineAndTarget]  # `(online) -> params`, with copies: one buffer cannot be donated twice
    update: Callable[[OnlineAndTarget], OnlineAndTarget]  # `(params) -> params`, after a step on the online ones


NO_TARGET = TargetParameters(lambda online: OnlineAndTarget(online, ()), lambda params: params)
"""There are no target parameters."""


def make_soft_target(config: SoftTarget | None) -> TargetParameters:
    """Build target parameters that take a Polyak step of size `tau` towards the online ones; None for no targets."""
    if config is None:
        return NO_TARGET
    tau = config.tau

    def update(params: OnlineAndTarget) -> OnlineAndTarget:
        return params._replace(target=optax.incremental_update(params.online, params.target, tau))

    return TargetParameters(lambda online: OnlineAndTarget(online, jax.tree.map(jnp.copy, online)), update)
