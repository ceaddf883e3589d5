"""Losses of deterministic and soft actor-critics: DDPG, TD3 and SAC."""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss.common import mean_of
from stoix_like.utils.shapes import check_shapes


def td3_critic_loss_per_example(
    q_tm1: Float[Array, "B C"], r_t: Float[Array, "B"], d_t: Float[Array, "B"], q_t: Float[Array, "B C"]
) -> Float[Array, "B"]:
    """Compute the squared one-step losses of several critics, with the smallest of their target values.

        y = r_t + d_t * min_c q_t[c],  L = sum_c (y - q_tm1[c])^2 / 2

    Source: Fujimoto, van Hoof & Meger 2018 (TD3), equation 10.

    Args:
        q_tm1: `[B, C]` values of the actions taken, one per critic.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, C]` target values of the target policy's action at the successor.

    Returns:
        The losses, one per example.
    """
    check_shapes("q_tm1[B,C] r_t[B] d_t[B] q_t[B,C]", (q_tm1, r_t, d_t, q_t))
    target = stop_gradient(r_t + d_t * jnp.min(q_t, axis=-1))
    return 0.5 * jnp.sum(jnp.square(target[:, None] - q_tm1), axis=-1)


td3_critic_loss = mean_of(td3_critic_loss_per_example)


def target_policy_smoothing(
    key: PRNGKeyArray | UInt32[Array, "2"],
    action: Float[Array, "*batch"],
    noise_scale: Scalar | Float[Array, "..."],
    noise_clip: Scalar | Float[Array, "..."],
    minimum: Scalar | Float[Array, "..."],
    maximum: Scalar | Float[Array, "..."],
) -> Float[Array, "*batch"]:
    """Add clipped noise to the target policy's actions, which smooths the critic in the action.

        a' = clip(a + clip(eps, -noise_clip, noise_clip), minimum, maximum),  eps ~ N(0, noise_scale^2)

    Source: Fujimoto, van Hoof & Meger 2018 (TD3), equation 14 and algorithm 1.

    Args:
        key: random key.
        action: `[*B, *action]` actions of the target policy.
        noise_scale: standard deviation of the noise, in the unit of the actions; a scalar or `[*action]`.
        noise_clip: largest absolute value of the noise, likewise.
        minimum: smallest action, a scalar or `[*action]`.
        maximum: largest action, a scalar or `[*action]`.

    Returns:
        `[*B, *action]` smoothed actions.
    """

    def per_entry(value: Scalar | Float[Array, "..."]) -> Array:
        return jnp.broadcast_to(jnp.asarray(value, action.dtype), action.shape)

    noise = per_entry(noise_scale) * jax.random.normal(key, action.shape, action.dtype)
    clip = per_entry(noise_clip)
    return jnp.clip(action + jnp.clip(noise, -clip, clip), per_entry(minimum), per_entry(maximum))


def dpg_loss(
    a_t: Float[Array, "B A"], dqda_t: Float[Array, "B A"], dqda_clipping: Scalar | None = None
) -> Float[Array, ""]:
    """Compute the loss whose gradient is the deterministic policy gradient.

        L = mean(||a_t + g - a_t||^2) / 2,  g = dqda_t * min(1, dqda_clipping / ||dqda_t||) fixed;  dL/da_t = -g / B

    Source: Silver et al. 2014, "Deterministic policy gradient algorithms", equation 9.

    Args:
        a_t: `[B, A]` actions of the current policy.
        dqda_t: `[B, A]` gradients of the value at these actions.
        dqda_clipping: largest norm of the gradient of an action; None disables clipping.

    Returns:
        The loss, a scalar.
    """
    check_shapes("a_t[B,A] dqda_t[B,A]", (a_t, dqda_t))
    if dqda_clipping is not None:
        norm = jnp.linalg.norm(dqda_t, axis=-1, keepdims=True)
        dqda_t = dqda_t * jnp.minimum(1.0, dqda_clipping / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    target = stop_gradient(a_t + dqda_t)
    return 0.5 * jnp.mean(jnp.sum(jnp.square(target - a_t), axis=-1))


def sac_critic_loss_per_example(
    q_tm1: Float[Array, "B C"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t: Float[Array, "B C"],
    log_prob_t: Float[Array, "B"],
    temperature: Scalar,
) -> Float[Array, "B"]:
    """Compute the squared one-step losses of several critics, with the soft value of the successor.

        y = r_t + d_t * (min_c q_t[c] - temperature * log pi(a_t)),  L = sum_c (y - q_tm1[c])^2 / 2

    Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equations 3 and 5.

    Args:
        q_tm1: `[B, C]` values of the actions taken, one per critic.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, C]` target values of actions sampled at the successor.
        log_prob_t: `[B]` log-probabilities (nats) of these actions.
        temperature: weight of the entropy, in the unit of the values per nat.

    Returns:
        The losses, one per example.
    """
    check_shapes("q_tm1[B,C] r_t[B] d_t[B] q_t[B,C] log_prob_t[B]", (q_tm1, r_t, d_t, q_t, log_prob_t))
    return td3_critic_loss_per_example(q_tm1, r_t, d_t, q_t - temperature * log_prob_t[:, None])


sac_critic_loss = mean_of(sac_critic_loss_per_example)


def sac_actor_loss_per_example(
    log_prob_t: Float[Array, "B"], q_t: Float[Array, "B C"], temperature: Scalar
) -> Float[Array, "B"]:
    """Compute the negative soft value of reparametrised samples of the policy.

        L = temperature * log pi(a_t) - min_c q_t[c]

    Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equation 7.

    Args:
        log_prob_t: `[B]` log-probabilities (nats) of the sampled actions.
        q_t: `[B, C]` values of these actions, one per critic.
        temperature: weight of the entropy, in the unit of the values per nat; its gradient is stopped.

    Returns:
        The losses, one per example.
    """
    check_shapes("log_prob_t[B] q_t[B,C]", (log_prob_t, q_t))
    return stop_gradient(jnp.asarray(temperature)) * log_prob_t - jnp.min(q_t, axis=-1)


sac_actor_loss = mean_of(sac_actor_loss_per_example)


def sac_temperature_loss(
    log_temperature: Float[Array, ""], log_prob_t: Float[Array, "*B"], target_entropy: Scalar
) -> Float[Array, ""]:
    """Compute the dual loss of a lower bound on the entropy of the policy.

        L = -mean(exp(log_temperature) * (log pi(a_t) + target_entropy))

    Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equation 18.

    Args:
        log_temperature: logarithm of the learned temperature.
        log_prob_t: `[*B]` log-probabilities (nats) of sampled actions.
        target_entropy: lower bound of the entropy, in nats.

    Returns:
        The loss, a scalar.
    """
    return -jnp.exp(log_temperature) * jnp.mean(stop_gradient(log_prob_t) + target_entropy)
