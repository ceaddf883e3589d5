import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.distributions import (
    Categorical,
    Independent,
    MultiDiscreteActionDistribution,
    MultivariateNormalDiag,
    decouple,
    kl_per_dimension,
)
from support.bounded_policies import tanh_normal
from support.compiled import run

LOGITS = np.asarray([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize("squashed", [False, True])
def test_a_normal_policy_decouples_into_means_and_deviations(squashed):
    """KL(N(m, s) || N(m + d, s)) = d^2 / (2 s^2), and KL(N(m, s) || N(m, r s)) = log r + 1 / (2 r^2) - 1/2."""
    loc, shift = np.asarray([[0.1, -0.3]]), np.asarray([[0.5, 1.0]])
    scale, ratio = np.asarray([[0.5, 2.0]]), np.asarray([[2.0, 0.5]])

    def policy(loc, scale):
        return Independent(tanh_normal(loc, scale), 1) if squashed else MultivariateNormalDiag(loc, scale)

    def measures(loc, scale, moved, stretched, action):
        b_pi, pi = policy(loc, scale), policy(moved, stretched)
        parts = decouple(pi, b_pi)
        kl = {name: kl_per_dimension(b_pi, part) for name, part in parts.items()}
        whole = kl_per_dimension(b_pi, pi).sum(-1), b_pi.kl_divergence(pi)
        log_probs = {
            name: (parts[name].log_prob(action), alone.log_prob(action))
            for name, alone in (("mean", policy(moved, scale)), ("stddev", policy(loc, stretched)))
        }
        grads = {
            name: jax.grad(lambda *x, name=name: decouple(policy(*x), b_pi)[name].log_prob(action).sum(), (0, 1))(
                moved, stretched
            )
            for name in parts
        }
        return kl, whole, log_probs, grads

    arrays = (loc, scale, loc + shift, ratio * scale, np.asarray([[0.2, 0.4]]))
    kl, whole, log_probs, grads = run(measures, *(jnp.asarray(x, jnp.float32) for x in arrays))
    np.testing.assert_allclose(kl["mean"], shift**2 / (2 * scale**2), rtol=1e-5)
    np.testing.assert_allclose(kl["stddev"], np.log(ratio) + 1 / (2 * ratio**2) - 0.5, rtol=1e-5)
    np.testing.assert_allclose(*whole, rtol=1e-5)
    for name, free in (("mean", [True, False]), ("stddev", [False, True])):
        np.testing.assert_allclose(*log_probs[name], rtol=1e-5)
        # Each part has the gradient of its own parameters alone.
        assert [bool((np.asarray(grad) != 0).all()) for grad in grads[name]] == free


def test_other_policies_are_bounded_as_a_whole():
    pi, other = (Categorical(logits=jax.device_put(logits)) for logits in (LOGITS, LOGITS[::-1]))
    assert decouple(pi, other) == {"policy": pi}
    np.testing.assert_allclose(*run(lambda: (kl_per_dimension(pi, other)[:, 0], pi.kl_divergence(other))))
    pis = [run(MultiDiscreteActionDistribution, jax.device_put(x), (1, 2)) for x in (LOGITS, LOGITS[::-1])]
    parts = np.asarray(run(kl_per_dimension, *pis))
    assert parts.shape == (2, 2)
    np.testing.assert_allclose(parts.sum(-1), run(pis[0].kl_divergence, pis[1]), rtol=1e-5)
