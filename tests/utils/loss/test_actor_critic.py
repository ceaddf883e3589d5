import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.utils import loss as functions
from support.compiled import Compiled, run
from support.every_loss import CASES, LOG2, finite_differences

ls = Compiled(functions)


def test_dpg_gradient_matches_finite_differences():
    action, centre = (x.astype(np.float64) for x in CASES["dpg"].arrays)

    def value(action):  # mean over the batch of a critic
        return np.mean(np.sum(np.sin(action) * centre, axis=-1))

    with jax.enable_x64(True):
        dqda = jnp.asarray(np.cos(action) * centre)
        gradient = run(jax.grad(functions.dpg_loss), jnp.asarray(action), dqda)
    np.testing.assert_allclose(gradient, -finite_differences(value, action), rtol=1e-5, atol=1e-9)


# By hand, critics (1, 3) with targets min(4, 2) = 2, gamma 1/2, r = 1: y = 2, errors (1, -1): L = (1 + 1)/2 = 1.
# With temperature 2 and log pi = -1: y = 1 + (2 + 2)/2 = 3, errors (2, 0): L = 2.
def test_actor_critic_losses_match_hand_computed_values():
    q, r, d, q_t = jnp.array([[1.0, 3.0]]), jnp.ones(1), jnp.full(1, 0.5), jnp.array([[4.0, 2.0]])
    np.testing.assert_allclose(ls.td3_critic_loss(q, r, d, q_t), 1.0)
    np.testing.assert_allclose(ls.sac_critic_loss(q, r, d, q_t, -jnp.ones(1), 2.0), 2.0)
    np.testing.assert_allclose(ls.sac_critic_loss(q, r, d, q_t, -jnp.ones(1), 0.0), 1.0)
    np.testing.assert_allclose(ls.sac_actor_loss(-jnp.ones(1), q_t, 2.0), -4.0)
    # Entropy 1 is below the target 3: L = -2 * (-1 + 3), and gradient descent raises the temperature.
    loss, gradient = run(jax.value_and_grad(functions.sac_temperature_loss), jnp.float32(LOG2), -jnp.ones(1), 3.0)
    np.testing.assert_allclose((loss, gradient), (-4.0, -4.0), rtol=1e-6)
    single = ls.td3_critic_loss(q[:, :1], r, d, q_t[:, :1])
    np.testing.assert_allclose(single, ls.td_learning(q[:, 0], r, d, q_t[:, 0], 0.0))


def test_target_policy_smoothing_clips_noise_and_actions():
    action, key = jnp.array([[0.0, 0.95], [-1.0, 0.3]]), jax.random.key(0)
    noiseless = ls.target_policy_smoothing(key, action, 0.0, 0.5, -1.0, 1.0)
    np.testing.assert_array_equal(noiseless, action)
    noisy = ls.target_policy_smoothing(key, action, 10.0, 0.5, jnp.array([-1.0, -0.9]), jnp.array([1.0, 0.9]))
    noisy = np.asarray(noisy)
    assert (np.abs(noisy - action) <= 0.5 + 1e-6).all()
    assert (noisy[:, 1] <= 0.9).all()
    assert (noisy >= -1.0).all()
    assert not np.array_equal(noisy, action)


# By hand, gradients (3, 4) of norm 5: L = 25/2 and dL/da = -(3, 4); clipped to norm 1: L = 1/2, -(0.6, 0.8).
def test_dpg_loss_matches_hand_computed_values():
    action, dqda = jnp.ones((1, 2)), jnp.array([[3.0, 4.0]])
    loss, gradient = run(jax.value_and_grad(functions.dpg_loss), action, dqda)
    np.testing.assert_allclose(loss, 12.5)
    np.testing.assert_allclose(gradient, -dqda)
    loss, gradient = run(jax.value_and_grad(functions.dpg_loss), action, dqda, 1.0)
    np.testing.assert_allclose(loss, 0.5, rtol=1e-5)
    np.testing.assert_allclose(gradient, -dqda / 5.0, rtol=1e-5)
    assert ls.dpg_loss(action, jnp.zeros((1, 2)), 1.0) == 0.0
