"""Losses of maximum a posteriori policy optimisation: MPO and V-MPO."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from stoix_like.utils.jax_utils import Scalar


def mpo_temperature_loss(
    q_values: Float[Array, "S *B"], temperature: Float[Array, ""], epsilon: Scalar
) -> tuple[Float[Array, ""], Float[Array, "S *B"]]:
    """E-step: weights of sampled actions, and the dual that keeps them within a divergence of the samples.

        w_s = softmax_s(q_s / eta),  L = eta * epsilon + eta * mean(log(mean_s exp(q_s / eta)))

    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equations 8 and 9.

    Args:
        q_values: `[S, *B]` values of S actions sampled per state.
        temperature: eta, learned, in the unit of the values, above 0.
        epsilon: largest divergence, in nats.

    Returns:
        The dual loss, a scalar, and the weights `[S, *B]`, which sum to 1 over S.
    """
    scaled = stop_gradient(q_values) / temperature
    log_mean = jax.nn.logsumexp(scaled, axis=0) - jnp.log(q_values.shape[0])
    return temperature * (epsilon + jnp.mean(log_mean)), stop_gradient(jax.nn.softmax(scaled, axis=0))


def mpo_policy_loss(log_prob: Float[Array, "S *B"], weights: Float[Array, "S *B"]) -> Float[Array, ""]:
    """M-step: cross-entropy of the weighted actions under the policy.

        L = -mean(sum_s w_s * log pi(a_s))

    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equation 11.

    Args:
        log_prob: `[S, *B]` log-probabilities (nats) of the sampled actions under the current policy.
        weights: `[S, *B]` weights of the E-step.

    Returns:
        The loss (nats), a scalar.
    """
    return -jnp.mean(jnp.sum(stop_gradient(weights) * log_prob, axis=0))


def mpo_alpha_loss(
    kl: Float[Array, "*B"], alpha: Float[Array, ""], epsilon: Scalar
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Penalty and dual loss of a bound on a divergence.

        L_kl = alpha * mean(KL)  (alpha fixed),  L_alpha = alpha * (epsilon - mean(KL))  (KL fixed)

    For a bound per action dimension, as MPO uses for means and variances, vmap over the last dimension and add up.
    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equation 12; Song et al. 2020 (V-MPO),
    equation 5.

    Args:
        kl: `[*B]` divergences (nats) of the current policy from the one that acted.
        alpha: the multiplier, learned, per nat, at least 0.
        epsilon: the bound, in nats.

    Returns:
        The policy's penalty and the multiplier's loss, scalars.
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
    """E-step on the batch's best advantages: weights, and the dual that bounds their divergence.

        w_i = softmax over the top (A_i / eta), 0 elsewhere,  L = eta * epsilon + eta * log(mean_top exp(A_i / eta))

    Source: Song et al. 2020 (V-MPO), equations 3 and 4.

    Args:
        adv_t: `[*B]` advantages.
        temperature: eta, learned, in the unit of the advantages, above 0.
        epsilon: largest divergence, in nats.
        top_fraction: share of the batch that is kept, rounded down to whole samples, at least one; ties are all kept.
        axis_names: mapped axes whose members hold parts of one batch; give `vmpo_policy_loss` the same.

    Returns:
        The dual loss, a scalar, and the weights `[*B]`, which sum to 1 over the whole batch.
    """
    adv_t = stop_gradient(adv_t)
    everything = adv_t.reshape(-1)
    for axis in axis_names:  # one by one: jax does not gather over several vmapped axes at once
        everything = jax.lax.all_gather(everything, axis).reshape(-1)
    rising = jnp.sort(everything)
    kept = jnp.clip(jnp.floor(jnp.asarray(top_fraction) * rising.size), 1, rising.size).astype(jnp.int32)
    least = rising[rising.size - kept]
    num_top = jnp.sum(everything >= least)
    log_sum = jax.nn.logsumexp(everything / temperature, where=everything >= least)
    loss = temperature * (epsilon + log_sum - jnp.log(num_top))
    weights = jnp.where(adv_t >= least, jnp.exp(adv_t / temperature - log_sum), 0.0)
    return loss, stop_gradient(weights)


def vmpo_policy_loss(
    log_prob_t: Float[Array, "*B"], weights: Float[Array, "*B"], axis_names: Sequence[str] = ()
) -> Float[Array, ""]:
    """M-step: cross-entropy of the weighted actions of the batch under the policy.

        L = -sum_i w_i * log pi(a_i)

    Source: Song et al. 2020 (V-MPO), equation 3.

    Args:
        log_prob_t: `[*B]` log-probabilities (nats) of the actions taken.
        weights: `[*B]` weights of the E-step.
        axis_names: mapped axes whose members hold parts of one batch, as for the weights.

    Returns:
        The loss (nats), a scalar: a sum over the batch, the weights being shares of it. With `axis_names` it is the
        member's own sum times the number of members, so that the mean over the axes is the sum over the whole batch.
    """
    members = math.prod(jax.lax.axis_size(axis) for axis in axis_names)
    return -members * jnp.sum(stop_gradient(weights) * log_prob_t)
