import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.distributions import ClippedBeta
from support.bounded_policies import beta
from support.compiled import run
from support.selections import first

KEY = jax.random.key(0)


class TestBeta:
    def test_density_entropy_and_moments_match_closed_form(self):
        # Beta(2, 3): density 12 x (1 - x)^2, mean 2/5, variance 1/25, mode 1/3; stretched to [-1, 3].
        pi = run(beta, 2.0, 3.0, -1.0, 3.0)
        np.testing.assert_allclose(run(pi.log_prob, 1.0), np.log(12 * 0.5 * 0.25 / 4), rtol=1e-5)
        moments = run(lambda pi: (pi.mean(), pi.variance(), pi.mode()), pi)
        np.testing.assert_allclose(moments, (-1 + 4 * 0.4, 16 / 25, -1 + 4 / 3), rtol=1e-5)
        x = np.linspace(1e-9, 1 - 1e-9, 100_001)
        density = 12 * x * (1 - x) ** 2
        entropy = -np.trapezoid(density * np.log(density), x) + np.log(4.0)
        np.testing.assert_allclose(run(pi.entropy), entropy, rtol=1e-4)

    def test_integers_do_not_round_the_ends(self):
        # Beta(2, 3) on [-0.5, 1.5]: 0 is x = 0.25, of density 12 * 0.25 * 0.75^2, and the width is 2.
        log_prob = run(lambda: beta(2.0, 3.0, -0.5, 1.5).log_prob(jnp.zeros((), int)))
        np.testing.assert_allclose(log_prob, np.log(12 * 0.25 * 0.75**2 / 2), rtol=1e-5)

    @pytest.mark.parametrize("dtype", first(1, [jnp.float32, jnp.bfloat16]))
    def test_samples_stay_strictly_inside(self, dtype):
        pi = run(ClippedBeta, *jax.device_put((np.asarray([0.01, 5.0], dtype), np.asarray([0.01, 0.01], dtype))))
        samples, log_probs = jax.device_get(run(pi.sample_and_log_prob, seed=KEY, sample_shape=500))
        assert ((samples > 0) & (samples < 1)).all()
        assert np.isfinite(log_probs).all()

    def test_gradient_is_finite_at_the_ends(self):
        gradient = jax.jit(jax.grad(lambda alpha, value: beta(alpha, 3.0, -2.0, 2.0).log_prob(value)))
        for value in (-2.0, 2.0):
            assert np.isfinite(gradient(1.5, value))

    def test_mode_without_a_peak_is_the_mean(self):
        pi = run(ClippedBeta, jnp.asarray([1.0, 1.0, 3.0]), jnp.asarray([1.0, 3.0, 1.0]))
        np.testing.assert_allclose(run(pi.mode), [0.5, 0.0, 1.0])

    def test_mode_with_one_concentration_below_one_is_the_end_that_the_density_rises_to(self):
        """x^-0.5 (1 - x)^0.2 grows without bound at 0, x^0.2 (1 - x)^-0.5 at 1."""
        pi = run(ClippedBeta, jnp.asarray([0.5, 1.2, 0.1]), jnp.asarray([1.2, 0.5, 4.0]))
        np.testing.assert_array_equal(run(pi.mode), [0.0, 1.0, 0.0])
