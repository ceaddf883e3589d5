"""State of a REPPO agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from stoix_like.base_types import Observation


class REPPOParams(NamedTuple):
    """Parameters of the policy and the critic, and the logarithms of the two multipliers, scalars.

    Attributes:
        actor_params: parameters of the policy.
        q_params: parameters of the critic.
        log_alpha: log-temperature, the multiplier of the entropy constraint.
        log_kl_multiplier: log-multiplier of the constraint on the divergence from the behaviour policy.
    """

    actor_params: Any
    q_params: Any
    log_alpha: jax.Array
    log_kl_multiplier: jax.Array


class REPPOOptStates(NamedTuple):
    """Optimiser states of policy, critic and multipliers."""

    actor_opt_state: Any
    q_opt_state: Any
    dual_opt_state: Any


class REPPOShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser states, statistics of observations and of returns."""

    params: REPPOParams
    opt_states: REPPOOptStates
    statistics: Any
    return_statistics: Any


class REPPOTransition(NamedTuple):
    """Steps `[B, ...]` with soft lambda-returns as targets `[B]`; observations are normalised if the run does.

    Attributes:
        observation: the observation acted on.
        action: the action taken.
        target: soft lambda-return.
    """

    observation: Observation
    action: jax.Array
    target: jax.Array


class SoftValue(NamedTuple):
    """The policy, its value `[...]` without the entropy, and log-probabilities `[...]`."""

    pi: Any
    q: jax.Array
    log_prob: jax.Array
