import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoix_like.networks.distributions import AffineTanhTransformedDistribution, squash
from support.bounded_policies import beta, tanh_normal
from support.compiled import run

KEY = jax.random.key(0)


def expect_normal(function, loc, scale):
    """Compute E[f(x)] for x ~ N(loc, scale) by fine numerical integration in float64."""
    t = np.linspace(-12.0, 12.0, 200_001)
    return np.trapezoid(np.asarray(function(loc + scale * t) * np.exp(-0.5 * t**2), np.float64), t) / np.sqrt(2 * np.pi)


@jax.jit
def squash_and_stretch(low, high):
    x = jnp.asarray([-np.inf, -30.0, -9.0, -1.0, 0.0, 5.0, 8.5, 9.0, 30.0, np.inf], jnp.float32)
    return squash(x, low, high), beta(jnp.full(10, 2.0), 2.0, low, high)._forward(jnp.linspace(0.0, 1.0, 10))


def test_kl_divergence_of_squashed_normals_equals_that_of_the_normals():
    first, second = tanh_normal(0.3, 0.5), tanh_normal(-0.2, 0.9)
    # log(s2/s1) + (s1^2 + (m1-m2)^2) / (2 s2^2) - 1/2
    expected = np.log(0.9 / 0.5) + (0.25 + 0.25) / (2 * 0.81) - 0.5
    np.testing.assert_allclose(run(first.kl_divergence, second), expected, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="no KL divergence"):
        first.kl_divergence(distrax.Normal(0.0, 1.0))


class TestTanhNormal:
    def test_log_prob_agrees_with_the_change_of_variables(self):
        pi = tanh_normal(0.4, 0.8, -2.0, 4.0)
        x = np.linspace(-3.5, 3.5, 41)

        @jax.jit
        def both(x):
            slope = jax.vmap(jax.grad(lambda x: squash(x, -2.0, 4.0)))(x)
            return pi.log_prob(squash(x, -2.0, 4.0)), distrax.Normal(0.4, 0.8).log_prob(x) - jnp.log(slope)

        np.testing.assert_allclose(*both(x), rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    def test_log_prob_is_finite_at_and_beyond_the_ends(self, dtype):
        numbers = [-100.0, -3.0, 0.0, 50.0], [1e-3, 0.5, 20.0], [-5.0, -1.0, 0.0, 0.99999994, 1.0, 1.0001]
        grid = np.meshgrid(*(np.asarray(x, dtype) for x in numbers))

        @jax.jit
        def log_prob_and_gradients(loc, scale, value):
            log_prob, vjp = jax.vjp(lambda *parameters: tanh_normal(*parameters).log_prob(value), loc, scale)
            return log_prob, *vjp(jnp.ones_like(log_prob))

        for result in log_prob_and_gradients(*grid):
            assert np.isfinite(result).all()

    def test_ratio_is_one_only_with_log_prob_on_both_sides(self):
        # With a scale of 6, half of the samples are in the end zones.
        pi = tanh_normal(np.zeros(1, np.float32), np.full(1, 6.0, np.float32))

        @jax.jit
        def act(pi):
            samples, exact = pi.sample_and_log_prob(seed=KEY, sample_shape=500)
            return samples, exact, pi.log_prob(samples)

        samples, exact, acted = jax.device_get(act(pi))
        np.testing.assert_allclose(jax.jit(lambda pi: pi.log_prob(samples))(pi), acted, rtol=1e-6)
        in_end_zone = np.abs(samples) > 0.999
        assert in_end_zone.mean() > 0.3
        assert np.abs(exact - acted)[in_end_zone].max() > 0.5

    @pytest.mark.parametrize("traced", [(0,), (1, 2), (0, 1, 2)])
    def test_bounds_and_epsilon_may_be_traced(self, traced):
        numbers = (-1.5, 2.0, 1e-2)
        values = np.asarray([[-1.5, 0.3], [1.999, 2.0]], np.float32)

        def results(*numbers):
            normal = distrax.Normal(jnp.asarray([0.3, -0.1]), jnp.ones(2))
            pi = AffineTanhTransformedDistribution(normal, *numbers)
            stepwise = jax.vmap(lambda pi, value: pi.log_prob(value))(pi, values[0])
            return pi.log_prob(values), pi.entropy(), pi.mean(), pi.sample(seed=KEY), stepwise

        def partly(given):
            return results(*(given[i] if i in traced else x for i, x in enumerate(numbers)))

        for x, y in zip(*jax.jit(lambda given: (partly(given), results(*numbers)))(np.asarray(numbers)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)

    # No subnormal numbers: XLA flushes them to zero.
    @settings(max_examples=20, deadline=None)
    @given(low=st.floats(-1e3, 1e3, width=32, allow_subnormal=False), width=st.floats(0.125, 1e3, width=32))
    def test_results_stay_within_bounds_despite_rounding(self, low, width):
        low, high = np.float32(low), np.float32(low) + np.float32(width)
        for y in squash_and_stretch(float(low), float(high)):
            assert (np.asarray(y) >= low).all()
            assert (np.asarray(y) <= high).all()

    def test_end_zone_density_is_its_probability_over_its_width(self):
        # P(y > 1 - eps) = P(x > atanh(1 - eps)), divided by the width eps of the zone.
        mass = run(distrax.Normal(3.0, 1.0).survival_function, np.arctanh(0.999))
        log_prob = run(tanh_normal(3.0, 1.0).log_prob, 1.0)
        np.testing.assert_allclose(log_prob, np.log(np.divide(mass, 1e-3)), rtol=1e-4)

    def test_sample_and_log_prob_is_exact_and_finite(self):
        pi = tanh_normal(jnp.asarray([0.0, 2.0]), jnp.asarray([0.5, 6.0]), (-1.0, 0.0), (1.0, 9.0))
        samples, log_prob = jax.device_get(run(pi.sample_and_log_prob, seed=KEY, sample_shape=2_000))
        inside = np.abs(samples[:, 0]) < 0.998
        expected = np.asarray(jax.jit(pi.log_prob)(samples))
        np.testing.assert_allclose(log_prob[:, 0][inside], expected[:, 0][inside], atol=1e-3)
        assert np.isfinite(log_prob).all()
        assert (samples >= [[-1.0, 0.0]]).all()
        assert (samples <= [[1.0, 9.0]]).all()

    def test_entropy_and_moments_match_numerical_integration(self):
        low, high = -1.0, 3.0
        scales, tolerances = [0.1, 0.5, 1.0, 2.0], np.asarray([1e-5, 1e-4, 3e-3, 6e-2])
        locs = [0.0, 0.5, -2.0]
        pi = tanh_normal(*(g.astype(np.float32) for g in np.meshgrid(locs, scales, indexing="ij")), low, high)
        entropy, mean, variance = jax.device_get(run(lambda: (pi.entropy(), pi.mean(), pi.variance())))

        def affine_tanh(x):
            return low + (high - low) * (1 + np.tanh(x)) / 2

        for i, loc in enumerate(locs):
            for j, scale in enumerate(scales):
                log_slope = expect_normal(lambda x: np.log((high - low) / 2 / np.cosh(x) ** 2), loc, scale)
                expected = 0.5 * np.log(2 * np.pi * np.e * scale**2) + log_slope
                np.testing.assert_allclose(entropy[i, j], expected, atol=tolerances[j])
                expected = expect_normal(affine_tanh, loc, scale)
                np.testing.assert_allclose(mean[i, j], expected, atol=2e-3)
                second = expect_normal(lambda x: affine_tanh(x) ** 2, loc, scale)
                np.testing.assert_allclose(variance[i, j], second - expected**2, atol=2e-2)

    def test_entropy_gradient_matches_the_slope(self):
        gradient = run(jax.grad(lambda loc: tanh_normal(loc, 1e-4).entropy()), 0.6)
        # As the scale goes to zero, d/dloc E[log(1 - tanh^2)] = -2 tanh(loc).
        np.testing.assert_allclose(gradient, -2 * np.tanh(0.6), rtol=1e-4)

    def test_base_distributions_other_than_normal_need_a_seed_for_entropy(self):
        pi = AffineTanhTransformedDistribution(distrax.Logistic(0.0, 1.0), -1.0, 1.0)
        with pytest.raises(ValueError, match="pass a seed"):
            pi.entropy()
        with pytest.raises(NotImplementedError, match="moments"):
            pi.mean()
        assert np.isfinite(run(lambda: (pi.entropy(seed=KEY), pi.log_prob(1.0)))).all()

    def test_mode_is_the_squashed_mean(self):
        np.testing.assert_allclose(run(tanh_normal(0.5, 1.0, 0.0, 2.0).mode), 1 + np.tanh(0.5), rtol=1e-6)
