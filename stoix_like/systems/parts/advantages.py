"""Advantages and value targets of rollouts, as functions that are passed to on-policy algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Transition
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.multistep import (
    batch_discounted_returns,
    batch_truncated_generalized_advantage_estimation,
    batch_vtrace_td_error_and_advantage,
)

CurrentPolicy = Callable[[], Any]
"""A function that computes the current policy at the observations of a rollout."""
Estimates = tuple[jax.Array, jax.Array]
"""Advantages and value targets `[T, N]`."""
Advantages = Callable[[Transition, jax.Array, jax.Array, CurrentPolicy], Estimates]
"""A function `(steps, v_tm1, v_t, policy) -> (advantages, value targets)` of a rollout, all `[T, N]`.

`steps.extras` are the log-probabilities of the behaviour policy, `v_tm1` the values of the observations acted on and
`v_t` the values of their true successors.
"""


def make_advantages(
    gamma: Scalar,
    gae_lambda: Scalar,
    vtrace: bool = False,
    max_ratios: tuple[Scalar, Scalar] = (1.0, 1.0),
    weighted: bool = True,
) -> Advantages:
    """Return generalised advantage estimation, or V-trace, which corrects for the lag of the behaviour policy."""

    def generalised(steps: Transition, v_tm1: jax.Array, v_t: jax.Array, policy: CurrentPolicy) -> Estimates:
        discount = gamma * (1.0 - steps.terminated)
        return batch_truncated_generalized_advantage_estimation(
            steps.reward, discount, gae_lambda, v_tm1=v_tm1, v_t=v_t, truncation_t=steps.truncated, time_major=True
        )

    def corrected(steps: Transition, v_tm1: jax.Array, v_t: jax.Array, policy: CurrentPolicy) -> Estimates:
        discount, ratio = gamma * (1.0 - steps.terminated), jnp.exp(policy().log_prob(steps.action) - steps.extras)
        inputs = v_tm1, v_t, steps.reward, discount, ratio, gae_lambda, *max_ratios
        output = batch_vtrace_td_error_and_advantage(*inputs, truncation_t=steps.truncated, time_major=True)
        return output.pg_advantage if weighted else output.q_estimate - v_tm1, v_tm1 + output.errors

    return corrected if vtrace else generalised


def make_return_advantages(gamma: Scalar) -> Advantages:
    """Return returns minus baselines, with the returns as value targets.

    Returns run to the end of the episode. Where it was truncated, or continues beyond the rollout, the value of the
    true successor stands for the rest.
    """

    def returns(steps: Transition, v_tm1: jax.Array, v_t: jax.Array, policy: CurrentPolicy) -> Estimates:
        discount = gamma * (1.0 - steps.terminated)
        target = batch_discounted_returns(steps.reward, discount, v_t, time_major=True, truncation_t=steps.truncated)
        return target - v_tm1, target

    return returns
