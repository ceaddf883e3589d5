"""What PPO learns from."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from stoix_like.base_types import ActorCriticOptStates, ActorCriticParams, Observation


class PPOTransition(NamedTuple):
    """One step of a rollout with all that the surrogate objective needs.

    Attributes:
        obs: what was acted on, normalised where the run normalises.
        action: what was done.
        log_prob: log-probability of the action under the policy that acted.
        value: value estimate of `obs` before the update.
        advantage: generalised advantage estimate.
        target: value target.
    """

    obs: Observation
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class PPOShared(NamedTuple):
    """The shared state of a PPO agent: parameters, optimiser states, observation statistics."""

    params: ActorCriticParams
    opt_states: ActorCriticOptStates
    statistics: Any
