"""Losses of state values and action values."""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int

from stoix_like.utils.accelerate.columns import argmax
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss.common import largest_values, mean_of, squared_or_huber, values_of_actions
from stoix_like.utils.shapes import check_shapes


def baseline_loss_per_example(v_tm1: Float[Array, "*B"], target_tm1: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Compute the squared loss of values.

        L = (G_t - v_tm1)^2 / 2

    Source: Espeholt et al. 2018 (IMPALA), section 4.2.

    Args:
        v_tm1: `[*B]` online values.
        target_tm1: `[*B]` value targets G.

    Returns:
        The losses, `[*B]`.
    """
    check_shapes("v_tm1[*B] target_tm1[*B]", (v_tm1, target_tm1))
    return 0.5 * jnp.square(stop_gradient(target_tm1) - v_tm1)


baseline_loss = mean_of(baseline_loss_per_example)


def clipped_value_loss_per_example(
    pred_value_t: Float[Array, "*B"],
    behavior_value_t: Float[Array, "*B"],
    targets_t: Float[Array, "*B"],
    epsilon: Scalar,
) -> Float[Array, "*B"]:
    """Compute the clipped squared value loss, which does not reward moving further than `epsilon` from the old value.

        v_clip = v_old + clip(v - v_old, -epsilon, epsilon)
        L = max((v - G)^2, (v_clip - G)^2) / 2

    Source: the PPO2 implementation of Dhariwal et al. 2017, "OpenAI baselines".

    Args:
        pred_value_t: `[*B]` values v of the current critic.
        behavior_value_t: `[*B]` values v_old of the critic that collected the data.
        targets_t: `[*B]` value targets G.
        epsilon: clip range, in the unit of the values.

    Returns:
        The losses, `[*B]`.
    """
    check_shapes("pred_value_t[*B] behavior_value_t[*B] targets_t[*B]", (pred_value_t, behavior_value_t, targets_t))
    behavior_value_t, targets_t = stop_gradient((behavior_value_t, targets_t))
    clipped_value = behavior_value_t + jnp.clip(pred_value_t - behavior_value_t, -epsilon, epsilon)
    return 0.5 * jnp.maximum(jnp.square(pred_value_t - targets_t), jnp.square(clipped_value - targets_t))


clipped_value_loss = mean_of(clipped_value_loss_per_example)


def td_learning_per_example(
    v_tm1: Float[Array, "*B"],
    r_t: Float[Array, "*B"],
    discount_t: Float[Array, "*B"],
    v_t: Float[Array, "*B"],
    huber_loss_parameter: Scalar,
) -> Float[Array, "*B"]:
    """Compute the one-step temporal-difference losses of values.

        delta = r_t + discount_t * v_t - v_tm1,  L = h(delta)

    h is half the square, or the Huber loss if the parameter is positive.
    Source: Sutton & Barto 2018, equation 6.5.

    Args:
        v_tm1: `[*B]` online values.
        r_t: `[*B]` rewards.
        discount_t: `[*B]` discounts.
        v_t: `[*B]` target values at the successor.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 for a squared loss.

    Returns:
        The losses, one per example.
    """
    check_shapes("v_tm1[*B] r_t[*B] discount_t[*B] v_t[*B]", (v_tm1, r_t, discount_t, v_t))
    delta = stop_gradient(r_t + discount_t * v_t) - v_tm1
    return squared_or_huber(delta, huber_loss_parameter)


td_learning = mean_of(td_learning_per_example)


def q_learning_per_example(
    q_tm1: Float[Array, "B A"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t: Float[Array, "B A"],
    huber_loss_parameter: Scalar,
) -> Float[Array, "B"]:
    """Compute the Q-learning losses.

        delta = r_t + d_t * max_a q_t(a) - q_tm1(a_tm1),  L = h(delta)

    h is half the square, or the Huber loss if the parameter is positive.
    Source: Watkins & Dayan 1992; Mnih et al. 2015 (DQN).

    Args:
        q_tm1: `[B, A]` online action values.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, A]` target values at the successor.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 for a squared loss.

    Returns:
        The losses, one per example.
    """
    check_shapes("q_tm1[B,A] a_tm1[B] r_t[B] d_t[B] q_t[B,A]", (q_tm1, a_tm1, r_t, d_t, q_t))
    values, v_t = values_of_actions(q_tm1, a_tm1), largest_values(q_t)
    return td_learning_per_example(values, r_t, d_t, v_t, huber_loss_parameter)


q_learning = mean_of(q_learning_per_example)


def double_q_learning_per_example(
    q_tm1: Float[Array, "B A"],
    q_t_value: Float[Array, "B A"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t_selector: Float[Array, "B A"],
    huber_loss_parameter: Scalar,
) -> Float[Array, "B"]:
    """Compute the double Q-learning losses: one network selects the successor's action, another one evaluates it.

        delta = r_t + d_t * q_t_value(argmax_a q_t_selector(a)) - q_tm1(a_tm1),  L = h(delta)

    h is half the square, or the Huber loss if the parameter is positive.
    Source: van Hasselt, Guez & Silver 2016 (double DQN).

    Args:
        q_tm1: `[B, A]` online action values.
        q_t_value: `[B, A]` target values at the successor.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t_selector: `[B, A]` action values that select the successor's action.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 for a squared loss.

    Returns:
        The losses, one per example.
    """
    arrays = q_tm1, q_t_value, a_tm1, r_t, d_t, q_t_selector
    check_shapes("q_tm1[B,A] q_t_value[B,A] a_tm1[B] r_t[B] d_t[B] q_t_selector[B,A]", arrays)
    v_t = values_of_actions(q_t_value, argmax(q_t_selector))
    return td_learning_per_example(values_of_actions(q_tm1, a_tm1), r_t, d_t, v_t, huber_loss_parameter)


double_q_learning = mean_of(double_q_learning_per_example)


def munchausen_q_learning_per_example(
    q_tm1: Float[Array, "B A"],
    q_tm1_target: Float[Array, "B A"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t_target: Float[Array, "B A"],
    entropy_temperature: Scalar,
    munchausen_coefficient: Scalar,
    clip_value_min: Scalar,
    huber_loss_parameter: Scalar,
) -> Float[Array, "B"]:
    """Compute the Munchausen Q-learning losses, with the policy's log-probability added to the reward.

        pi = softmax(q_tm1_target / tau),  m = clip(tau * log pi(a_tm1), l_0, 0)
        delta = r_t + alpha * m + d_t * tau * logsumexp_a(q_t_target(a) / tau) - q_tm1(a_tm1),  L = h(delta)

    h is half the square, or the Huber loss if the parameter is positive.
    Source: Vieillard, Pietquin & Geist 2020, "Munchausen reinforcement learning", equation 2 and section 3.

    Args:
        q_tm1: `[B, A]` online action values.
        q_tm1_target: `[B, A]` target values at the same observations.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t_target: `[B, A]` target values at the successor.
        entropy_temperature: tau, in the unit of the values per nat, above 0.
        munchausen_coefficient: alpha, no unit.
        clip_value_min: l_0, in the unit of the values, at most 0.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 for a squared loss.

    Returns:
        The losses, one per example.
    """
    arrays = q_tm1, q_tm1_target, a_tm1, r_t, d_t, q_t_target
    check_shapes("q_tm1[B,A] q_tm1_target[B,A] a_tm1[B] r_t[B] d_t[B] q_t_target[B,A]", arrays)
    log_policy = entropy_temperature * jax.nn.log_softmax(q_tm1_target / entropy_temperature)
    bonus = munchausen_coefficient * jnp.clip(values_of_actions(log_policy, a_tm1), clip_value_min, 0.0)
    soft_v_t = entropy_temperature * jax.nn.logsumexp(q_t_target / entropy_temperature, axis=-1)
    return td_learning_per_example(values_of_actions(q_tm1, a_tm1), r_t + bonus, d_t, soft_v_t, huber_loss_parameter)


munchausen_q_learning = mean_of(munchausen_q_learning_per_example)


def dqn_reg_loss_per_example(
    q_tm1: Float[Array, "B A"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t: Float[Array, "B A"],
    regularizer_weight: Scalar = 0.1,
) -> Float[Array, "B"]:
    """Compute the squared Q-learning losses, regularised towards low action values.

        L = regularizer_weight * q_tm1(a_tm1) + delta^2,  delta = r_t + d_t * max_a q_t(a) - q_tm1(a_tm1)

    Source: Co-Reyes et al. 2021, "Evolving reinforcement learning algorithms" (DQNReg).

    Args:
        q_tm1: `[B, A]` online action values.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, A]` target values at the successor.
        regularizer_weight: weight of the action value, in the unit of the values.

    Returns:
        The losses, one per example.
    """
    td_loss = q_learning_per_example(q_tm1, a_tm1, r_t, d_t, q_t, 0.0)
    return regularizer_weight * values_of_actions(q_tm1, a_tm1) + 2.0 * td_loss


dqn_reg_loss = mean_of(dqn_reg_loss_per_example)


def expectile_loss(errors: Float[Array, "*B"], expectile: Scalar) -> Float[Array, "*B"]:
    """Compute the asymmetric squared loss of an expectile.

        L = |tau - 1(u < 0)| u^2

    Source: Kostrikov, Nair & Levine 2021, "Offline reinforcement learning with implicit Q-learning", equation 3.

    Args:
        errors: `[*B]` targets minus predictions, u.
        expectile: tau, in (0, 1); 0.5 gives half the squared error.

    Returns:
        The losses, one per example.
    """
    return jnp.where(errors < 0.0, 1.0 - expectile, expectile) * jnp.square(errors)


def cql_penalty_per_example(q_tm1: Float[Array, "B A"], a_tm1: Int[Array, "B"]) -> Float[Array, "B"]:
    """Compute the conservative Q-learning penalties: the soft maximum of the values minus the taken action's value.

        P = logsumexp_a q_tm1(a) - q_tm1(a_tm1)

    Source: Kumar et al. 2020, "Conservative Q-learning", equation 4.

    Args:
        q_tm1: `[B, A]` online action values.
        a_tm1: `[B]` actions of the data set.

    Returns:
        The penalties, one per example, not negative.
    """
    check_shapes("q_tm1[B,A] a_tm1[B]", (q_tm1, a_tm1))
    return jax.nn.logsumexp(q_tm1, axis=-1) - values_of_actions(q_tm1, a_tm1)


cql_penalty = mean_of(cql_penalty_per_example)


def sampled_cql_penalty(
    q_samples: Float[Array, "S B"], log_prob_samples: Float[Array, "S B"], q_tm1: Float[Array, "B"]
) -> Float[Array, ""]:
    """Compute the conservative Q-learning penalty of continuous actions, by importance sampling.

        P = mean(log(mean_s exp(q_s - log mu(a_s))) - q_tm1),  a_s ~ mu

    Source: Kumar et al. 2020, "Conservative Q-learning", appendix F.

    Args:
        q_samples: `[S, B]` values of sampled actions.
        log_prob_samples: `[S, B]` log-densities (nats) of the samples under their sampling distribution.
        q_tm1: `[B]` values of the actions of the data set.

    Returns:
        The penalty, a scalar.
    """
    check_shapes("q_samples[S,B] log_prob_samples[S,B] q_tm1[B]", (q_samples, log_prob_samples, q_tm1))
    log_sum = jax.nn.logsumexp(q_samples - stop_gradient(log_prob_samples), axis=0) - jnp.log(q_samples.shape[0])
    return jnp.mean(log_sum - q_tm1)
