"""Policy-gradient losses."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Real

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss.common import mean_of, probability_ratio
from stoix_like.utils.multistep import batch_vtrace_td_error_and_advantage
from stoix_like.utils.shapes import check_shapes


@runtime_checkable
class SupportsKL(Protocol):
    """Distribution with a Kullback-Leibler divergence to another distribution."""

    def kl_divergence(self, other_dist: Any, /) -> Array:
        """Compute KL(self || other_dist), in nats."""
        ...


def ppo_clip_loss_per_example(
    pi_log_prob_t: Float[Array, "*B"], b_pi_log_prob_t: Float[Array, "*B"], gae_t: Float[Array, "*B"], epsilon: Scalar
) -> Float[Array, "*B"]:
    """Compute the clipped surrogate policy loss.

        L = -min(rho_t * A_t, clip(rho_t, 1 - epsilon, 1 + epsilon) * A_t),  rho_t = pi(a_t) / b_pi(a_t)

    Ratios are linear in the log-ratio beyond exp(20), so that losses and gradients stay finite.
    Source: Schulman et al. 2017 (PPO), equation 7.

    Args:
        pi_log_prob_t: `[*B]` log-probabilities (nats) of the actions under the current policy.
        b_pi_log_prob_t: `[*B]` the same under the behaviour policy.
        gae_t: `[*B]` advantages.
        epsilon: clip range of the ratio, no unit.

    Returns:
        The losses, `[*B]`.
    """
    check_shapes("pi_log_prob_t[*B] b_pi_log_prob_t[*B] gae_t[*B]", (pi_log_prob_t, b_pi_log_prob_t, gae_t))
    b_pi_log_prob_t, gae_t = stop_gradient((b_pi_log_prob_t, gae_t))
    ratio = probability_ratio(pi_log_prob_t, b_pi_log_prob_t)
    clipped_ratio = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return -jnp.minimum(ratio * gae_t, clipped_ratio * gae_t)


ppo_clip_loss = mean_of(ppo_clip_loss_per_example)


def ppo_penalty_loss(
    pi_log_prob_t: Float[Array, "*B"],
    b_pi_log_prob_t: Float[Array, "*B"],
    gae_t: Float[Array, "*B"],
    beta: Scalar,
    pi: SupportsKL,
    b_pi: SupportsKL,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute the surrogate policy loss with a penalty on the divergence from the behaviour policy.

        L = -mean(rho_t * A_t - beta * KL(b_pi || pi)),  rho_t = pi(a_t) / b_pi(a_t)

    Source: Schulman et al. 2017 (PPO), equation 8.

    Args:
        pi_log_prob_t: `[*B]` log-probabilities (nats) of the actions under the current policy.
        b_pi_log_prob_t: `[*B]` the same under the behaviour policy.
        gae_t: `[*B]` advantages.
        beta: weight of the divergence, per nat.
        pi: the current policy, batch shape `[*B]`.
        b_pi: the behaviour policy, batch shape `[*B]`.

    Returns:
        The loss and the mean divergence (nats), scalars.
    """
    check_shapes("pi_log_prob_t[*B] b_pi_log_prob_t[*B] gae_t[*B]", (pi_log_prob_t, b_pi_log_prob_t, gae_t))
    b_pi_log_prob_t, gae_t = stop_gradient((b_pi_log_prob_t, gae_t))
    b_pi = jax.tree.map(lambda leaf: stop_gradient(leaf) if isinstance(leaf, jax.Array) else leaf, b_pi)
    ratio = probability_ratio(pi_log_prob_t, b_pi_log_prob_t)
    kl = jnp.mean(b_pi.kl_divergence(pi))
    return beta * kl - jnp.mean(ratio * gae_t), kl


def dpo_loss_per_example(
    pi_log_prob_t: Float[Array, "*B"],
    b_pi_log_prob_t: Float[Array, "*B"],
    gae_t: Float[Array, "*B"],
    alpha: Scalar,
    beta: Scalar,
) -> Float[Array, "*B"]:
    """Compute the policy loss of discovered policy optimisation.

        f(A >= 0) = relu((rho - 1) A - alpha tanh((rho - 1) A / alpha))
        f(A < 0)  = relu(log(rho) A - beta tanh(log(rho) A / beta))
        L = f - rho A,  rho = pi(a) / b_pi(a)

    Source: Lu et al. 2022, "Discovered policy optimisation", section 5.

    Args:
        pi_log_prob_t: `[*B]` log-probabilities (nats) of the actions under the current policy.
        b_pi_log_prob_t: `[*B]` the same under the behaviour policy.
        gae_t: `[*B]` advantages.
        alpha: width of the drift f for positive advantages, in the unit of the advantages, above 0.
        beta: width of the drift f for negative advantages, likewise.

    Returns:
        The losses, `[*B]`.
    """
    check_shapes("pi_log_prob_t[*B] b_pi_log_prob_t[*B] gae_t[*B]", (pi_log_prob_t, b_pi_log_prob_t, gae_t))
    b_pi_log_prob_t, gae_t = stop_gradient((b_pi_log_prob_t, gae_t))
    ratio = probability_ratio(pi_log_prob_t, b_pi_log_prob_t)
    gain = (ratio - 1.0) * gae_t
    log_gain = (pi_log_prob_t - b_pi_log_prob_t) * gae_t
    drift_up = jax.nn.relu(gain - alpha * jnp.tanh(gain / alpha))
    drift_down = jax.nn.relu(log_gain - beta * jnp.tanh(log_gain / beta))
    return jnp.where(gae_t >= 0.0, drift_up, drift_down) - ratio * gae_t


dpo_loss = mean_of(dpo_loss_per_example)


def policy_gradient_loss(
    log_prob_t: Float[Array, "*B"], adv_t: Float[Array, "*B"], w_t: Scalar | Float[Array, "*B"] = 1.0
) -> Float[Array, ""]:
    """Compute the loss whose gradient is the policy gradient.

        L = -mean(w_t * A_t * log pi(a_t))

    Source: Sutton & Barto 2018, section 13.4; Mnih et al. 2016 (A3C), section 4.

    Args:
        log_prob_t: `[*B]` log-probabilities (nats) of the actions taken.
        adv_t: `[*B]` advantages.
        w_t: weight of each step, a scalar or `[*B]`.

    Returns:
        The loss, a scalar.
    """
    check_shapes("log_prob_t[*B] adv_t[*B] w_t[*B]", (log_prob_t, adv_t, w_t if jnp.ndim(w_t) else None))
    return -jnp.mean(stop_gradient(w_t * adv_t) * log_prob_t)


def reinforce_loss(
    log_prob_t: Float[Array, "*B"], return_t: Float[Array, "*B"], baseline_t: Float[Array, "*B"]
) -> Float[Array, ""]:
    """Compute the policy-gradient loss of returns with a baseline.

        L = -mean((G_t - b_t) * log pi(a_t))

    Source: Williams 1992; Sutton & Barto 2018, equation 13.11.

    Args:
        log_prob_t: `[*B]` log-probabilities (nats) of the actions taken.
        return_t: `[*B]` returns.
        baseline_t: `[*B]` baselines, such as values; their gradient is stopped.

    Returns:
        The loss, a scalar.
    """
    check_shapes("log_prob_t[*B] return_t[*B] baseline_t[*B]", (log_prob_t, return_t, baseline_t))
    return policy_gradient_loss(log_prob_t, return_t - baseline_t)


def impala_loss(
    pi_log_prob_tm1: Float[Array, "B T"],
    b_pi_log_prob_tm1: Float[Array, "B T"],
    v_tm1: Float[Array, "B T"],
    v_t: Float[Array, "B T"],
    r_t: Float[Array, "B T"],
    discount_t: Float[Array, "B T"],
    lambda_: Scalar = 1.0,
    clip_rho_threshold: Scalar = 1.0,
    clip_pg_rho_threshold: Scalar = 1.0,
    *,
    truncation_t: Bool[Array, "B T"] | Real[Array, "B T"] | None = None,
    time_major: bool = False,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute the policy-gradient and value losses with V-trace targets.

        L_pi = -mean(A_t * log pi(a_tm1)),  L_v = mean(error_t^2) / 2,  A and error as in V-trace

    Source: Espeholt et al. 2018 (IMPALA), section 4.2.

    Args:
        pi_log_prob_tm1: `[B, T]` log-probabilities (nats) of the actions under the current policy.
        b_pi_log_prob_tm1: `[B, T]` the same under the behaviour policy.
        v_tm1: `[B, T]` online values, of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` discounts.
        lambda_: mixing parameter in [0, 1].
        clip_rho_threshold: upper bound of the ratios that weight the errors.
        clip_pg_rho_threshold: upper bound of the ratios that weight the advantages.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        time_major: whether every array is `[T, B]`.

    Returns:
        The policy loss and the value loss, scalars.
    """
    check_shapes("pi_log_prob_tm1[B,T] b_pi_log_prob_tm1[B,T] v_tm1[B,T]", (pi_log_prob_tm1, b_pi_log_prob_tm1, v_tm1))
    rho_tm1 = stop_gradient(probability_ratio(pi_log_prob_tm1, b_pi_log_prob_tm1))
    vtrace = batch_vtrace_td_error_and_advantage(
        v_tm1,
        v_t,
        r_t,
        discount_t,
        rho_tm1,
        lambda_,
        clip_rho_threshold,
        clip_pg_rho_threshold,
        time_major=time_major,
        truncation_t=truncation_t,
    )
    return policy_gradient_loss(pi_log_prob_tm1, vtrace.pg_advantage), 0.5 * jnp.mean(jnp.square(vtrace.errors))


def awr_loss(
    log_prob_t: Float[Array, "*B"], adv_t: Float[Array, "*B"], beta: Scalar, weight_max: Scalar = 20.0
) -> Float[Array, ""]:
    """Compute the negative log-likelihood of actions, weighted by their exponentiated advantages.

        L = -mean(min(exp(A_t / beta), weight_max) * log pi(a_t))

    Source: Peng et al. 2019, "Advantage-weighted regression", algorithm 1.

    Args:
        log_prob_t: `[*B]` log-probabilities (nats) of the actions taken.
        adv_t: `[*B]` advantages.
        beta: temperature, in the unit of the advantages, above 0.
        weight_max: largest weight, no unit.

    Returns:
        The loss, a scalar.
    """
    check_shapes("log_prob_t[*B] adv_t[*B]", (log_prob_t, adv_t))
    # Clipped before the exponential, which would overflow.
    weight = jnp.exp(jnp.minimum(adv_t / beta, jnp.log(weight_max)))
    return policy_gradient_loss(log_prob_t, weight)
