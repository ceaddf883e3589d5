import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from stoix_like.utils import loss as ls
from support.every_loss import LOG2, B, S, random_arrays


def test_mpo_agrees_with_rlax():
    temperature, project = jnp.float32(0.7), functools.partial(jnp.clip, min=1e-8)
    penalty = rlax.LagrangePenalty(temperature, jnp.float32(0.1))

    def pairs(q, advantages):
        loss, weights, _ = rlax.mpo_compute_weights_and_temperature_loss(q, penalty, project)
        yield ls.mpo_temperature_loss(q, temperature, 0.1), (jnp.mean(loss), weights)
        for adv, fraction in zip(advantages, (0.5, 0.5, 0.3, 0.9), strict=True):
            weigh = functools.partial(rlax.vmpo_compute_weights_and_temperature_loss, top_k_fraction=fraction)
            expected = weigh(adv, jnp.ones_like(adv), jnp.ones_like(adv), penalty, project)
            yield ls.vmpo_temperature_loss(adv, temperature, 0.1, fraction), expected[:2]
        losses = rlax.compute_parametric_kl_penalty_and_dual_loss([(jnp.abs(adv), penalty)], project)
        yield ls.mpo_alpha_loss(jnp.abs(adv), temperature, 0.1), tuple(map(jnp.mean, losses))

    # In most of these sizes the fraction is not a whole number of samples.
    advantages = [random_arrays(6)(size) for size in (B, 7, 5, 9)]
    found = jax.jit(lambda *x: [*pairs(*x)])(random_arrays(5)(S, B), advantages)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), *map(list, zip(*found, strict=True)))


# By hand, eta = 1, q = (log 1, log 3): weights (1/4, 3/4), L = eps + log 2. V-MPO keeps the larger half: weight
# 1, L = eps + log 3. With a prior proportional to (3, 1), p = (3/4, 1/4): weights (1/2, 1/2), L = eps + log(3/2).
def test_mpo_losses_match_hand_computed_values():
    @jax.jit
    def losses(q, log_prob, prior, eta):
        mpo = ls.mpo_temperature_loss(q, eta, 0.5)
        with_prior = ls.mpo_temperature_loss(q, eta, 0.5, prior)
        vmpo = ls.vmpo_temperature_loss(q[:, 0], eta, 0.5)
        whole = [ls.vmpo_temperature_loss(q[:, 0], eta, 0.5, fraction)[0] for fraction in (1.0, 1)]
        policy_losses = ls.mpo_policy_loss(log_prob, mpo[1]), ls.vmpo_policy_loss(log_prob[:, 0], vmpo[1])
        return mpo, with_prior, vmpo, whole, policy_losses

    arrays = np.float32([np.log([[1.0], [3.0]]), [[-4.0], [-8.0]], np.log([[3.0], [1.0]])])
    (loss, weights), with_prior, vmpo, whole, policy_losses = losses(*arrays, np.float32(1.0))
    np.testing.assert_allclose(loss, 0.5 + LOG2, rtol=1e-6)
    np.testing.assert_allclose(weights, [[0.25], [0.75]], rtol=1e-6)
    np.testing.assert_allclose(policy_losses, [7.0, 8.0], rtol=1e-6)
    np.testing.assert_allclose(with_prior[0], 0.5 + math.log(1.5), rtol=1e-6)
    np.testing.assert_allclose(with_prior[1], [[0.5], [0.5]], rtol=1e-6)
    np.testing.assert_allclose(vmpo[0], 0.5 + math.log(3), rtol=1e-6)
    np.testing.assert_allclose(vmpo[1], [0.0, 1.0], rtol=1e-6)
    # With the whole batch, V-MPO equals MPO with the batch as samples.
    np.testing.assert_allclose(whole, [0.5 + LOG2] * 2, rtol=1e-6)
    assert float(whole[0]) == float(whole[1])
    alpha_losses = jax.jit(ls.mpo_alpha_loss)(np.float32([1.0, 3.0]), np.float32(0.5), 0.1)
    np.testing.assert_allclose(alpha_losses, (1.0, 0.5 * (0.1 - 2.0)), rtol=1e-6)


def test_the_mapped_mean_of_the_vmpo_policy_loss_is_the_unmapped_loss():
    adv, x = (random_arrays(seed)(2, 3, 4) for seed in (7, 8))

    def policy_loss(parameter, x, adv, axis_names=()):
        weights = ls.vmpo_temperature_loss(adv, jnp.float32(0.7), 0.1, axis_names=axis_names)[1]
        return ls.vmpo_policy_loss(-jnp.square(x - parameter), weights, axis_names)

    axes = ("device", "batch")

    def shard_loss(x, adv):
        return jax.lax.pmean(jax.value_and_grad(policy_loss)(jnp.float32(0.3), x, adv, axes), axes)

    mapped = jax.jit(jax.vmap(jax.vmap(shard_loss, axis_name="batch"), axis_name="device"))(x, adv)
    expected = jax.jit(jax.value_and_grad(policy_loss))(np.float32(0.3), x.reshape(-1), adv.reshape(-1))
    for actual, one in zip(mapped, expected, strict=True):
        np.testing.assert_allclose(actual, np.full((2, 3), one), rtol=1e-5)


def test_vmpo_keeps_the_fraction_of_decimal_arithmetic():
    """In float32, 0.53 * 100 is 52.999996."""
    kept = {0.53: 53, 0.29: 29, 0.58: 58, 0.535: 53, 1 / 3: 33, 0.999: 99, 0.0: 1, 1.0: 100}

    @jax.jit
    def weights(adv):
        return [ls.vmpo_temperature_loss(adv, jnp.float32(1e3), 0.1, fraction)[1] for fraction in kept]

    found = weights(np.random.default_rng(0).permutation(100).astype(np.float32))
    assert {fraction: np.sum(np.asarray(x) > 0) for fraction, x in zip(kept, found, strict=True)} == kept
