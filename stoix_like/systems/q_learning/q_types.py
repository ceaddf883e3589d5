"""What a value-based agent consists of, and what its variants swap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from stoix_like.base_types import OnlineAndTarget
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
