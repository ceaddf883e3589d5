import math

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.utils import loss as ls

# Probabilities (1/2, 1/2) and (1/4, 3/4): KL = 1/2 ln 2 + 1/2 ln(2/3) = 1/2 ln(4/3). Two equal latents: ln(4/3).
POSTERIOR = jnp.log(jnp.array([[0.5, 0.5], [0.5, 0.5]]))
PRIOR = jnp.log(jnp.array([[0.25, 0.75], [0.25, 0.75]])) + 3.0
KL = math.log(4.0 / 3.0)


def _gradients(index, free_nats):
    def loss(posterior, prior):
        return ls.kl_balance_loss(posterior, prior, free_nats)[index]

    return jax.grad(loss, (0, 1))(POSTERIOR, PRIOR)


def test_divergences_are_summed_over_latents_and_bounded_by_the_free_nats():
    np.testing.assert_allclose(ls.kl_balance_loss(POSTERIOR, PRIOR, 0.0), [KL, KL], rtol=1e-6)
    # 0.2 is less than the sum over both latents, ln(4/3) = 0.288, and more than either of them, 0.144.
    np.testing.assert_allclose(ls.kl_balance_loss(POSTERIOR, PRIOR, 0.2), [KL, KL], rtol=1e-6)
    np.testing.assert_allclose(ls.kl_balance_loss(POSTERIOR, PRIOR, 1.0), [1.0, 1.0])
    batch = jnp.broadcast_to(POSTERIOR, (3, 4, 2, 2)), jnp.broadcast_to(PRIOR, (3, 4, 2, 2))
    losses = jax.vmap(lambda free: ls.kl_balance_loss(*batch, free))(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(losses[0], np.broadcast_to([[[KL]], [[1.0]]], (2, 3, 4)), rtol=1e-6)


# d KL / d prior logits = prior - posterior = (-1/4, 1/4); with p = (1/2, 1/2) and KL = 1/2 ln(4/3) of one latent,
# d KL / d posterior logits = p (ln(p / q) - KL) = (1/2 (ln 2 - 1/2 ln(4/3)), ...) = (ln(3) / 4, -ln(3) / 4).
def test_the_dynamics_loss_trains_the_prior_and_the_representation_loss_the_posterior():
    posterior, prior = _gradients(0, 0.0)
    np.testing.assert_array_equal(posterior, 0.0)
    np.testing.assert_allclose(prior, [[-0.25, 0.25]] * 2, rtol=1e-5)
    posterior, prior = _gradients(1, 0.0)
    np.testing.assert_array_equal(prior, 0.0)
    np.testing.assert_allclose(posterior, [[math.log(3.0) / 4.0, -math.log(3.0) / 4.0]] * 2, rtol=1e-5)


def test_below_the_free_nats_there_is_no_gradient():
    for index in (0, 1):
        np.testing.assert_array_equal(_gradients(index, 1.0), 0.0)
