"""Losses of value distributions: categorical and quantile."""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int

from stoix_like.utils.accelerate.columns import argmax
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss.common import absolute_or_huber, mean_of, taken
from stoix_like.utils.shapes import check_shapes


def categorical_td_learning_per_example(
    v_logits_tm1: Float[Array, "B atoms"],
    v_atoms_tm1: Float[Array, "B atoms"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    v_logits_t: Float[Array, "B atoms_t"],
    v_atoms_t: Float[Array, "B atoms_t"],
) -> Float[Array, "B"]:
    """Compute the cross-entropy of a value distribution and its projected Bellman target.

        L = -sum_i Proj(r_t + d_t * v_atoms_t, softmax(v_logits_t))_i * log softmax(v_logits_tm1)_i

    Source: Bellemare, Dabney & Munos 2017 (C51), equation 7; Barth-Maron et al. 2018 (D4PG).

    Args:
        v_logits_tm1: `[B, atoms]` online logits.
        v_atoms_tm1: `[B, atoms]` values of the atoms, ascending.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        v_logits_t: `[B, atoms_t]` target logits at the successor.
        v_atoms_t: `[B, atoms_t]` values of the target atoms.

    Returns:
        The losses, one per example.
    """
    arrays = v_logits_tm1, v_atoms_tm1, r_t, d_t, v_logits_t, v_atoms_t
    check_shapes("v_logits_tm1[B,K] v_atoms_tm1[B,K] r_t[B] d_t[B] v_logits_t[B,M] v_atoms_t[B,M]", arrays)
    target = _project(r_t[:, None] + d_t[:, None] * v_atoms_t, jax.nn.softmax(v_logits_t), v_atoms_tm1)
    return -jnp.sum(stop_gradient(target) * jax.nn.log_softmax(v_logits_tm1), axis=-1)


categorical_td_learning = mean_of(categorical_td_learning_per_example)


def categorical_critics_loss_per_example(
    v_logits_tm1: Float[Array, "B atoms C"],
    v_atoms: Float[Array, "B atoms"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    v_logits_t: Float[Array, "B atoms C"],
    clipped_double: bool = False,
) -> Float[Array, "B"]:
    """Compute the cross-entropies of several critics and their projected Bellman targets.

        L = -sum_c sum_i target[c]_i * log softmax(v_logits_tm1[c])_i,
        target[c] = Proj(r_t + d_t * v_atoms, softmax(v_logits_t[c])), or the one with the smallest mean for all critics

    Source: Seo et al. 2025 (FastTD3), arXiv:2505.22642, section 2, and their code.

    Args:
        v_logits_tm1: `[B, atoms, C]` online logits of the actions taken, for each critic.
        v_atoms: `[B, atoms]` values of the atoms, ascending and evenly spaced; at least two.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        v_logits_t: `[B, atoms, C]` target logits at the successor.
        clipped_double: whether all critics learn the target with the smallest mean (clipped double Q-learning), or each
            its own.

    Returns:
        The losses, one per example.
    """
    arrays = v_logits_tm1, v_atoms, r_t, d_t, v_logits_t
    check_shapes("v_logits_tm1[B,K,C] v_atoms[B,K] r_t[B] d_t[B] v_logits_t[B,K,C]", arrays)
    # Triangles take atoms^2 operations, in one kernel of an accelerator; a scatter takes 2 atoms, one after another.
    project = jax.vmap(_scatter if on_cpu() else _project, (None, -1, None), -1)
    target = project(r_t[:, None] + d_t[:, None] * v_atoms, jax.nn.softmax(v_logits_t, axis=1), v_atoms)
    if clipped_double:
        smallest = jnp.argmin(jnp.sum(target * v_atoms[..., None], axis=1), axis=-1)
        target = jnp.take_along_axis(target, smallest[:, None, None], axis=-1)
    return -jnp.sum(stop_gradient(target) * jax.nn.log_softmax(v_logits_tm1, axis=1), axis=(1, 2))


categorical_critics_loss = mean_of(categorical_critics_loss_per_example)


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
    """Compute the cross-entropies of action-value distributions and their projected Bellman targets.

        Z = r_t + d_t * q_atoms_t,  a* = argmax_a q_t_selector(a)
        L = -sum_i Proj(Z, softmax(q_logits_t(a*)))_i * log softmax(q_logits_tm1(a_tm1))_i

    Source: Bellemare, Dabney & Munos 2017 (C51), equation 7 and algorithm 1; van Hasselt et al. 2016 for the selector.

    Args:
        q_logits_tm1: `[B, A, atoms]` online logits.
        q_atoms_tm1: `[B, atoms]` values of the atoms, ascending.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        q_logits_t: `[B, A, atoms_t]` target logits at the successor.
        q_atoms_t: `[B, atoms_t]` values of the target atoms.
        q_t_selector: `[B, A]` action values that select the successor's action.

    Returns:
        `[B]` cross-entropies (nats), usable as priorities.
    """
    check_shapes(
        "q_logits_tm1[B,A,K] q_atoms_tm1[B,K] a_tm1[B] r_t[B] d_t[B] q_logits_t[B,A,M] q_atoms_t[B,M]"
        " q_t_selector[B,A]",
        (q_logits_tm1, q_atoms_tm1, a_tm1, r_t, d_t, q_logits_t, q_atoms_t, q_t_selector),
    )
    greedy_logits_t = taken(q_logits_t, argmax(q_t_selector))
    logits_tm1 = taken(q_logits_tm1, a_tm1)
    return categorical_td_learning_per_example(logits_tm1, q_atoms_tm1, r_t, d_t, greedy_logits_t, q_atoms_t)


def _project(atoms: Array, probs: Array, support: Array) -> Array:
    """Project the probabilities of atoms `[*B, M]` onto an ascending support `[*B, K]`, preserving the mean."""
    atoms = jnp.clip(atoms, support[..., :1], support[..., -1:])
    gaps = jnp.diff(support, axis=-1)
    # The outermost atoms have one neighbour each, and clipped atoms lie between them: any positive gap works.
    edge = jnp.ones_like(support[..., :1])
    gap_below, gap_above = jnp.concatenate([edge, gaps], -1), jnp.concatenate([gaps, edge], -1)
    offset = atoms[..., None, :] - support[..., :, None]
    gap = jnp.where(offset < 0.0, gap_below[..., :, None], gap_above[..., :, None])
    return jnp.sum(jnp.clip(1.0 - jnp.abs(offset) / gap, 0.0, 1.0) * probs[..., None, :], axis=-1)


def _scatter(atoms: Array, probs: Array, support: Array) -> Array:
    """Project as `_project` does, onto an evenly spaced support of at least two atoms."""
    last = support.shape[-1] - 1
    low, high = support[:, :1], support[:, -1:]
    position = (jnp.clip(atoms, low, high) - low) * (last / (high - low))
    below = jnp.clip(position.astype(jnp.int32), 0, last - 1)
    above_probs = (position - below) * probs
    rows = jnp.arange(len(atoms))[:, None]
    projected = jnp.zeros(support.shape, above_probs.dtype)
    projected = projected.at[rows, below].add(probs - above_probs, mode="promise_in_bounds")
    return projected.at[rows, below + 1].add(above_probs, mode="promise_in_bounds")


# Shares of the support within which rounding can push an atom that ought to stay inside.
_ROUNDING = 1e-5


def clipped_probability(
    r_t: Float[Array, "*B"], d_t: Float[Array, "*B"], atoms: Float[Array, "*B atoms"], probs_t: Float[Array, "*B atoms"]
) -> Float[Array, "*B"]:
    """Compute the probability of a Bellman target that lies outside of the atoms, which the projection clips.

        P(Z < atoms_1 or Z > atoms_K),  Z = r_t + d_t * atoms_i with probability probs_t_i

    The mean of a distribution on the atoms cannot leave them, so that the mean of Z hides it where rewards are small.

    Args:
        r_t: `[*B]` rewards.
        d_t: `[*B]` discounts.
        atoms: `[*B, atoms]` values of the atoms, ascending.
        probs_t: `[*B, atoms]` their probabilities at the successor.

    Returns:
        `[*B]` probabilities; the mean is the clipped share of all targets.
    """
    check_shapes("r_t[*B] d_t[*B] atoms[*B,K] probs_t[*B,K]", (r_t, d_t, atoms, probs_t))
    low, high = atoms[..., :1], atoms[..., -1:]
    slack = _ROUNDING * (high - low)
    target = r_t[..., None] + d_t[..., None] * atoms
    return jnp.sum(jnp.where((target < low - slack) | (target > high + slack), probs_t, 0.0), axis=-1)


def is_outside(target: Float[Array, "*B"], atoms: Float[Array, "*B atoms"]) -> Float[Array, "*B"]:
    """Compute which value targets lie outside of the atoms, and are clipped by the projection onto them.

        y_i = 1[target_i < atoms_i1 or target_i > atoms_iK]

    Targets are numbers; of distributions, see `clipped_probability`.

    Args:
        target: `[*B]` the targets.
        atoms: `[*B, atoms]` values of the atoms, ascending.

    Returns:
        `[*B]` 1 where the target is clipped, else 0; the mean is the clipped share.
    """
    check_shapes("target[*B] atoms[*B,K]", (target, atoms))
    return ((target < atoms[..., 0]) | (target > atoms[..., -1])).astype(jnp.float32)


def two_hot_loss_per_example(
    logits: Float[Array, "*B atoms"], atoms: Float[Array, "*B atoms"], target: Float[Array, "*B"]
) -> Float[Array, "*B"]:
    """Compute the cross-entropy of a value distribution and the two atoms around a target.

        L = -sum_i p_i log softmax(logits)_i,  sum_i p_i atoms_i = target,  p_i > 0 for the neighbours of the target

    Source: Schrittwieser et al. 2020 (MuZero), appendix F.

    Args:
        logits: `[*B, atoms]` online logits.
        atoms: `[*B, atoms]` values of the atoms, ascending; their distances may differ.
        target: `[*B]` value targets, clipped to the range of the atoms.

    Returns:
        `[*B]` losses (nats).
    """
    check_shapes("logits[*B,K] atoms[*B,K] target[*B]", (logits, atoms, target))
    probs = _project(target[..., None], jnp.ones_like(target)[..., None], atoms)
    return -jnp.sum(stop_gradient(probs) * jax.nn.log_softmax(logits), axis=-1)


two_hot_loss = mean_of(two_hot_loss_per_example)


def hl_gauss_loss_per_example(
    logits: Float[Array, "B atoms"], atoms: Float[Array, "B atoms"], target: Float[Array, "B"], smoothing: Scalar = 0.75
) -> Float[Array, "B"]:
    """Compute the cross-entropy of a value distribution and a normal distribution around a target.

        L = -sum_i p_i log softmax(logits)_i,  p_i = P(edge_i < y < edge_i+1) / P(edge_0 < y < edge_K)
        y ~ N(target, smoothing * width),  edges half a width below and above each atom

    Source: Imani & White 2018; Farebrother et al. 2024, "Stop regressing", arXiv:2403.03950, section 3.1.

    Args:
        logits: `[B, atoms]` online logits.
        atoms: `[B, atoms]` values of the atoms, ascending and evenly spaced; at least two.
        target: `[B]` value targets, clipped to the range of the atoms.
        smoothing: standard deviation of the normal distribution, in units of the distance between atoms.

    Returns:
        The losses (nats), one per example.
    """
    check_shapes("logits[B,K] atoms[B,K] target[B]", (logits, atoms, target))
    width = (atoms[:, -1:] - atoms[:, :1]) / (atoms.shape[-1] - 1)
    edges = jnp.concatenate([atoms - 0.5 * width, atoms[:, -1:] + 0.5 * width], axis=-1)
    target = jnp.clip(target[:, None], atoms[:, :1], atoms[:, -1:])
    below = jax.scipy.stats.norm.cdf((edges - target) / (smoothing * width))
    probs = jnp.diff(below) / (below[:, -1:] - below[:, :1])
    return -jnp.sum(stop_gradient(probs) * jax.nn.log_softmax(logits), axis=-1)


hl_gauss_loss = mean_of(hl_gauss_loss_per_example)


def quantile_regression_loss(
    dist_src: Float[Array, "B quantiles"],
    tau_src: Float[Array, "B quantiles"],
    dist_target: Float[Array, "B quantiles_t"],
    huber_param: Scalar = 0.0,
) -> Float[Array, "B"]:
    """Compute the quantile regression loss, which is minimal at the quantiles of the target samples.

        u_ij = target_j - src_i,  L = sum_i mean_j |tau_i - 1[u_ij < 0]| * h(u_ij)

    h is the absolute value, or the Huber loss if the parameter is positive.
    Source: Dabney et al. 2018 (QR-DQN), equations 8 to 10.

    Args:
        dist_src: `[B, quantiles]` online quantiles.
        tau_src: `[B, quantiles]` probabilities of the quantiles, in [0, 1].
        dist_target: `[B, quantiles_t]` samples or quantiles of the target.
        huber_param: error below which the loss is quadratic, in the unit of the values; 0 for an absolute loss.

    Returns:
        `[B]` losses, summed over the online quantiles and averaged over the target quantiles.
    """
    check_shapes("dist_src[B,K] tau_src[B,K] dist_target[B,M]", (dist_src, tau_src, dist_target))
    error = stop_gradient(dist_target)[:, None, :] - dist_src[:, :, None]
    weight = jnp.abs(tau_src[:, :, None] - (error < 0.0).astype(error.dtype))
    return jnp.sum(jnp.mean(stop_gradient(weight) * absolute_or_huber(error, huber_param), axis=-1), axis=-1)


def quantile_q_learning_per_example(
    dist_q_tm1: Float[Array, "B quantiles A"],
    tau_q_tm1: Float[Array, "B quantiles"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    dist_q_t_selector: Float[Array, "B quantiles_selector A"],
    dist_q_t: Float[Array, "B quantiles_t A"],
    huber_param: Scalar = 0.0,
) -> Float[Array, "B"]:
    """Compute the quantile regression losses of action-value quantiles and their Bellman target.

        a* = argmax_a mean_i dist_q_t_selector_i(a)
        L = quantile_regression_loss(dist_q_tm1(a_tm1), tau, r_t + d_t * dist_q_t(a*))

    Source: Dabney et al. 2018 (QR-DQN), algorithm 1.

    Args:
        dist_q_tm1: `[B, quantiles, A]` online quantiles.
        tau_q_tm1: `[B, quantiles]` probabilities of the quantiles.
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        dist_q_t_selector: `[B, quantiles_selector, A]` quantiles whose means select the successor's action.
        dist_q_t: `[B, quantiles_t, A]` target quantiles at the successor.
        huber_param: error below which the loss is quadratic, in the unit of the values; 0 for an absolute loss.

    Returns:
        The losses, one per example.
    """
    check_shapes(
        "dist_q_tm1[B,K,A] tau_q_tm1[B,K] a_tm1[B] r_t[B] d_t[B] dist_q_t_selector[B,S,A] dist_q_t[B,M,A]",
        (dist_q_tm1, tau_q_tm1, a_tm1, r_t, d_t, dist_q_t_selector, dist_q_t),
    )
    a_t = argmax(jnp.mean(dist_q_t_selector, axis=1))
    batch = jnp.arange(a_tm1.shape[0])
    dist_target = r_t[:, None] + d_t[:, None] * jnp.asarray(dist_q_t)[batch, :, a_t]
    dist_tm1 = jnp.asarray(dist_q_tm1).at[batch, :, a_tm1].get(unique_indices=True)  # see `taken`
    return quantile_regression_loss(dist_tm1, tau_q_tm1, dist_target, huber_param)


quantile_q_learning = mean_of(quantile_q_learning_per_example)


def implicit_quantile_q_learning_per_example(
    dist_q_tm1: Float[Array, "B quantiles A"],
    tau_q_tm1: Float[Array, "B quantiles"],
    a_tm1: Int[Array, "B"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    dist_q_t_selector: Float[Array, "B quantiles_selector A"],
    dist_q_t: Float[Array, "B quantiles_t A"],
    huber_param: Scalar = 1.0,
) -> Float[Array, "B"]:
    """Compute the quantile Q-learning losses at sampled probabilities, divided by the Huber parameter.

        L = quantile_q_learning(...) / huber_param, and quantile_q_learning(...) if the parameter is 0

    Source: Dabney et al. 2018 (IQN), equations 2 and 3.

    Args:
        dist_q_tm1: `[B, quantiles, A]` online quantiles, at the sampled probabilities.
        tau_q_tm1: `[B, quantiles]` the sampled probabilities, uniform in [0, 1].
        a_tm1: `[B]` actions taken.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        dist_q_t_selector: `[B, quantiles_selector, A]` quantiles whose means select the successor's action.
        dist_q_t: `[B, quantiles_t, A]` target quantiles at the successor, at their own probabilities.
        huber_param: error below which the loss is quadratic, in the unit of the values; 0 for an absolute loss.

    Returns:
        The losses, one per example.
    """
    losses = quantile_q_learning_per_example(
        dist_q_tm1, tau_q_tm1, a_tm1, r_t, d_t, dist_q_t_selector, dist_q_t, huber_param
    )
    return losses / jnp.where(jnp.asarray(huber_param) > 0, huber_param, 1.0)


implicit_quantile_q_learning = mean_of(implicit_quantile_q_learning_per_example)


def quantile_critic_loss_per_example(
    dist_q_tm1: Float[Array, "B quantiles C"],
    tau_q_tm1: Float[Array, "B quantiles"],
    r_t: Float[Array, "B"],
    d_t: Float[Array, "B"],
    dist_q_t: Float[Array, "B quantiles_t"],
    log_prob_t: Float[Array, "B"],
    temperature: Scalar,
    huber_param: Scalar = 1.0,
) -> Float[Array, "B"]:
    """Compute the quantile regression losses of several critics, with the soft return of the successor.

        y = r_t + d_t * (dist_q_t - temperature * log pi(a_t))
        L = sum_c quantile_regression_loss(dist_q_tm1[c], tau, y) / quantiles

    Source: Kuznetsov et al. 2020 (TQC), equations 11 to 13.

    Args:
        dist_q_tm1: `[B, quantiles, C]` online quantiles of the actions taken, for each critic.
        tau_q_tm1: `[B, quantiles]` probabilities of the quantiles.
        r_t: `[B]` rewards.
        d_t: `[B]` discounts.
        dist_q_t: `[B, quantiles_t]` target quantiles of actions sampled at the successor, see `truncate_quantiles`.
        log_prob_t: `[B]` log-probabilities (nats) of these actions.
        temperature: weight of the entropy, in the unit of the values per nat.
        huber_param: error below which the loss is quadratic, in the unit of the values; 0 for an absolute loss.

    Returns:
        The losses, one per example.
    """
    arrays = dist_q_tm1, tau_q_tm1, r_t, d_t, dist_q_t, log_prob_t
    check_shapes("dist_q_tm1[B,K,C] tau_q_tm1[B,K] r_t[B] d_t[B] dist_q_t[B,M] log_prob_t[B]", arrays)
    target = r_t[:, None] + d_t[:, None] * (dist_q_t - temperature * log_prob_t[:, None])

    size, num_quantiles, num_critics = dist_q_tm1.shape
    # The quantiles of all critics side by side: faster than one critic after another.
    dist, tau = dist_q_tm1.reshape(size, -1), jnp.repeat(tau_q_tm1, num_critics, axis=-1)
    return quantile_regression_loss(dist, tau, target, huber_param) / num_quantiles


quantile_critic_loss = mean_of(quantile_critic_loss_per_example)


def truncate_quantiles(dist_q: Float[Array, "B quantiles C"], num_dropped: int) -> Float[Array, "B quantiles_kept"]:
    """Pool the quantiles of several critics and drop the largest ones.

        the C (quantiles - num_dropped) smallest of all C quantiles, in ascending order

    Source: Kuznetsov et al. 2020 (TQC), equation 10.

    Args:
        dist_q: `[B, quantiles, C]` quantiles of each critic.
        num_dropped: number of quantiles to drop per critic, less than their number.

    Returns:
        `[B, C * (quantiles - num_dropped)]` quantiles.
    """
    size, num_quantiles, num_critics = dist_q.shape
    num_kept = num_critics * (num_quantiles - num_dropped)
    # Half the time of `jnp.sort` on a CPU.
    return -jax.lax.top_k(-dist_q.reshape(size, -1), num_kept)[0]
