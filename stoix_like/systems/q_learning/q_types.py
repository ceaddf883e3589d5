"""The state of a Q-learning agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from stoix_like.base_types import OnlineAndTarget


class QShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser state, and the number of updates so far."""

    params: OnlineAndTarget
    opt_state: Any
    updates: jax.Array
