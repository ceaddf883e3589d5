"""Every loss with random arguments."""

import math
from typing import Any, NamedTuple

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks import distributions
from stoix_like.utils import loss as ls

B, A, C, S, K, M, T = 4, 3, 2, 5, 6, 5, 3
LOG2 = math.log(2.0)


class Case(NamedTuple):
    """A loss with random arguments: arrays, those with a gradient first, and numbers."""

    function: Any
    arrays: tuple
    num_with_gradient: int
    numbers: tuple = ()
    integers: tuple = ()  # actions and their positions among the arguments: (position, array)

    def __call__(self, *arrays_and_numbers):
        arguments = list(arrays_and_numbers)
        for position, array in self.integers:
            arguments.insert(position, jnp.asarray(array))
        return self.function(*arguments)


def random_arrays(seed=0):
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


def _cases(seed=0):
    n = random_arrays(seed)
    a = np.random.default_rng(seed).integers(0, A, B).astype(np.int32)
    d = np.array([0.9, 0.0, 1.0, 0.5], np.float32)
    tau = np.random.default_rng(seed).random((B, K)).astype(np.float32)
    atoms = np.tile(np.linspace(-2.0, 2.0, K, dtype=np.float32), (B, 1))
    atoms_t = np.tile(np.linspace(-3.0, 3.0, M, dtype=np.float32), (B, 1))
    weights = (x := np.exp(n(S, B))) / x.sum(axis=0)

    def at(position):
        return ((position, a),)

    q = (n(B, A), n(B), d, n(B, A))
    dist = (n(B, K, A), tau, n(B), d, n(B, S, A), n(B, M, A))
    return {
        "ppo_clip": Case(ls.ppo_clip_loss, (n(B), n(B), n(B)), 1, (0.2,)),
        "ppo_penalty": Case(_ppo_penalty, (n(B), n(B), n(B)), 1, (0.5,)),
        "ppo_penalty_continuous": Case(_ppo_penalty_continuous, (n(B, A), n(B, A), n(B, A), n(B)), 1, (0.5,)),
        "info_nce": Case(_info_nce, (n(B, B),), 1, (0.1,)),
        "dpo": Case(ls.dpo_loss, (n(B), n(B), n(B)), 1, (2.0, 0.6)),
        "clipped_value": Case(ls.clipped_value_loss, (n(B), n(B), n(B)), 1, (0.2,)),
        "q_learning": Case(ls.q_learning, q, 1, (1.0,), at(1)),
        "double_q": Case(ls.double_q_learning, (n(B, A), n(B, A), n(B), d, n(B, A)), 1, (1.0,), at(2)),
        "td": Case(ls.td_learning, (n(B), n(B), d, n(B)), 1, (0.0,)),
        "categorical_double_q": Case(
            ls.categorical_double_q_learning, (n(B, A, K), atoms, n(B), d, n(B, A, M), atoms_t, n(B, A)), 1, (), at(2)
        ),
        "categorical_td": Case(ls.categorical_td_learning, (n(B, K), atoms, n(B), d, n(B, M), atoms_t), 1),
        "munchausen": Case(
            ls.munchausen_q_learning, (n(B, A), n(B, A), n(B), d, n(B, A)), 1, (0.3, 0.9, -1.0, 1.0), at(2)
        ),
        "quantile_regression": Case(ls.quantile_regression_loss, (n(B, K), tau, n(B, M)), 1, (0.7,)),
        "quantile_q": Case(ls.quantile_q_learning, dist, 1, (0.7,), at(2)),
        "implicit_quantile": Case(ls.implicit_quantile_q_learning, dist, 1, (0.7,), at(2)),
        "quantile_critic": Case(ls.quantile_critic_loss, (n(B, K, C), tau, n(B), d, n(B, M), n(B)), 1, (0.2, 0.7)),
        "dqn_reg": Case(ls.dqn_reg_loss, q, 1, (0.1,), at(1)),
        "cql": Case(ls.cql_penalty, (n(B, A),), 1, (), at(1)),
        "sampled_cql": Case(
            lambda samples, q, log_prob: ls.sampled_cql_penalty(samples, log_prob, q), (n(S, B), n(B), n(S, B)), 2
        ),
        "td3_critic": Case(ls.td3_critic_loss, (n(B, C), n(B), d, n(B, C)), 1),
        "dpg": Case(ls.dpg_loss, (n(B, A), n(B, A)), 0, (0.8,)),
        "sac_critic": Case(ls.sac_critic_loss, (n(B, C), n(B), d, n(B, C), n(B)), 1, (0.2,)),
        "sac_actor": Case(ls.sac_actor_loss, (n(B), n(B, C)), 2, (0.2,)),
        "sac_temperature": Case(ls.sac_temperature_loss, (n(), n(B)), 1, (-1.0,)),
        "policy_gradient": Case(ls.policy_gradient_loss, (n(B), n(B)), 1, (0.5,)),
        "reinforce": Case(ls.reinforce_loss, (n(B), n(B), n(B)), 1),
        "baseline": Case(ls.baseline_loss, (n(B), n(B)), 1),
        "impala": Case(ls.impala_loss, tuple(n(B, T) for _ in range(6)), 0, (0.9, 1.0, 1.0)),
        "awr": Case(ls.awr_loss, (n(B), n(B)), 1, (0.5, 20.0)),
        "mpo_temperature": Case(
            lambda eta, q, eps: ls.mpo_temperature_loss(q, eta, eps)[0], (np.float32(0.7), n(S, B)), 1, (0.1,)
        ),
        "mpo_policy": Case(ls.mpo_policy_loss, (n(S, B), weights), 1),
        "mpo_alpha": Case(
            lambda kl, alpha, eps: ls.mpo_alpha_loss(kl, alpha, eps)[0], (n(B), np.float32(0.7)), 1, (0.1,)
        ),
        "mpo_alpha_dual": Case(
            lambda alpha, kl, eps: ls.mpo_alpha_loss(kl, alpha, eps)[1], (np.float32(0.7), n(B)), 1, (0.1,)
        ),
        "vmpo_temperature": Case(
            lambda eta, adv, eps, top: ls.vmpo_temperature_loss(adv, eta, eps, top)[0],
            (np.float32(0.7), n(B)),
            1,
            (0.1, 0.5),
        ),
        "vmpo_policy": Case(ls.vmpo_policy_loss, (n(B), n(B)), 1),
        "hl_gauss": Case(ls.hl_gauss_loss, (n(B, K), atoms, n(B)), 1, (0.75,)),
        "two_hot": Case(ls.two_hot_loss, (n(B, K), atoms, n(B)), 1),
    }


def _info_nce(logits, logsumexp_coef):
    return ls.info_nce_loss(logits, True, logsumexp_coef)


def _ppo_penalty(log_prob, b_log_prob, gae, beta):
    pi = distrax.Categorical(logits=jnp.stack([log_prob, -log_prob], axis=-1))
    b_pi = distrax.Categorical(logits=jnp.stack([b_log_prob, gae], axis=-1))
    return ls.ppo_penalty_loss(log_prob, b_log_prob, gae, beta, pi, b_pi)[0]


def _ppo_penalty_continuous(loc, b_loc, action, gae, beta):
    scale = jnp.full(A, 0.7)
    pi, b_pi = (distributions.MultivariateNormalDiag(x, scale.astype(x.dtype)) for x in (loc, b_loc))
    action = jax.lax.stop_gradient(action)
    return ls.ppo_penalty_loss(pi.log_prob(action), b_pi.log_prob(action), gae, beta, pi, b_pi)[0]


def arrays_of(case, dtype=jnp.float32):
    return jax.device_put(tuple(np.asarray(x, dtype) for x in case.arrays))


def total(result):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(result))


def finite_differences(function, x, eps=1e-6):
    """Compute the gradient of a function of one float64 array by central differences."""
    steps = eps * np.eye(x.size).reshape(x.size, *x.shape)
    return np.reshape([(function(x + step) - function(x - step)) / (2 * eps) for step in steps], x.shape)


CASES = _cases()
