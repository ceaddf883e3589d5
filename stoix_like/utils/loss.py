"""Losses, as pure functions of what networks put out.

Losses are means over the batch unless their docstring says otherwise. Discounts `d_t` are gamma where the episode
goes on and zero where it terminated; an episode that a limit cut keeps its discount.
"""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.utils.jax_utils import Scalar

# exp(20) is about 5e8: products with it, and their squares inside an optimiser, stay finite in float32.
_MAX_LOG_RATIO = 20.0


@runtime_checkable
class SupportsKL(Protocol):
    """A distribution that knows its Kullback-Leibler divergence to another one."""

    def kl_divergence(self, other_dist: Any, /) -> Array:
        """KL(self || other_dist) in nats."""
        ...


def _probability_ratio(log_prob: Array, b_log_prob: Array) -> Array:
    """exp(log_prob - b_log_prob), continued as a straight line where it would overflow."""
    log_ratio = log_prob - b_log_prob
    excess = jnp.maximum(log_ratio - _MAX_LOG_RATIO, 0.0)
    return jnp.exp(jnp.minimum(log_ratio, _MAX_LOG_RATIO)) * (1.0 + excess)


def ppo_clip_loss(
    pi_log_prob_t: Float[Array, "*B"],
    b_pi_log_prob_t: Float[Array, "*B"],
    gae_t: Float[Array, "*B"],
    epsilon: Scalar,
) -> Float[Array, ""]:
    """Clipped surrogate policy loss.

        L = -mean(min(rho_t * A_t, clip(rho_t, 1 - epsilon, 1 + epsilon) * A_t)),  rho_t = pi(a_t) / b_pi(a_t)

    Ratios beyond exp(20) go on as a straight line, so that losses and gradients stay finite.
    Source: Schulman et al. 2017 (PPO), equation 7.

    Args:
        pi_log_prob_t: `[*B]` log-probabilities (nats) of the actions under the policy that learns.
        b_pi_log_prob_t: `[*B]` the same under the policy that acted.
        gae_t: `[*B]` advantages.
        epsilon: clip range of the ratio, no unit.

    Returns:
        The loss, a scalar.
    """
    ratio = _probability_ratio(pi_log_prob_t, b_pi_log_prob_t)
    clipped_ratio = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return -jnp.mean(jnp.minimum(ratio * gae_t, clipped_ratio * gae_t))


def ppo_penalty_loss(
    pi_log_prob_t: Float[Array, "*B"],
    b_pi_log_prob_t: Float[Array, "*B"],
    gae_t: Float[Array, "*B"],
    beta: Scalar,
    pi: SupportsKL,
    b_pi: SupportsKL,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Surrogate policy loss with a penalty on the divergence from the policy that acted.

        L = -mean(rho_t * A_t - beta * KL(b_pi || pi)),  rho_t = pi(a_t) / b_pi(a_t)

    Source: Schulman et al. 2017 (PPO), equation 8.

    Args:
        pi_log_prob_t: `[*B]` log-probabilities (nats) of the actions under the policy that learns.
        b_pi_log_prob_t: `[*B]` the same under the policy that acted.
        gae_t: `[*B]` advantages.
        beta: weight of the divergence, per nat.
        pi: the policy that learns, batch shape `[*B]`.
        b_pi: the policy that acted, batch shape `[*B]`.

    Returns:
        The loss and the mean divergence (nats), scalars.
    """
    ratio = _probability_ratio(pi_log_prob_t, b_pi_log_prob_t)
    kl = jnp.mean(b_pi.kl_divergence(pi))
    return beta * kl - jnp.mean(ratio * gae_t), kl


def dpo_loss(
    pi_log_prob_t: Float[Array, "*B"],
    b_pi_log_prob_t: Float[Array, "*B"],
    gae_t: Float[Array, "*B"],
    alpha: Scalar,
    beta: Scalar,
) -> Float[Array, ""]:
    """Policy loss with the drift function that discovered policy optimisation found.

        f(A >= 0) = relu((rho - 1) A - alpha tanh((rho - 1) A / alpha))
        f(A < 0)  = relu(log(rho) A - beta tanh(log(rho) A / beta))
        L = -mean(rho A - f),  rho = pi(a) / b_pi(a)

    Source: Lu et al. 2022, "Discovered policy optimisation", section 5.

    Args:
        pi_log_prob_t: `[*B]` log-probabilities (nats) of the actions under the policy that learns.
        b_pi_log_prob_t: `[*B]` the same under the policy that acted.
        gae_t: `[*B]` advantages.
        alpha: width of the drift where the advantage is positive, in its unit, above 0.
        beta: the same where it is negative.

    Returns:
        The loss, a scalar.
    """
    ratio = _probability_ratio(pi_log_prob_t, b_pi_log_prob_t)
    gain = (ratio - 1.0) * gae_t
    log_gain = (pi_log_prob_t - b_pi_log_prob_t) * gae_t
    drift_up = jax.nn.relu(gain - alpha * jnp.tanh(gain / alpha))
    drift_down = jax.nn.relu(log_gain - beta * jnp.tanh(log_gain / beta))
    return -jnp.mean(ratio * gae_t - jnp.where(gae_t >= 0.0, drift_up, drift_down))


def clipped_value_loss(
    pred_value_t: Float[Array, "*B"],
    behavior_value_t: Float[Array, "*B"],
    targets_t: Float[Array, "*B"],
    epsilon: Scalar,
) -> Float[Array, ""]:
    """Squared value error that gains nothing from moving further than `epsilon` from the old value.

        v_clip = v_old + clip(v - v_old, -epsilon, epsilon)
        L = mean(max((v - G)^2, (v_clip - G)^2)) / 2

    Source: the PPO2 implementation of Dhariwal et al. 2017, "OpenAI baselines".

    Args:
        pred_value_t: `[*B]` values v of the critic that learns.
        behavior_value_t: `[*B]` values v_old of the critic when the data was collected.
        targets_t: `[*B]` value targets G.
        epsilon: clip range, in the unit of the values.

    Returns:
        The loss, a scalar.
    """
    clipped_value = behavior_value_t + jnp.clip(pred_value_t - behavior_value_t, -epsilon, epsilon)
    errors = jnp.maximum(jnp.square(pred_value_t - targets_t), jnp.square(clipped_value - targets_t))
    return 0.5 * jnp.mean(errors)
