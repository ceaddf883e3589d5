"""State of a REPPO agent."""

from __future__ import annotations

from typing import NamedTuple

import jax

from stoix_like.base_types import Distribution, Observation, PyTree


class REPPOParams(NamedTuple):
    """Parameters of the policy and the critic, and the logarithms of the two multipliers, scalars."""

    actor_params: PyTree  # parameters of the policy
    q_params: PyTree  # parameters of the critic
    log_alpha: jax.Array  # log-temperature, the multiplier of the entropy constraint
    log_kl_multiplier: jax.Array  # log-multiplier of the constraint on the divergence from the behaviour policy


class REPPOOptStates(NamedTuple):
    """Optimiser states of policy, critic and multipliers."""

    actor_opt_state: PyTree
    q_opt_state: PyTree
    dual_opt_state: PyTree


class REPPOShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser states, statistics of observations and of returns."""

    params: REPPOParams
    opt_states: REPPOOptStates
    statistics: PyTree
    return_statistics: PyTree


class REPPOTransition(NamedTuple):
    """Steps `[B, ...]` with soft lambda-returns as targets `[B]`; observations are normalised if the run does."""

    observation: Observation  # the observation acted on
    action: jax.Array  # the action taken
    target: jax.Array  # soft lambda-return


class SoftValue(NamedTuple):
    """The policy, its value `[...]` without the entropy, and log-probabilities `[...]`."""

    pi: Distribution
    q: jax.Array
    log_prob: jax.Array
