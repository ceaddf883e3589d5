"""What a value-based agent consists of, and what its variants swap."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.utils.replay import Batch


class QShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser state, and the updates made so far."""

    params: OnlineAndTarget
    opt_state: Any
    updates: jax.Array


QFunction = Callable[..., tuple[Any, ...]]
"""`(params, observation, noise_key=None) -> (action values [B, A], ...)`, then what else the head makes."""
QLoss = Callable[[Any, QFunction, OnlineAndTarget, Batch, jax.Array], jax.Array]
"""`(config, q, params, batch, key) -> losses [B]`, one for each window of the batch."""


def with_head(spec: SystemSpec, **hyperparams: Any) -> SystemSpec:
    """A spec whose action head has hyperparameters of the system, which may be traced.

    Args:
        spec: of the system.
        **hyperparams: attributes of the head.

    Returns:
        The spec.

    Raises:
        ConfigError: the head has no such attribute.
    """
    actor = spec.networks.actor_network
    for name in hyperparams:
        if not hasattr(actor.action_head, name):
            raise ConfigError(
                f"network.actor_network.action_head={type(actor.action_head).__name__} has no {name}: choose the"
                " network that the system brings"
            )
    actor = SimpleNamespace(**{**vars(actor), "action_head": actor.action_head.clone(**hyperparams)})
    return spec._replace(networks=SimpleNamespace(actor_network=actor))
