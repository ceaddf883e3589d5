import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from stoix_like.utils import loss as ls
from support.every_loss import CASES, LOG2, S


def test_value_losses_agree_with_rlax():
    q, q_t, r, d, selector = CASES["double_q"].arrays
    ((_, a),) = CASES["double_q"].integers

    @jax.vmap
    def rlax_losses(q, a, r, d, q_t, selector):
        q_error, double_error = rlax.q_learning(q, a, r, d, q_t), rlax.double_q_learning(q, a, r, d, q_t, selector)
        huber = functools.partial(rlax.huber_loss, delta=0.4)
        return rlax.l2_loss(q_error), huber(q_error), rlax.l2_loss(double_error), huber(double_error)

    @jax.jit
    def losses(q, a, r, d, q_t, selector):
        single = [ls.q_learning(q, a, r, d, q_t, huber) for huber in (0.0, 0.4)]
        double = [ls.double_q_learning(q, q_t, a, r, d, selector, huber) for huber in (0.0, 0.4)]
        return single + double, [jnp.mean(x) for x in rlax_losses(q, a, r, d, q_t, selector)]

    np.testing.assert_allclose(*losses(q, a, r, d, q_t, selector), rtol=1e-5)


# By hand, v_old = 3, epsilon = 0.2: v = 4, G = 5 give max(1, 1.8^2); v = 2, G = 2.5 max(0.25, 0.3^2); half the mean.
# Expectile 0.8 of the errors 2 and -2: 0.8 * 4 and 0.2 * 4.
def test_losses_of_values_match_hand_computed_values():
    loss = jax.jit(ls.clipped_value_loss)(*np.float32([[4.0, 2.0], [3.0, 3.0], [5.0, 2.5]]), 0.2)
    np.testing.assert_allclose(loss, (3.24 + 0.25) / 4, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(ls.expectile_loss)(np.float32([2.0, -2.0]), 0.8), [3.2, 0.8], rtol=1e-6)


# By hand, gamma 1/2, q = (2, 1), a = 0, r = 1, q' = (4, 6): delta = 1 + 3 - 2 = 2: 2 squared, 1 * (2 - 1/2) Huber;
# a selector that prefers the first action: delta = 1 + 2 - 2 = 1: 1/2 squared. Regularised: 4 + 0.1 * 2.
def test_value_losses_match_hand_computed_values():
    @jax.jit
    def losses(q, q_t, selector, a, r, d):
        single = ls.q_learning(q, a, r, d, q_t, 0.0), ls.q_learning(q, a, r, d, q_t, 1.0)
        others = ls.double_q_learning(q, q_t, a, r, d, selector, 0), ls.td_learning(q[:, 0], r, d, q_t[:, 1], 0.0)
        return *single, *others, ls.dqn_reg_loss(q, a, r, d, q_t), ls.cql_penalty(q, a)

    found = losses(*np.float32([[[2, 1]], [[4, 6]], [[1, 0]]]), np.int32([0]), *np.float32([[1.0], [0.5]]))
    np.testing.assert_allclose(found[:4], [2.0, 1.5, 0.5, 2.0])
    np.testing.assert_allclose(found[4:], [4.2, math.log(math.e + math.e**2) - 2.0], rtol=1e-6)


# By hand, tau = 2, q_target = (0, 2 log 3): tau log pi(0) = -2 log(1 + 3) = -4 log 2; soft value of (0, 0) is 2 log 2.
#   delta = 1 - (4 log 2) / 4 + 2 log 2 - 0 with alpha = 1/4 and gamma = 1; clipped at -1: 1 - 1/4 + 2 log 2
def test_munchausen_loss_matches_hand_computed_values():
    zeros, a, one = np.zeros((1, 2), np.float32), np.zeros(1, np.int32), np.ones(1, np.float32)
    munchausen = jax.jit(ls.munchausen_q_learning)
    target = np.float32([[0.0, 2 * math.log(3)]])
    loss = functools.partial(munchausen, zeros, target, a, one, one, zeros, 2.0, 0.25)
    np.testing.assert_allclose(loss(-10.0, 0.0), (1 + LOG2) ** 2 / 2, rtol=1e-6)
    np.testing.assert_allclose(loss(-1.0, 0.0), (0.75 + 2 * LOG2) ** 2 / 2, rtol=1e-6)
    # Without the bonus, a temperature near zero gives Q-learning.
    (q, r, d, q_t), ((_, a),) = CASES["q_learning"].arrays, CASES["q_learning"].integers
    soft = munchausen(q, q, a, r, d, q_t, 1e-4, 0.0, -1.0, 0.0)
    np.testing.assert_allclose(soft, jax.jit(ls.q_learning)(q, a, r, d, q_t, 0.0), rtol=1e-3)


# Uniform samples in [0, 2] have density 1/2: log(mean exp(q + log 2)) - q = log 2 for constant q.
def test_sampled_cql_penalty_matches_hand_computed_values():
    penalty = jax.jit(ls.sampled_cql_penalty)(*np.float32([[[3.0]] * S, [[-LOG2]] * S]), np.float32([3.0]))
    np.testing.assert_allclose(penalty, LOG2, rtol=1e-5)
