import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils import loss as ls
from stoix_like.utils.accelerate import columns
from stoix_like.utils.loss.common import largest_values, probability_ratio, values_of_actions
from support.every_loss import LOG2


def test_the_probability_ratio_is_linear_where_it_would_overflow():
    ratio = jax.vmap(jax.value_and_grad(probability_ratio), (0, None))
    values, slopes = ratio(jnp.array([0.0, 19.9, 20.1, 100.0, 1e4]), jnp.float32(0.0))
    assert np.isfinite(values).all()
    assert (jnp.diff(values) > 0).all()
    np.testing.assert_allclose(slopes[:2], values[:2], rtol=1e-5)
    np.testing.assert_allclose(slopes[2:], math.exp(20.0), rtol=1e-5)


def test_the_divergence_estimate_is_bounded_like_the_ratio():
    """By hand, r - 1 - log r: 1 - log 2 for r = 2; exp(88.8) overflows; a log-ratio of -50 gives 49."""
    zeros = jnp.zeros(1)
    np.testing.assert_allclose(ls.approximate_kl(jnp.full(1, LOG2), zeros), 1 - LOG2, rtol=1e-6)
    np.testing.assert_allclose(ls.approximate_kl(jnp.full(1, -50.0), zeros), 49.0, rtol=1e-6)
    for log_ratio in (89.0, 1e4, 3e38, -3e38):
        estimate, slope = jax.value_and_grad(ls.approximate_kl)(jnp.full(8, log_ratio), jnp.zeros(8))
        assert jnp.isfinite(estimate) & jnp.isfinite(slope).all(), log_ratio


def test_the_divergence_estimate_has_no_gradient_of_the_behaviour_policy():
    """By hand: d(r - 1 - log r) / d log pi = r - 1, which is 1 for r = 2."""
    slopes = jax.grad(ls.approximate_kl, argnums=(0, 1))(jnp.full(1, LOG2), jnp.zeros(1))
    np.testing.assert_allclose(slopes, [[1.0], [0.0]], rtol=1e-6)


@pytest.mark.usefixtures("without_type_checks")
def test_the_divergence_estimate_refuses_log_probabilities_that_would_broadcast():
    with pytest.raises(ValueError, match=r"b_log_prob.shape=\(4, 1\)"):
        ls.approximate_kl(jnp.zeros(4), jnp.zeros((4, 1)))


@pytest.mark.parametrize("num_actions", [1, 3, 20])
def test_values_of_actions_are_the_same_in_columns(num_actions, monkeypatch):
    values = jax.random.normal(jax.random.key(0), (5, num_actions)).at[:, 1:2].set(-jnp.inf)
    actions = jnp.arange(5) % num_actions

    def selected():
        chosen, slopes = jax.value_and_grad(lambda v: jnp.sum(values_of_actions(v, actions)[0::2]))(values)
        return values_of_actions(values, actions), largest_values(values), chosen, slopes

    expected = selected()
    monkeypatch.setattr(columns, "on_cpu", lambda: False)
    jax.tree.map(np.testing.assert_array_equal, selected(), expected)


def test_gradients_of_values_of_actions_need_no_order():
    """A deterministic GPU adds one by one where places may be equal."""
    gradient = jax.grad(lambda values: jnp.sum(values_of_actions(values, jnp.arange(5))))
    assert "unique_indices=True" in str(jax.make_jaxpr(gradient)(jnp.zeros((5, 20)))).partition("scatter-add[")[2]


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
