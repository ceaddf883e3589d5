"""Slowly updated copies of parameters, as functions that are passed to algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import OnlineAndTarget, PyTree
from stoix_like.schema import Part, Range


@dataclass(frozen=True, kw_only=True)
class SoftTarget(Part):
    """Hyperparameters of target parameters."""

    tau: Annotated[float, Range(0.0, 1.0, without_low=True)]  # Polyak step size of the target parameters (soft update)


class TargetParameters(NamedTuple):
    """Slowly updated copies of parameters."""

    # `(online) -> params`, with target parameters that are copies: one buffer cannot be donated twice.
    init: Callable[[PyTree], OnlineAndTarget]
    # `(params) -> params`, after a gradient step on the online parameters.
    update: Callable[[OnlineAndTarget], OnlineAndTarget]


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
