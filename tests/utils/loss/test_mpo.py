import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from stoix_like.utils import loss as functions
from support.compiled import Compiled, run
from support.every_loss import LOG2, B, S, random_arrays

ls = Compiled(functions)


def test_mpo_agrees_with_rlax():
    q, adv = jnp.asarray(random_arrays(5)(S, B)), jnp.asarray(random_arrays(6)(B))
    temperature, project = jnp.float32(0.7), functools.partial(jnp.clip, min=1e-8)
    penalty = rlax.LagrangePenalty(temperature, jnp.float32(0.1))
    loss, weights, _ = jax.jit(lambda q: rlax.mpo_compute_weights_and_temperature_loss(q, penalty, project))(q)
    actual, actual_weights = ls.mpo_temperature_loss(q, temperature, 0.1)
    np.testing.assert_allclose(actual, np.mean(loss), rtol=1e-5)
    np.testing.assert_allclose(actual_weights, weights, rtol=1e-5)
    # In most of these sizes the fraction is not a whole number of samples.
    for size, fraction in ((B, 0.5), (7, 0.5), (5, 0.3), (9, 0.9)):
        adv = jnp.asarray(random_arrays(6)(size))
        ones = jnp.ones(size)
        weigh = functools.partial(rlax.vmpo_compute_weights_and_temperature_loss, top_k_fraction=fraction)
        expected = jax.jit(lambda x, ones, weigh=weigh: weigh(x, ones, ones, penalty, project))(adv, ones)
        actual, actual_weights = ls.vmpo_temperature_loss(adv, temperature, 0.1, fraction)
        np.testing.assert_allclose(actual, expected[0], rtol=1e-5)
        np.testing.assert_allclose(actual_weights, expected[1], rtol=1e-5)
    kl = jnp.abs(adv)
    losses = jax.jit(lambda kl: rlax.compute_parametric_kl_penalty_and_dual_loss([(kl, penalty)], project))(kl)
    actual = ls.mpo_alpha_loss(kl, temperature, 0.1)
    np.testing.assert_allclose(actual, [np.mean(loss) for loss in losses], rtol=1e-5)


# By hand, eta = 1, q = (log 1, log 3): weights (1/4, 3/4), L = eps + log 2. V-MPO keeps the larger half: weight
# 1, L = eps + log 3. With a prior proportional to (3, 1), p = (3/4, 1/4): weights (1/2, 1/2), L = eps + log(3/2).
def test_mpo_losses_match_hand_computed_values():
    q, eta = jnp.asarray(np.log([1.0, 3.0]), jnp.float32), jnp.float32(1.0)
    loss, weights = ls.mpo_temperature_loss(q[:, None], eta, 0.5)
    np.testing.assert_allclose(loss, 0.5 + LOG2, rtol=1e-6)
    np.testing.assert_allclose(weights, [[0.25], [0.75]], rtol=1e-6)
    np.testing.assert_allclose(ls.mpo_policy_loss(jnp.array([[-4.0], [-8.0]]), weights), 7.0, rtol=1e-6)
    loss, weights = ls.mpo_temperature_loss(q[:, None], eta, 0.5, jnp.asarray(np.log([[3.0], [1.0]]), jnp.float32))
    np.testing.assert_allclose(loss, 0.5 + math.log(1.5), rtol=1e-6)
    np.testing.assert_allclose(weights, [[0.5], [0.5]], rtol=1e-6)
    loss, weights = ls.vmpo_temperature_loss(q, eta, 0.5)
    np.testing.assert_allclose(loss, 0.5 + math.log(3), rtol=1e-6)
    np.testing.assert_allclose(weights, [0.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(ls.vmpo_policy_loss(jnp.array([-4.0, -8.0]), weights), 8.0, rtol=1e-6)
    # With the whole batch, V-MPO equals MPO with the batch as samples.
    whole = ls.vmpo_temperature_loss(q, eta, 0.5, 1.0)
    np.testing.assert_allclose(whole[0], 0.5 + LOG2, rtol=1e-6)
    assert ls.vmpo_temperature_loss(q, eta, 0.5, 1)[0] == whole[0]
    penalty, dual = ls.mpo_alpha_loss(jnp.array([1.0, 3.0]), jnp.float32(0.5), 0.1)
    np.testing.assert_allclose((penalty, dual), (1.0, 0.5 * (0.1 - 2.0)), rtol=1e-6)


def test_the_mapped_mean_of_the_vmpo_policy_loss_is_the_unmapped_loss():
    adv, x = (jnp.asarray(random_arrays(seed)(2, 3, 4)) for seed in (7, 8))

    def policy_loss(parameter, x, adv, axis_names=()):
        weights = ls.vmpo_temperature_loss(adv, jnp.float32(0.7), 0.1, axis_names=axis_names)[1]
        return ls.vmpo_policy_loss(-jnp.square(x - parameter), weights, axis_names)

    axes = ("device", "batch")

    def shard_loss(x, adv):
        return jax.lax.pmean(jax.value_and_grad(policy_loss)(jnp.float32(0.3), x, adv, axes), axes)

    mapped = jax.jit(jax.vmap(jax.vmap(shard_loss, axis_name="batch"), axis_name="device"))(x, adv)
    expected = run(jax.value_and_grad(policy_loss), jnp.float32(0.3), x.reshape(-1), adv.reshape(-1))
    for actual, one in zip(mapped, expected, strict=True):
        np.testing.assert_allclose(actual, np.full((2, 3), one), rtol=1e-5)


@pytest.mark.parametrize(
    ("fraction", "kept"),
    [(0.53, 53), (0.29, 29), (0.58, 58), (0.535, 53), (1 / 3, 33), (0.999, 99), (0.0, 1), (1.0, 100)],
)
def test_vmpo_keeps_the_fraction_of_decimal_arithmetic(fraction, kept):
    """In float32, 0.53 * 100 is 52.999996."""
    adv = jnp.asarray(np.random.default_rng(0).permutation(100), jnp.float32)
    weights = ls.vmpo_temperature_loss(adv, jnp.float32(1e3), 0.1, fraction)[1]
    assert (np.asarray(weights) > 0).sum() == kept
