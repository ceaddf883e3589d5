import dataclasses

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.networks.distributions import Categorical, Independent
from stoix_like.systems.mpo.duals import constrained_policy_loss, make_dual_optimiser, positive
from support.compiled import run
from support.off_policy_runs import algorithm

SMALL = ["system.rollout_length=4", "system.n_step=2", "system.total_batch_size=8"]


def normal(loc, scale):
    return Independent(distrax.Normal(jnp.asarray(loc), jnp.asarray(scale)), 1)


def test_initial_duals_are_the_configured_ones():
    overrides = ("system.init_temperature=0.01", "system.init_alpha_stddev=1000")
    config = algorithm("mpo/ff_mpo", *SMALL, *overrides).config.duals
    duals = run(config.init, normal([[0.0, 0.0]], [[1.0, 1.0]]))
    assert float(positive(duals.temperature)) == pytest.approx(0.01, rel=1e-5)
    np.testing.assert_allclose(positive(duals.alphas["mean"]), [config.init_alpha_mean] * 2, rtol=1e-5)
    np.testing.assert_allclose(positive(duals.alphas["stddev"]), [1000.0] * 2, rtol=1e-5)
    assert run(config.init, Categorical(logits=jnp.zeros((1, 3)))).alphas["policy"].shape == (1,)


def test_learned_values_end_where_their_gradients_vanish():
    """Adam steps by the learning rate of 1 in the direction of the gradients: from -17.5 to -18, and back to -17."""
    optim = make_dual_optimiser(dataclasses.replace(algorithm("mpo/ff_mpo", *SMALL).config.duals, dual_lr=1.0))
    raw = jnp.asarray([-17.5, 2.0])
    state = optim.init(raw)
    down, _ = run(optim.update, jnp.ones(2), state, raw)
    np.testing.assert_allclose(optax.apply_updates(raw, down), [-18.0, 1.0], rtol=1e-4)
    up, _ = optim.update(-jnp.ones(2), state, jnp.asarray([-18.0, 2.0]))
    np.testing.assert_allclose(up, 1.0, rtol=1e-4)


def test_a_multiplier_grows_where_its_bound_is_exceeded():
    """With unit deviations, a mean moved by d has a divergence of d^2 / 2: 0.5 above and 0 below the bound of 0.01.

    The penalty is alpha times the divergence. The gradient of the dual loss alpha (epsilon - KL) by alpha is
    epsilon - KL, and that of softplus multiplies it.
    """
    config = algorithm("mpo/ff_mpo", *SMALL, "system.epsilon_mean=0.01", "system.init_alpha_mean=3").config.duals
    b_pi, pi = normal([[0.0, 0.0]], [[1.0, 1.0]]), normal([[1.0, 0.0]], [[1.0, 1.0]])
    duals = config.init(b_pi)

    def loss(duals, pi):
        return constrained_policy_loss(config, duals, pi, b_pi, lambda part: jnp.zeros(()))

    value, metrics = loss(duals, pi)
    dual = 3.0 * (0.01 - 0.5) + 3.0 * 0.01 + 2 * config.init_alpha_stddev * config.epsilon_stddev
    assert float(value) == pytest.approx(3.0 * 0.5 + dual, rel=1e-4)
    assert float(metrics["kl_mean"]) == pytest.approx(0.25)
    gradient = run(jax.grad(lambda duals: loss(duals, pi)[0]), duals).alphas["mean"]
    slope = 1.0 - np.exp(-3.0)
    np.testing.assert_allclose(gradient, [slope * (0.01 - 0.5), slope * 0.01], rtol=1e-3)
