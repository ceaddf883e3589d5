import jax
import numpy as np
import pytest

from stoix_like.utils import loss as ls
from support.every_loss import CASES, LOG2, finite_differences


def test_dpg_gradient_matches_finite_differences():
    action, centre = (x.astype(np.float64) for x in CASES["dpg"].arrays)

    def value(action):  # mean over the batch of a critic
        return np.mean(np.sum(np.sin(action) * centre, axis=-1))

    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(ls.dpg_loss))(action, np.cos(action) * centre)
    np.testing.assert_allclose(gradient, -finite_differences(value, action), rtol=1e-5, atol=1e-9)


# By hand, critics (0, 3) with targets min(4, 2) = 2, gamma 1/2, r = 1: y = 2, errors (2, -1): L = (4 + 1)/2 = 2.5.
# With temperature 4 and log pi = -1/2: y = 1 + (2 + 2)/2 = 3, errors (3, 0): L = 4.5.
def test_actor_critic_losses_match_hand_computed_values():
    @jax.jit
    def losses(q, q_t, r, d, log_prob):
        soft = [ls.sac_critic_loss(q, r, d, q_t, log_prob, temperature) for temperature in (4.0, 0.0)]
        single = ls.td3_critic_loss(q[:, :1], r, d, q_t[:, :1])
        of_both = ls.td3_critic_loss(q, r, d, q_t), *soft, ls.sac_actor_loss(log_prob, q_t, 4.0)
        return of_both, single, ls.td_learning(q[:, 0], r, d, q_t[:, 0], 0.0)

    log_prob = np.float32([-0.5])
    of_both, *single = losses(*np.float32([[[0, 3]], [[4, 2]]]), *np.float32([[1.0], [0.5]]), log_prob)
    np.testing.assert_allclose(of_both, [2.5, 4.5, 2.5, -4.0])
    np.testing.assert_allclose(*single)
    # Entropy 1/2 is below the target 3: L = -2 * (-1/2 + 3), and gradient descent raises the temperature.
    both = jax.jit(jax.value_and_grad(ls.sac_temperature_loss))(np.float32(LOG2), log_prob, 3.0)
    np.testing.assert_allclose(both, (-5.0, -5.0), rtol=1e-6)


def test_target_policy_smoothing_clips_noise_and_actions():
    action, key = np.float32([[0.0, 0.95], [-1.0, 0.3]]), jax.random.key(0)
    smooth = jax.jit(ls.target_policy_smoothing)
    np.testing.assert_array_equal(smooth(key, action, 0.0, 0.5, -1.0, 1.0), action)
    noisy = np.asarray(smooth(key, action, 10.0, 0.5, *np.float32([[-1.0, -0.9], [1.0, 0.9]])))
    assert (np.abs(noisy - action) <= 0.5 + 1e-6).all()
    assert (noisy[:, 1] <= 0.9).all()
    assert (noisy >= -1.0).all()
    assert not np.array_equal(noisy, action)
    assert np.std(smooth(key, np.zeros((1000, 1), np.float32), 0.1, 1.0, -1.0, 1.0)) == pytest.approx(0.1, rel=0.1)


# By hand, gradients (3, 4) of norm 5: L = 25/2 and dL/da = -(3, 4); clipped to norm 1: L = 1/2, -(0.6, 0.8).
def test_dpg_loss_matches_hand_computed_values():
    action, dqda = np.float32([[[1.0, 1.0]], [[3.0, 4.0]]])
    loss_and_gradient = jax.jit(jax.value_and_grad(ls.dpg_loss))
    loss, gradient = loss_and_gradient(action, dqda)
    np.testing.assert_allclose(loss, 12.5)
    np.testing.assert_allclose(gradient, -dqda)
    loss, gradient = loss_and_gradient(action, dqda, 1.0)
    np.testing.assert_allclose(loss, 0.5, rtol=1e-5)
    np.testing.assert_allclose(gradient, -dqda / 5, rtol=1e-5)
    assert float(loss_and_gradient(action, 0 * dqda, 1.0)[0]) == 0.0
