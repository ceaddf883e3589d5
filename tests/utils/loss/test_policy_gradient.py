import math

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from stoix_like.utils import loss as ls
from support.every_loss import CASES, LOG2, A, B, T, arrays_of, finite_differences, random_arrays, total


# The gradient is that of a surrogate with fixed targets, advantages and ratios.
def test_impala_gradients_match_finite_differences():
    with jax.enable_x64(True):
        arrays = arrays_of(CASES["impala"], jnp.float64)
        log_prob, b_log_prob, v_tm1, v_t, r_t, discount_t = map(np.asarray, arrays)
        rho = np.minimum(np.exp(log_prob - b_log_prob), 1.0)
        errors, advantages = np.zeros((2, B, T))
        following = np.zeros(B)
        for t in reversed(range(T)):  # equation 1 as a recursion, with lambda 0.9
            delta = rho[:, t] * (r_t[:, t] + discount_t[:, t] * v_t[:, t] - v_tm1[:, t])
            q = r_t[:, t] + discount_t[:, t] * (v_t[:, t] + (0.9 * following if t + 1 < T else 0.0))
            advantages[:, t] = rho[:, t] * (q - v_tm1[:, t])
            following = errors[:, t] = delta + discount_t[:, t] * 0.9 * rho[:, t] * following
        targets = errors + v_tm1
        gradient = jax.jit(jax.grad(lambda *x: total(ls.impala_loss(*x, 0.9)), argnums=(0, 2)))(*arrays)
        by_policy = finite_differences(lambda x: -np.mean(advantages * x), log_prob)
        by_value = finite_differences(lambda x: 0.5 * np.mean((targets - x) ** 2), v_tm1)
        np.testing.assert_allclose(gradient[0], by_policy, rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(gradient[1], by_value, rtol=1e-5, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_policy_losses_agree_with_rlax():
    def pairs(logits, a, adv, w, action, dqda):
        log_prob = jax.nn.log_softmax(logits)[jnp.arange(B), a]
        yield ls.policy_gradient_loss(log_prob, adv, w), rlax.policy_gradient_loss(logits, a, adv, w)
        old = log_prob - 0.3 * adv
        expected = rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - old), adv, 0.2)
        yield ls.ppo_clip_loss(log_prob, old, adv, 0.2), expected
        for clip in (None, 0.5):
            expected = jax.vmap(lambda x, g, c=clip: rlax.dpg_loss(x, g, c))(action, dqda)
            yield ls.dpg_loss(action, dqda, clip), jnp.sum(expected, axis=-1).mean()

    discrete = random_arrays(3)(B, A), np.int32([0, 2, 1, 1]), random_arrays(4)(B), np.float32([1.0, 0.5, 0.0, 2.0])
    found = jax.jit(lambda *x: [*pairs(*x)])(*discrete, *CASES["dpg"].arrays)
    for (actual, expected), rtol in zip(found, (1e-5, 1e-5, 1e-4, 1e-4), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=rtol)


# By hand, ratio 2, epsilon 0.2: A = 1 gives min(2, 1.2), A = -1 gives min(-2, -1.2); mean -(1.2 - 2)/2 = 0.4.
def test_ppo_clip_loss_matches_hand_computed_values():
    log_prob, old, gae = np.float32([[LOG2, LOG2], [0.0, 0.0], [1.0, -1.0]])
    loss, gradient = jax.jit(jax.value_and_grad(ls.ppo_clip_loss))(log_prob, old, gae, 0.2)
    np.testing.assert_allclose(loss, 0.4, rtol=1e-6)
    # Clipping stops the gradient of the gain but not of the loss: d/dlogp of -(-2)/2 is 1.
    np.testing.assert_allclose(gradient, [0.0, 1.0], rtol=1e-6)


# By hand, b = (1/2, 1/2), pi = (1/4, 3/4), action 0: the ratio is 1/2, and
#   KL(b || pi) = (log(2) + log(2/3)) / 2 = log(4/3) / 2;  L = beta KL - A / 2
def test_ppo_penalty_loss_matches_hand_computed_values():
    @jax.jit
    def penalised():
        action = jnp.zeros(1, jnp.int32)
        b_pi, pi = (distrax.Categorical(probs=jnp.array([p])) for p in ([0.5, 0.5], [0.25, 0.75]))
        return ls.ppo_penalty_loss(pi.log_prob(action), b_pi.log_prob(action), jnp.ones(1), 3.0, pi, b_pi)

    total, kl = penalised()
    np.testing.assert_allclose(kl, math.log(4 / 3) / 2, rtol=1e-5)
    np.testing.assert_allclose(total, 3.0 * math.log(4 / 3) / 2 - 0.5, rtol=1e-5)


# By hand, alpha = 2, beta = 0.6:
#   ratio 2, A = 2: gain 2, drift 2 - 2 tanh(1), L = -(4 - drift) = -(2 + 2 tanh 1)
#   ratio 3, A = -1: log gain -log 3 < 0, no drift, L = 3
#   ratio 1/3, A = -2: log gain 2 log 3, drift 2 log 3 - 0.6 tanh(2 log 3 / 0.6), L = 2/3 + drift
def test_dpo_loss_matches_hand_computed_values():
    @jax.jit
    def dpo(ratio, gae):
        return ls.dpo_loss(jnp.log(jnp.full(1, ratio)), jnp.zeros(1), jnp.full(1, gae), 2.0, 0.6)

    np.testing.assert_allclose(dpo(2.0, 2.0), -(2 + 2 * math.tanh(1.0)), rtol=1e-5)
    np.testing.assert_allclose(dpo(3.0, -1.0), 3.0, rtol=1e-5)
    drift = 2 * math.log(3) - 0.6 * math.tanh(2 * math.log(3) / 0.6)
    np.testing.assert_allclose(dpo(1 / 3, -2.0), 2 / 3 + drift, rtol=1e-5)


# By hand: log pi = (-1, -2), G - b = (2, -1): L = -(-2 + 2)/2 = 0, gradient -(2, -1)/2.
# AWR with beta = 2, weights (exp(log 9 / 2), min(exp(9 / 2), 20)): L = (3 + 40)/2.
# Values 1 with the targets 1 and 3: L = 2^2/4.
def test_policy_gradient_losses_match_hand_computed_values():
    log_prob, advantage, ones = np.float32([[-1.0, -2.0], [math.log(9), 9.0], [1.0, 1.0]])
    loss, gradient = jax.jit(jax.value_and_grad(ls.reinforce_loss))(log_prob, np.float32([3.0, 0.0]), ones)
    np.testing.assert_allclose(loss, 0.0)
    np.testing.assert_allclose(gradient, [-1.0, 0.5])
    np.testing.assert_allclose(jax.jit(ls.awr_loss)(log_prob, advantage, 2.0), 21.5, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(ls.baseline_loss)(ones, np.float32([1.0, 3.0])), 1.0)


# By hand, one step, gamma = 1, on policy: advantage = error = r + v' - v = 1 + 2 - 1 = 2.
def test_impala_loss_matches_hand_computed_values_in_both_layouts():
    one = np.ones((1, 1), np.float32)
    losses = jax.jit(ls.impala_loss)(-3 * one, -3 * one, one, 2 * one, one, one)
    np.testing.assert_allclose(losses, (6.0, 2.0))

    arrays, impala_loss = CASES["impala"].arrays, jax.jit(ls.impala_loss, static_argnames="time_major")
    truncation = np.arange(B * T).reshape(B, T) % 2 == 0
    expected = impala_loss(*arrays, truncation_t=truncation)
    actual = impala_loss(*(x.T for x in arrays), truncation_t=truncation.T, time_major=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_surrogate_losses_have_the_policy_gradient_at_the_behaviour_policy():
    log_prob, gae = random_arrays(8)(B), random_arrays(9)(B)
    expected = jax.jit(jax.grad(ls.policy_gradient_loss))(log_prob, gae)
    for surrogate in (ls.ppo_clip_loss, lambda *x: ls.dpo_loss(*x, 0.6)):
        gradient = jax.jit(jax.grad(surrogate))(log_prob, log_prob, gae, 0.2)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
