"""Losses of maximum a posteriori policy optimisation: MPO and V-MPO."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.shapes import check_shapes


def mpo_temperature_loss(
    q_values: Float[Array, "S *B"],
    temperature: Float[Array, ""],
    epsilon: Scalar,
    log_prior: Float[Array, "S *B"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, "S *B"]]:
    """Compute the weights of the E-step and the dual loss that bounds their divergence from the prior weights.

        w_s = softmax_s(q_s / eta + log p_s),  L = eta * epsilon + eta * mean(log(sum_s p_s exp(q_s / eta)))

    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equations 8 and 9.

    Args:
        q_values: `[S, *B]` values of S actions per state.
        temperature: eta, learned, in the unit of the values, above 0.
        epsilon: upper bound of the divergence, in nats.
        log_prior: `[S, *B]` log p up to a constant, as the log-probabilities of all actions; None for samples, which
            weigh the same.

    Returns:
        The dual loss, a scalar, and the weights `[S, *B]`, which sum to 1 over S.
    """
    check_shapes("q_values[S,*B] log_prior[S,*B]", (q_values, log_prior))
    log_prior = jnp.zeros_like(q_values) if log_prior is None else stop_gradient(log_prior)
    logits = stop_gradient(q_values) / temperature + log_prior
    log_mean = jax.nn.logsumexp(logits, axis=0) - jax.nn.logsumexp(log_prior, axis=0)
    return temperature * (epsilon + jnp.mean(log_mean)), stop_gradient(jax.nn.softmax(logits, axis=0))


def mpo_policy_loss(log_prob: Float[Array, "S *B"], weights: Float[Array, "S *B"]) -> Float[Array, ""]:
    """Compute the policy loss of the M-step, the cross-entropy of the weighted actions.

        L = -mean(sum_s w_s * log pi(a_s))

    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equation 11.

    Args:
        log_prob: `[S, *B]` log-probabilities (nats) of the sampled actions under the current policy.
        weights: `[S, *B]` weights of the E-step.

    Returns:
        The loss (nats), a scalar.
    """
    check_shapes("log_prob[S,*B] weights[S,*B]", (log_prob, weights))
    return -jnp.mean(jnp.sum(stop_gradient(weights) * log_prob, axis=0))


def mpo_alpha_loss(
    kl: Float[Array, "*B"], alpha: Float[Array, ""], epsilon: Scalar
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute the penalty and the dual loss of an upper bound on a divergence.

        L_kl = alpha * mean(KL)  (alpha fixed),  L_alpha = alpha * (epsilon - mean(KL))  (KL fixed)

    For one bound per action dimension, as MPO uses for means and variances, vmap over the last dimension and sum.
    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equation 12; Song et al. 2020 (V-MPO),
    equation 5.

    Args:
        kl: `[*B]` divergences (nats) of the current policy from the behaviour policy.
        alpha: Lagrange multiplier, learned, per nat, at least 0.
        epsilon: upper bound of the divergence, in nats.

    Returns:
        The penalty of the policy and the loss of the multiplier, scalars.
    """
    mean_kl = jnp.mean(kl)
    return stop_gradient(alpha) * mean_kl, alpha * (epsilon - stop_gradient(mean_kl))


def vmpo_temperature_loss(
    adv_t: Float[Array, "*B"],
    temperature: Float[Array, ""],
    epsilon: Scalar,
    top_fraction: Scalar = 0.5,
    axis_names: Sequence[str] = (),
) -> tuple[Float[Array, ""], Float[Array, "*B"]]:
    """Compute the weights of the E-step on the largest advantages and the dual loss that bounds their divergence.

        w_i = softmax over the top (A_i / eta), 0 elsewhere,  L = eta * epsilon + eta * log(mean_top exp(A_i / eta))

    Source: Song et al. 2020 (V-MPO), equations 3 and 4.

    Args:
        adv_t: `[*B]` advantages.
        temperature: eta, learned, in the unit of the advantages, above 0.
        epsilon: upper bound of the divergence, in nats.
        top_fraction: fraction of the batch to keep, rounded down to whole samples but at least one; ties are kept.
        axis_names: mapped axes that the batch is spread over; pass the same to `vmpo_policy_loss`.

    Returns:
        The dual loss, a scalar, and the weights `[*B]`, which sum to 1 over the whole batch.
    """
    adv_t = stop_gradient(adv_t)
    everything = adv_t.reshape(-1)
    for axis in axis_names:  # in turn: jax cannot gather over several vmapped axes at once
        everything = jax.lax.all_gather(everything, axis).reshape(-1)
    rising = jnp.sort(everything)
    kept = _whole(jnp.asarray(top_fraction, jnp.float32) * rising.size).astype(jnp.int32)
    least = rising[rising.size - jnp.clip(kept, 1, rising.size)]
    num_top = jnp.sum(everything >= least)
    log_sum = jax.nn.logsumexp(everything / temperature, where=everything >= least)
    loss = temperature * (epsilon + log_sum - jnp.log(num_top))
    weights = jnp.where(adv_t >= least, jnp.exp(adv_t / temperature - log_sum), 0.0)
    return loss, stop_gradient(weights)


def _whole(x: Array) -> Array:
    """Round down, but to the nearest integer within a few rounding errors: in float32, 0.53 * 100 is below 53."""
    nearest = jnp.round(x)
    return jnp.where(jnp.abs(x - nearest) <= 4.0 * float(jnp.finfo(x.dtype).eps) * nearest, nearest, jnp.floor(x))


def vmpo_policy_loss(
    log_prob_t: Float[Array, "*B"], weights: Float[Array, "*B"], axis_names: Sequence[str] = ()
) -> Float[Array, ""]:
    """Compute the policy loss of the M-step, the cross-entropy of the weighted actions of the batch.

        L = -sum_i w_i * log pi(a_i)

    Source: Song et al. 2020 (V-MPO), equation 3.

    Args:
        log_prob_t: `[*B]` log-probabilities (nats) of the actions taken.
        weights: `[*B]` weights of the E-step.
        axis_names: mapped axes that the batch is spread over, as for the weights.

    Returns:
        The loss (nats), a scalar: a sum over the batch, because the weights sum to 1. With `axis_names` it is the sum
        over the shard times the number of shards, so that its mean over the axes is the sum over the whole batch.
    """
    check_shapes("log_prob_t[*B] weights[*B]", (log_prob_t, weights))
    members = math.prod(jax.lax.axis_size(axis) for axis in axis_names)
    return -members * jnp.sum(stop_gradient(weights) * log_prob_t)
