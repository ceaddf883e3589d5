"""State of a soft actor-critic agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from stoix_like.base_types import OnlineAndTarget


class SACParams(NamedTuple):
    """Parameters of the policy and the critics, and the log-temperature, a scalar."""

    actor_params: Any
    q_params: OnlineAndTarget
    log_alpha: jax.Array


class SACOptStates(NamedTuple):
    """Optimiser states of policy, critics and temperature."""

    actor_opt_state: Any
    q_opt_state: Any
    alpha_opt_state: Any


class SACShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser states, critic steps so far, statistics of observations."""

    params: SACParams
    opt_states: SACOptStates
    steps: jax.Array
    statistics: Any = ()
