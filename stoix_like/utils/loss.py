"""Losses, as pure functions of what networks put out.

Losses are means over the batch unless their docstring says otherwise. Discounts `d_t` are gamma where the episode
goes on and zero where it terminated; an episode that a limit cut keeps its discount. No gradient flows into targets,
advantages, weights, returns or anything of the policy and values that acted.

Shape letters: B batch, C critics, S samples per state, A actions (or action dimensions), `atoms` and `quantiles` of a
value distribution; `*B` stands for any number of batch dimensions.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Real, UInt32

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.multistep import batch_vtrace_td_error_and_advantage

# exp(20) is about 5e8: products with it, and their squares inside an optimiser, stay finite in float32.
_MAX_LOG_RATIO = 20.0


@runtime_checkable
class SupportsKL(Protocol):
    """A distribution that knows its Kullback-Leibler divergence to another one."""

    def kl_divergence(self, other_dist: Any, /) -> Array:
        """KL(self || other_dist) in nats."""
        ...


def _huber(error: Array, parameter: Scalar) -> Array:
    """Half the square of the error, continued as a straight line beyond the parameter."""
    magnitude = jnp.abs(error)
    inner = jnp.minimum(magnitude, parameter)
    return inner * (magnitude - 0.5 * inner)


def _squared_or_huber(error: Array, parameter: Scalar) -> Array:
    return jnp.where(jnp.asarray(parameter) > 0, _huber(error, parameter), 0.5 * jnp.square(error))


def _absolute_or_huber(error: Array, parameter: Scalar) -> Array:
    return jnp.where(jnp.asarray(parameter) > 0, _huber(error, parameter), jnp.abs(error))


def _of_action(values: Array, action: Array) -> Array:
    """The entries `[B]` that the actions `[B]` pick from the last dimension of `[B, A]`."""
    return jnp.take_along_axis(values, action[:, None], axis=-1)[:, 0]


def _probability_ratio(log_prob: Array, b_log_prob: Array) -> Array:
    """exp(log_prob - b_log_prob), continued as a straight line where it would overflow."""
    log_ratio = log_prob - b_log_prob
    excess = jnp.maximum(log_ratio - _MAX_LOG_RATIO, 0.0)
    return jnp.exp(jnp.minimum(log_ratio, _MAX_LOG_RATIO)) * (1.0 + excess)


def per_item(loss: Callable[..., Array]) -> Callable[..., Array]:
    """The losses of the items of a batch, to be weighted one by one, from a loss that is their mean.

    Args:
        loss: of arrays `[B, ...]`, a mean over B.

    Returns:
        A function of the same arrays, whose result is `[B]`.
    """

    def losses(*arrays: Any) -> Array:
        return jax.vmap(lambda *item: loss(*(x[None] for x in item)))(*arrays)

    return losses


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
    b_pi_log_prob_t, gae_t = stop_gradient((b_pi_log_prob_t, gae_t))
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
    b_pi_log_prob_t, gae_t = stop_gradient((b_pi_log_prob_t, gae_t))
    b_pi = jax.tree.map(lambda leaf: stop_gradient(leaf) if isinstance(leaf, jax.Array) else leaf, b_pi)
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
    b_pi_log_prob_t, gae_t = stop_gradient((b_pi_log_prob_t, gae_t))
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
    behavior_value_t, targets_t = stop_gradient((behavior_value_t, targets_t))
    clipped_value = behavior_value_t + jnp.clip(pred_value_t - behavior_value_t, -epsilon, epsilon)
    errors = jnp.maximum(jnp.square(pred_value_t - targets_t), jnp.square(clipped_value - targets_t))
    return 0.5 * jnp.mean(errors)


def _project(atoms: Array, probs: Array, support: Array) -> Array:
    """Moves probability from atoms `[B, M]` to the nearest atoms of a rising support `[B, K]`, keeping the mean."""
    atoms = jnp.clip(atoms, support[:, :1], support[:, -1:])
    gaps = jnp.diff(support, axis=-1)
    # The outermost atoms have one neighbour each; atoms do not lie beyond them, so any gap above zero will do.
    edge = jnp.ones_like(support[:, :1])
    gap_below, gap_above = jnp.concatenate([edge, gaps], -1), jnp.concatenate([gaps, edge], -1)
    offset = atoms[:, None, :] - support[:, :, None]
    gap = jnp.where(offset < 0.0, gap_below[:, :, None], gap_above[:, :, None])
    return jnp.sum(jnp.clip(1.0 - jnp.abs(offset) / gap, 0.0, 1.0) * probs[:, None, :], axis=-1)


def _categorical_td_error(
    logits_tm1: Array, atoms_tm1: Array, r_t: Array, d_t: Array, logits_t: Array, atoms_t: Array
) -> Array:
    """Cross-entropies `[B]` of predicted distributions with projected, discounted ones."""
    target = _project(r_t[:, None] + d_t[:, None] * atoms_t, jax.nn.softmax(logits_t), atoms_tm1)
    return -jnp.sum(stop_gradient(target) * jax.nn.log_softmax(logits_tm1), axis=-1)


def categorical_double_q_learning(
    q_logits_tm1: Float[Array, "B A atoms"],
    q_atoms_tm1: Float[Array, "B atoms"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_logits_t: Float[Array, "B A atoms_t"],
    q_atoms_t: Float[Array, "B atoms_t"],
    q_t_selector: Float[Array, "B A"],
) -> Float[Array, "B"]:
    """Cross-entropy of a distribution of action values with its projected Bellman target.

        Z = r_t + d_t * q_atoms_t,  a* = argmax_a q_t_selector(a)
        L = -sum_i Proj(Z, softmax(q_logits_t(a*)))_i * log softmax(q_logits_tm1(a_tm1))_i

    Source: Bellemare, Dabney & Munos 2017 (C51), equation 7 and algorithm 1; van Hasselt et al. 2016 for the selector.

    Args:
        q_logits_tm1: `[B, A, atoms]` logits that learn.
        q_atoms_tm1: `[B, atoms]` their values, rising.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_logits_t: `[B, A, atoms_t]` target logits at the successor.
        q_atoms_t: `[B, atoms_t]` their values.
        q_t_selector: `[B, A]` action values that choose the successor's action.

    Returns:
        `[B]` cross-entropies (nats), usable as priorities.
    """
    batch = jnp.arange(a_tm1.shape[0])
    greedy_logits_t = q_logits_t[batch, jnp.argmax(q_t_selector, axis=-1)]
    return _categorical_td_error(q_logits_tm1[batch, a_tm1], q_atoms_tm1, r_t, d_t, greedy_logits_t, q_atoms_t)


def q_learning(
    q_tm1: Float[Array, "B A"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t: Float[Array, "B A"],
    huber_loss_parameter: Scalar,
) -> Float[Array, ""]:
    """Loss of the one-step error of action values.

        delta = r_t + d_t * max_a q_t(a) - q_tm1(a_tm1),  L = mean(h(delta))

    h is half the square, or the Huber loss where the parameter is positive.
    Source: Watkins & Dayan 1992; Mnih et al. 2015 (DQN).

    Args:
        q_tm1: `[B, A]` action values that learn.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, A]` target values at the successor.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 means nowhere.

    Returns:
        The loss, a scalar.
    """
    return double_q_learning(q_tm1, q_t, a_tm1, r_t, d_t, q_t, huber_loss_parameter)


def double_q_learning(
    q_tm1: Float[Array, "B A"],
    q_t_value: Float[Array, "B A"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t_selector: Float[Array, "B A"],
    huber_loss_parameter: Scalar,
) -> Float[Array, ""]:
    """Loss of the one-step error where one network chooses the successor's action and another one values it.

        delta = r_t + d_t * q_t_value(argmax_a q_t_selector(a)) - q_tm1(a_tm1),  L = mean(h(delta))

    h is half the square, or the Huber loss where the parameter is positive.
    Source: van Hasselt, Guez & Silver 2016 (double DQN).

    Args:
        q_tm1: `[B, A]` action values that learn.
        q_t_value: `[B, A]` target values at the successor.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t_selector: `[B, A]` action values that choose the successor's action.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 means nowhere.

    Returns:
        The loss, a scalar.
    """
    v_t = _of_action(q_t_value, jnp.argmax(q_t_selector, axis=-1))
    return td_learning(_of_action(q_tm1, a_tm1), r_t, d_t, v_t, huber_loss_parameter)


def td_learning(
    v_tm1: Float[Array, "*B"],
    r_t: Float[Array, "*B"],
    discount_t: Float[Array, "*B"],
    v_t: Float[Array, "*B"],
    huber_loss_parameter: Scalar,
) -> Float[Array, ""]:
    """Loss of the one-step error of values.

        delta = r_t + discount_t * v_t - v_tm1,  L = mean(h(delta))

    h is half the square, or the Huber loss where the parameter is positive.
    Source: Sutton & Barto 2018, equation 6.5.

    Args:
        v_tm1: `[*B]` values that learn.
        r_t: `[*B]` rewards.
        discount_t: `[*B]` discounts.
        v_t: `[*B]` target values at the successor.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 means nowhere.

    Returns:
        The loss, a scalar.
    """
    delta = stop_gradient(r_t + discount_t * v_t) - v_tm1
    return jnp.mean(_squared_or_huber(delta, huber_loss_parameter))


def categorical_td_learning(
    v_logits_tm1: Float[Array, "B atoms"],
    v_atoms_tm1: Float[Array, "B atoms"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    v_logits_t: Float[Array, "B atoms_t"],
    v_atoms_t: Float[Array, "B atoms_t"],
) -> Float[Array, ""]:
    """Cross-entropy of a distribution of values with its projected Bellman target.

        L = -mean(sum_i Proj(r_t + d_t * v_atoms_t, softmax(v_logits_t))_i * log softmax(v_logits_tm1)_i)

    Source: Bellemare, Dabney & Munos 2017 (C51), equation 7; Barth-Maron et al. 2018 (D4PG).

    Args:
        v_logits_tm1: `[B, atoms]` logits that learn.
        v_atoms_tm1: `[B, atoms]` their values, rising.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        v_logits_t: `[B, atoms_t]` target logits at the successor.
        v_atoms_t: `[B, atoms_t]` their values.

    Returns:
        The loss (nats), a scalar.
    """
    return jnp.mean(_categorical_td_error(v_logits_tm1, v_atoms_tm1, r_t, d_t, v_logits_t, v_atoms_t))


def munchausen_q_learning(
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
) -> Float[Array, ""]:
    """Loss of the soft one-step error whose reward is raised by the policy's own log-probability.

        pi = softmax(q_tm1_target / tau),  m = clip(tau * log pi(a_tm1), l_0, 0)
        delta = r_t + alpha * m + d_t * tau * logsumexp_a(q_t_target(a) / tau) - q_tm1(a_tm1),  L = mean(h(delta))

    h is half the square, or the Huber loss where the parameter is positive.
    Source: Vieillard, Pietquin & Geist 2020, "Munchausen reinforcement learning", equation 2 and section 3.

    Args:
        q_tm1: `[B, A]` action values that learn.
        q_tm1_target: `[B, A]` target values of the same observations.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t_target: `[B, A]` target values at the successor.
        entropy_temperature: tau, in the unit of the values per nat, above 0.
        munchausen_coefficient: alpha, no unit.
        clip_value_min: l_0, in the unit of the values, at most 0.
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0 means nowhere.

    Returns:
        The loss, a scalar.
    """
    log_policy = entropy_temperature * jax.nn.log_softmax(q_tm1_target / entropy_temperature)
    bonus = munchausen_coefficient * jnp.clip(_of_action(log_policy, a_tm1), clip_value_min, 0.0)
    soft_v_t = entropy_temperature * jax.nn.logsumexp(q_t_target / entropy_temperature, axis=-1)
    return td_learning(_of_action(q_tm1, a_tm1), r_t + bonus, d_t, soft_v_t, huber_loss_parameter)


def quantile_regression_loss(
    dist_src: Float[Array, "B quantiles"],
    tau_src: Float[Array, "B quantiles"],
    dist_target: Float[Array, "B quantiles_t"],
    huber_param: Scalar = 0.0,
) -> Float[Array, "B"]:
    """Loss whose minimum holds the quantiles of the target samples.

        u_ij = target_j - src_i,  L = sum_i mean_j |tau_i - 1[u_ij < 0]| * h(u_ij)

    h is the absolute value, or the Huber loss where the parameter is positive.
    Source: Dabney et al. 2018 (QR-DQN), equations 8 to 10.

    Args:
        dist_src: `[B, quantiles]` quantiles that learn.
        tau_src: `[B, quantiles]` their probabilities, in [0, 1].
        dist_target: `[B, quantiles_t]` samples or quantiles of the target.
        huber_param: error below which the loss is quadratic, in the unit of the values; 0 means nowhere.

    Returns:
        `[B]` losses, summed over the source's quantiles and averaged over the target's.
    """
    error = stop_gradient(dist_target)[:, None, :] - dist_src[:, :, None]
    weight = jnp.abs(tau_src[:, :, None] - (error < 0.0).astype(error.dtype))
    return jnp.sum(jnp.mean(stop_gradient(weight) * _absolute_or_huber(error, huber_param), axis=-1), axis=-1)


def quantile_q_learning(
    dist_q_tm1: Float[Array, "B quantiles A"],
    tau_q_tm1: Float[Array, "B quantiles"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    dist_q_t_selector: Float[Array, "B quantiles_selector A"],
    dist_q_t: Float[Array, "B quantiles_t A"],
    huber_param: Scalar = 0.0,
) -> Float[Array, ""]:
    """Quantile regression towards the Bellman target of action-value quantiles.

        a* = argmax_a mean_i dist_q_t_selector_i(a)
        L = mean(quantile_regression_loss(dist_q_tm1(a_tm1), tau, r_t + d_t * dist_q_t(a*)))

    Source: Dabney et al. 2018 (QR-DQN), algorithm 1.

    Args:
        dist_q_tm1: `[B, quantiles, A]` quantiles that learn.
        tau_q_tm1: `[B, quantiles]` their probabilities.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        dist_q_t_selector: `[B, quantiles_selector, A]` quantiles whose means choose the successor's action.
        dist_q_t: `[B, quantiles_t, A]` target quantiles at the successor.
        huber_param: error below which the loss is quadratic, in the unit of the values; 0 means nowhere.

    Returns:
        The loss, a scalar.
    """
    a_t = jnp.argmax(jnp.mean(dist_q_t_selector, axis=1), axis=-1)
    batch = jnp.arange(a_tm1.shape[0])
    dist_target = r_t[:, None] + d_t[:, None] * dist_q_t[batch, :, a_t]
    return jnp.mean(quantile_regression_loss(dist_q_tm1[batch, :, a_tm1], tau_q_tm1, dist_target, huber_param))


def implicit_quantile_q_learning(
    dist_q_tm1: Float[Array, "B quantiles A"],
    tau_q_tm1: Float[Array, "B quantiles"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    dist_q_t_selector: Float[Array, "B quantiles_selector A"],
    dist_q_t: Float[Array, "B quantiles_t A"],
    huber_param: Scalar = 1.0,
) -> Float[Array, ""]:
    """Quantile Q-learning at sampled probabilities, its Huber loss in units of the parameter.

        L = quantile_q_learning(...) / huber_param, and quantile_q_learning(...) where the parameter is 0

    Source: Dabney et al. 2018 (IQN), equations 2 and 3.

    Args:
        dist_q_tm1: `[B, quantiles, A]` quantiles that learn, at the sampled probabilities.
        tau_q_tm1: `[B, quantiles]` the sampled probabilities, uniform in [0, 1].
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        dist_q_t_selector: `[B, quantiles_selector, A]` quantiles whose means choose the successor's action.
        dist_q_t: `[B, quantiles_t, A]` target quantiles at the successor, at probabilities of their own.
        huber_param: error below which the loss is quadratic, in the unit of the values; 0 means nowhere.

    Returns:
        The loss, a scalar.
    """
    loss = quantile_q_learning(dist_q_tm1, tau_q_tm1, a_tm1, r_t, d_t, dist_q_t_selector, dist_q_t, huber_param)
    return loss / jnp.where(jnp.asarray(huber_param) > 0, huber_param, 1.0)


def dqn_reg_loss(
    q_tm1: Float[Array, "B A"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t: Float[Array, "B A"],
    regularizer_weight: Scalar = 0.1,
) -> Float[Array, ""]:
    """Squared one-step error with a pull towards low action values.

        L = mean(regularizer_weight * q_tm1(a_tm1) + delta^2),  delta = r_t + d_t * max_a q_t(a) - q_tm1(a_tm1)

    Source: Co-Reyes et al. 2021, "Evolving reinforcement learning algorithms" (DQNReg).

    Args:
        q_tm1: `[B, A]` action values that learn.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, A]` target values at the successor.
        regularizer_weight: weight of the action value, in the unit of the values.

    Returns:
        The loss, a scalar.
    """
    td_loss = q_learning(q_tm1, a_tm1, r_t, d_t, q_t, 0.0)
    return regularizer_weight * jnp.mean(_of_action(q_tm1, a_tm1)) + 2.0 * td_loss


def cql_penalty(q_tm1: Float[Array, "B A"], a_tm1: Int[Array, "B"]) -> Float[Array, ""]:
    """How far the soft maximum of the action values lies above the value of the data's action.

        P = mean(logsumexp_a q_tm1(a) - q_tm1(a_tm1))

    Source: Kumar et al. 2020, "Conservative Q-learning", equation 4.

    Args:
        q_tm1: `[B, A]` action values that learn.
        a_tm1: `[B]` actions of the data.

    Returns:
        The penalty, a scalar, not negative.
    """
    return jnp.mean(jax.nn.logsumexp(q_tm1, axis=-1) - _of_action(q_tm1, a_tm1))


def sampled_cql_penalty(
    q_samples: Float[Array, "S B"], log_prob_samples: Float[Array, "S B"], q_tm1: Float[Array, "B"]
) -> Float[Array, ""]:
    """`cql_penalty` for continuous actions, its sum estimated by importance sampling.

        P = mean(log(mean_s exp(q_s - log mu(a_s))) - q_tm1),  a_s ~ mu

    Source: Kumar et al. 2020, "Conservative Q-learning", appendix F.

    Args:
        q_samples: `[S, B]` values of sampled actions.
        log_prob_samples: `[S, B]` log-densities (nats) of the samples under what they were drawn from.
        q_tm1: `[B]` values of the actions of the data.

    Returns:
        The penalty, a scalar.
    """
    log_sum = jax.nn.logsumexp(q_samples - stop_gradient(log_prob_samples), axis=0) - jnp.log(q_samples.shape[0])
    return jnp.mean(log_sum - q_tm1)


def td3_critic_loss(
    q_tm1: Float[Array, "B C"], r_t: Float[Array, "B"], d_t: Float[Array, "B"], q_t: Float[Array, "B C"]
) -> Float[Array, ""]:
    """Squared one-step errors of several critics towards the least of their target values.

        y = r_t + d_t * min_c q_t[c],  L = mean(sum_c (y - q_tm1[c])^2) / 2

    Source: Fujimoto, van Hoof & Meger 2018 (TD3), equation 10.

    Args:
        q_tm1: `[B, C]` values of the actions taken, one per critic.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, C]` target values of the target policy's action at the successor.

    Returns:
        The loss, a scalar.
    """
    target = stop_gradient(r_t + d_t * jnp.min(q_t, axis=-1))
    return 0.5 * jnp.mean(jnp.sum(jnp.square(target[:, None] - q_tm1), axis=-1))


def target_policy_smoothing(
    key: PRNGKeyArray | UInt32[Array, "2"],
    action: Float[Array, "*B A"],
    noise_scale: Scalar,
    noise_clip: Scalar,
    minimum: Scalar | Float[Array, "A"],
    maximum: Scalar | Float[Array, "A"],
) -> Float[Array, "*B A"]:
    """Adds clipped noise to the target policy's actions, so that the critic is smooth in the action.

        a' = clip(a + clip(eps, -noise_clip, noise_clip), minimum, maximum),  eps ~ N(0, noise_scale^2)

    Source: Fujimoto, van Hoof & Meger 2018 (TD3), equation 14 and algorithm 1.

    Args:
        key: random key.
        action: `[*B, A]` actions of the target policy.
        noise_scale: standard deviation of the noise, in the unit of the actions.
        noise_clip: its largest absolute value, likewise.
        minimum: least action, one number or `[A]`.
        maximum: largest action, one number or `[A]`.

    Returns:
        `[*B, A]` actions.
    """
    noise = noise_scale * jax.random.normal(key, action.shape, action.dtype)
    low, high = (jnp.broadcast_to(jnp.asarray(bound, action.dtype), action.shape) for bound in (minimum, maximum))
    return jnp.clip(action + jnp.clip(noise, -noise_clip, noise_clip), low, high)


def dpg_loss(
    a_t: Float[Array, "B A"], dqda_t: Float[Array, "B A"], dqda_clipping: Scalar | None = None
) -> Float[Array, ""]:
    """Loss whose gradient moves actions along the gradient of their value.

        L = mean(||a_t + g - a_t||^2) / 2,  g = dqda_t * min(1, dqda_clipping / ||dqda_t||) fixed;  dL/da_t = -g / B

    Source: Silver et al. 2014, "Deterministic policy gradient algorithms", equation 9.

    Args:
        a_t: `[B, A]` actions of the policy that learns.
        dqda_t: `[B, A]` gradients of the value at these actions.
        dqda_clipping: largest norm of a gradient; None means any.

    Returns:
        The loss, a scalar.
    """
    if dqda_clipping is not None:
        norm = jnp.linalg.norm(dqda_t, axis=-1, keepdims=True)
        dqda_t = dqda_t * jnp.minimum(1.0, dqda_clipping / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    target = stop_gradient(a_t + dqda_t)
    return 0.5 * jnp.mean(jnp.sum(jnp.square(target - a_t), axis=-1))


def sac_critic_loss(
    q_tm1: Float[Array, "B C"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    q_t: Float[Array, "B C"],
    log_prob_t: Float[Array, "B"],
    temperature: Scalar,
) -> Float[Array, ""]:
    """Squared one-step errors of several critics towards the soft value of the successor.

        y = r_t + d_t * (min_c q_t[c] - temperature * log pi(a_t)),  L = mean(sum_c (y - q_tm1[c])^2) / 2

    Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equations 3 and 5.

    Args:
        q_tm1: `[B, C]` values of the actions taken, one per critic.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_t: `[B, C]` target values of an action sampled at the successor.
        log_prob_t: `[B]` its log-probability (nats).
        temperature: worth of a nat of entropy, in the unit of the values.

    Returns:
        The loss, a scalar.
    """
    return td3_critic_loss(q_tm1, r_t, d_t, q_t - temperature * log_prob_t[:, None])


def sac_actor_loss(log_prob_t: Float[Array, "B"], q_t: Float[Array, "B C"], temperature: Scalar) -> Float[Array, ""]:
    """Negative soft value of actions that the policy sampled by reparametrisation.

        L = mean(temperature * log pi(a_t) - min_c q_t[c])

    Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equation 7.

    Args:
        log_prob_t: `[B]` log-probabilities (nats) of the sampled actions.
        q_t: `[B, C]` their values, one per critic.
        temperature: worth of a nat of entropy, in the unit of the values; gets no gradient.

    Returns:
        The loss, a scalar.
    """
    return jnp.mean(stop_gradient(jnp.asarray(temperature)) * log_prob_t - jnp.min(q_t, axis=-1))


def sac_temperature_loss(
    log_temperature: Float[Array, ""], log_prob_t: Float[Array, "*B"], target_entropy: Scalar
) -> Float[Array, ""]:
    """Dual of the constraint that the policy's entropy be at least a target.

        L = -mean(exp(log_temperature) * (log pi(a_t) + target_entropy))

    Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equation 18.

    Args:
        log_temperature: logarithm of the temperature, which learns.
        log_prob_t: `[*B]` log-probabilities (nats) of sampled actions.
        target_entropy: least entropy, in nats.

    Returns:
        The loss, a scalar.
    """
    return -jnp.exp(log_temperature) * jnp.mean(stop_gradient(log_prob_t) + target_entropy)


def policy_gradient_loss(
    log_prob_t: Float[Array, "*B"], adv_t: Float[Array, "*B"], w_t: Scalar | Float[Array, "*B"] = 1.0
) -> Float[Array, ""]:
    """Loss whose gradient is the policy gradient.

        L = -mean(w_t * A_t * log pi(a_t))

    Source: Sutton & Barto 2018, section 13.4; Mnih et al. 2016 (A3C), section 4.

    Args:
        log_prob_t: `[*B]` log-probabilities (nats) of the actions taken.
        adv_t: `[*B]` advantages.
        w_t: weight of each step, one number or `[*B]`.

    Returns:
        The loss, a scalar.
    """
    return -jnp.mean(stop_gradient(w_t * adv_t) * log_prob_t)


def reinforce_loss(
    log_prob_t: Float[Array, "*B"], return_t: Float[Array, "*B"], baseline_t: Float[Array, "*B"]
) -> Float[Array, ""]:
    """Policy-gradient loss of returns above a baseline.

        L = -mean((G_t - b_t) * log pi(a_t))

    Source: Williams 1992; Sutton & Barto 2018, equation 13.11.

    Args:
        log_prob_t: `[*B]` log-probabilities (nats) of the actions taken.
        return_t: `[*B]` returns.
        baseline_t: `[*B]` baselines, such as values; they get no gradient here.

    Returns:
        The loss, a scalar.
    """
    return policy_gradient_loss(log_prob_t, return_t - baseline_t)


def baseline_loss(v_tm1: Float[Array, "*B"], target_tm1: Float[Array, "*B"]) -> Float[Array, ""]:
    """Squared error of values.

        L = mean((G_t - v_tm1)^2) / 2

    Source: Espeholt et al. 2018 (IMPALA), section 4.2.

    Args:
        v_tm1: `[*B]` values that learn.
        target_tm1: `[*B]` value targets G.

    Returns:
        The loss, a scalar.
    """
    return 0.5 * jnp.mean(jnp.square(stop_gradient(target_tm1) - v_tm1))


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
    """Policy-gradient and value losses with V-trace targets.

        L_pi = -mean(A_t * log pi(a_tm1)),  L_v = mean(error_t^2) / 2,  A and error as in V-trace

    Source: Espeholt et al. 2018 (IMPALA), section 4.2.

    Args:
        pi_log_prob_tm1: `[B, T]` log-probabilities (nats) of the actions under the policy that learns.
        b_pi_log_prob_tm1: `[B, T]` the same under the policy that acted.
        v_tm1: `[B, T]` values that learn, of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` discounts.
        lambda_: mixing parameter in [0, 1].
        clip_rho_threshold: largest ratio that weighs an error.
        clip_pg_rho_threshold: largest ratio that weighs an advantage.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        time_major: whether every array is `[T, B]`.

    Returns:
        The policy loss and the value loss, scalars.
    """
    rho_tm1 = stop_gradient(_probability_ratio(pi_log_prob_tm1, b_pi_log_prob_tm1))
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
    """Log-likelihood of actions weighted by their exponentiated advantages.

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
    # The minimum comes before the exponential, which would overflow.
    weight = jnp.exp(jnp.minimum(adv_t / beta, jnp.log(weight_max)))
    return policy_gradient_loss(log_prob_t, weight)


def mpo_temperature_loss(
    q_values: Float[Array, "S *B"], temperature: Float[Array, ""], epsilon: Scalar
) -> tuple[Float[Array, ""], Float[Array, "S *B"]]:
    """E-step: weights of sampled actions, and the dual that keeps them within a divergence of the samples.

        w_s = softmax_s(q_s / eta),  L = eta * epsilon + eta * mean(log(mean_s exp(q_s / eta)))

    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equations 8 and 9.

    Args:
        q_values: `[S, *B]` values of S actions sampled per state.
        temperature: eta, which learns, in the unit of the values, above 0.
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
        log_prob: `[S, *B]` log-probabilities (nats) of the sampled actions under the policy that learns.
        weights: `[S, *B]` weights of the E-step.

    Returns:
        The loss (nats), a scalar.
    """
    return -jnp.mean(jnp.sum(stop_gradient(weights) * log_prob, axis=0))


def mpo_alpha_loss(
    kl: Float[Array, "*B"], alpha: Float[Array, ""], epsilon: Scalar
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A divergence held below a bound: the policy's penalty and the multiplier's dual loss.

        L_kl = alpha * mean(KL)  (alpha fixed),  L_alpha = alpha * (epsilon - mean(KL))  (KL fixed)

    For a bound per action dimension, as MPO uses for means and variances, vmap over the last dimension and add up.
    Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equation 12; Song et al. 2020 (V-MPO),
    equation 5.

    Args:
        kl: `[*B]` divergences (nats) of the policy that learns from the one that acted.
        alpha: the multiplier, which learns, per nat, at least 0.
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
        temperature: eta, which learns, in the unit of the advantages, above 0.
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
