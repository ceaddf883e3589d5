"""What an agent with a deterministic policy consists of."""

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
    """The shared state of the agent: parameters, optimiser states, and the gradient steps of the critics so far."""

    params: DDPGParams
    opt_states: DDPGOptStates
    steps: jax.Array


class ActionRange(NamedTuple):
    """Bounds of the actions, infinite where there are none, and the unit of noise: half their distance, else one."""

    minimum: Any
    maximum: Any
    unit: Any
