import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils import loss as ls
from stoix_like.utils.accelerate import columns
from stoix_like.utils.loss.common import largest_values, probability_ratio, values_of_actions
from support.compiled import run
from support.every_loss import LOG2


def test_the_probability_ratio_is_linear_where_it_would_overflow():
    ratio = jax.jit(jax.vmap(jax.value_and_grad(probability_ratio), (0, None)))
    values, slopes = map(np.asarray, ratio(np.float32([0.0, 19.9, 20.1, 100.0, 1e4]), np.float32(0.0)))
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all()
    np.testing.assert_allclose(slopes[:2], values[:2], rtol=1e-5)
    np.testing.assert_allclose(slopes[2:], math.exp(20.0), rtol=1e-5)


def test_the_divergence_estimate_is_bounded_like_the_ratio():
    """By hand, r - 1 - log r: 1 - log 2 for r = 2; exp(88.8) overflows; a log-ratio of -50 gives 49."""
    estimates = jax.jit(jax.vmap(jax.value_and_grad(ls.approximate_kl)))
    log_ratios = np.float32([LOG2, -50.0, 89.0, 1e4, 3e38, -3e38])[:, None] * np.ones(8, np.float32)
    values, slopes = map(np.asarray, estimates(log_ratios, np.zeros_like(log_ratios)))
    np.testing.assert_allclose(values[:2], [1 - LOG2, 49.0], rtol=1e-6)
    for log_ratio, value, slope in zip(log_ratios[:, 0], values, slopes, strict=True):
        assert np.isfinite(value) & np.isfinite(slope).all(), log_ratio


def test_the_divergence_estimate_has_no_gradient_of_the_behaviour_policy():
    """By hand: d(r - 1 - log r) / d log pi = r - 1, which is 1 for r = 2."""
    slopes = jax.jit(jax.grad(ls.approximate_kl, argnums=(0, 1)))(np.float32([LOG2]), np.float32([0.0]))
    np.testing.assert_allclose(slopes, [[1.0], [0.0]], rtol=1e-6)


@pytest.mark.usefixtures("without_type_checks")
def test_the_divergence_estimate_refuses_log_probabilities_that_would_broadcast():
    with pytest.raises(ValueError, match=r"b_log_prob.shape=\(4, 1\)"):
        ls.approximate_kl(np.zeros(4, np.float32), np.zeros((4, 1), np.float32))


@pytest.mark.parametrize("num_actions", [1, 3, 20])
def test_values_of_actions_are_the_same_in_columns(num_actions, monkeypatch):
    values = np.random.default_rng(0).normal(size=(5, num_actions)).astype(np.float32)
    values[:, 1:2] = -np.inf
    actions = jnp.asarray(np.arange(5, dtype=np.int32) % num_actions)

    def selected(values):
        chosen, slopes = jax.value_and_grad(lambda v: jnp.sum(values_of_actions(v, actions)[0::2]))(values)
        return values_of_actions(values, actions), largest_values(values), chosen, slopes

    values = jnp.asarray(values)
    expected = run(selected, values)
    monkeypatch.setattr(columns, "on_cpu", lambda: False)
    jax.tree.map(np.testing.assert_array_equal, run(selected, values), expected)


def test_gradients_of_values_of_actions_need_no_order():
    """A deterministic GPU adds one by one where places may be equal."""
    gradient = jax.grad(lambda values: jnp.sum(values_of_actions(values, jnp.arange(5))))
    program = str(jax.make_jaxpr(gradient)(np.zeros((5, 20), np.float32)))
    assert "unique_indices=True" in program.partition("scatter-add[")[2]


# Probabilities (1/2, 1/2) and (1/4, 3/4): KL = 1/2 ln 2 + 1/2 ln(2/3) = 1/2 ln(4/3). Two equal latents: ln(4/3).
POSTERIOR, PRIOR = jax.device_put([np.log([[0.5, 0.5]] * 2), np.log([[0.25, 0.75]] * 2) + 3.0])
KL = math.log(4.0 / 3.0)


@jax.jit
def _gradients(free_nats):
    """Return the gradients of both losses, each of the posterior and the prior."""
    return jax.jacrev(lambda *x: ls.kl_balance_loss(*x, free_nats), (0, 1))(POSTERIOR, PRIOR)


def test_divergences_are_summed_over_latents_and_bounded_by_the_free_nats():
    batch = jax.device_put([np.broadcast_to(x, (3, 4, 2, 2)) for x in (POSTERIOR, PRIOR)])
    losses = jax.jit(jax.vmap(lambda free: ls.kl_balance_loss(*batch, free)))(np.float32([0.0, 0.2, 1.0]))
    # 0.2 is less than the sum over both latents, ln(4/3) = 0.288, and more than either of them, 0.144.
    np.testing.assert_allclose(losses, np.broadcast_to([[[KL]], [[KL]], [[1.0]]], (2, 3, 3, 4)), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(losses)[:, 2], 1.0)


# d KL / d prior logits = prior - posterior = (-1/4, 1/4); with p = (1/2, 1/2) and KL = 1/2 ln(4/3) of one latent,
# d KL / d posterior logits = p (ln(p / q) - KL) = (1/2 (ln 2 - 1/2 ln(4/3)), ...) = (ln(3) / 4, -ln(3) / 4).
def test_the_dynamics_loss_trains_the_prior_and_the_representation_loss_the_posterior():
    (posterior, prior), representation = _gradients(0.0)
    np.testing.assert_array_equal(posterior, 0.0)
    np.testing.assert_allclose(prior, [[-0.25, 0.25]] * 2, rtol=1e-5)
    posterior, prior = representation
    np.testing.assert_array_equal(prior, 0.0)
    np.testing.assert_allclose(posterior, [[math.log(3.0) / 4.0, -math.log(3.0) / 4.0]] * 2, rtol=1e-5)


def test_below_the_free_nats_there_is_no_gradient():
    np.testing.assert_array_equal(_gradients(1.0), 0.0)
