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
