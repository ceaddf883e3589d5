"""The state of an agent with a deterministic policy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from stoix_like.base_types import OnlineAndTarget


class DDPGParams(NamedTuple):
    """Parameters of the policy and of the critics, each with its target."""

    actor_params: OnlineAndTarget
    q_params: OnlineAndTarget


class DDPGOptStates(NamedTuple):
    """Optimiser states of policy and critics."""

    actor_opt_state: Any
    q_opt_state: Any


class DDPGShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser states, and the number of critic steps so far."""

    params: DDPGParams
    opt_states: DDPGOptStates
    steps: jax.Array


class ActionRange(NamedTuple):
    """The range of actions, arrays of the shape of an action.

    Attributes:
        minimum: lower bounds, -inf where there are none.
        maximum: upper bounds, inf where there are none.
        unit: the unit of noise: half the width of the range, or one where there are no bounds.
    """

    minimum: jax.Array
    maximum: jax.Array
    unit: jax.Array
