import distrax
import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks.distributions import MultivariateNormalDiag, StateDependentNoise

KEY = jax.random.key(0)
LOGITS = jnp.asarray([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]])


class TestNormal:
    def test_agrees_with_distrax(self):
        loc, scale = LOGITS, jnp.exp(LOGITS)
        ours, theirs = MultivariateNormalDiag(loc, scale), distrax.MultivariateNormalDiag(loc, scale)
        value = jnp.ones_like(loc)
        np.testing.assert_allclose(ours.log_prob(value), theirs.log_prob(value), rtol=1e-5)
        np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-5)
        np.testing.assert_allclose(ours.mean(), loc)
        np.testing.assert_allclose(ours.stddev(), scale, rtol=1e-6)
        np.testing.assert_allclose(ours.kl_divergence(theirs), 0.0, atol=1e-5)

    def test_one_scale_is_broadcast_over_the_batch(self):
        pi = MultivariateNormalDiag(LOGITS, jnp.asarray([1.0, 2.0, 3.0]))
        assert pi.sample(seed=KEY, sample_shape=(4,)).shape == (4, 2, 3)
        assert pi.entropy().shape == (2,)


class TestStateDependentNoise:
    def test_noise_is_linear_in_the_features_for_one_key(self):
        noise_scale = jnp.exp(jax.random.normal(KEY, (4, 3)))
        first, second = jax.random.normal(jax.random.key(1), (2, 4))

        def noise(features):
            return StateDependentNoise(jnp.zeros(3), features, noise_scale, 0.0).sample(seed=KEY)

        np.testing.assert_allclose(noise(first + second), noise(first) + noise(second), rtol=1e-4, atol=1e-5)

    def test_samples_have_the_stated_standard_deviation(self):
        noise_scale = jnp.asarray([[0.5], [1.0]])
        pi = StateDependentNoise(jnp.zeros((2, 1)), jnp.asarray([[2.0, 1.0], [0.0, 0.0]]), noise_scale, 0.5)
        # Variances: 4 * 1/4 + 1 * 1 and the floor, 1/4; of features of zero, the floor alone.
        np.testing.assert_allclose(pi.stddev(), [[1.5], [0.5]], rtol=1e-6)
        samples = pi.sample(seed=KEY, sample_shape=20_000)
        np.testing.assert_allclose(samples.std(0), [[1.5], [0.5]], rtol=0.02)

    def test_log_prob_is_that_of_the_marginal_normal_distribution(self):
        """Features (2, 1), deviations (0.5, 1), floor 0.7: the variance is 4 * 0.25 + 1 + 0.49 = 2.49."""
        pi = StateDependentNoise(jnp.asarray([0.3]), jnp.asarray([2.0, 1.0]), jnp.asarray([[0.5], [1.0]]), 0.7)
        expected = distrax.Normal(0.3, np.sqrt(2.49)).log_prob(jnp.asarray(1.1))
        np.testing.assert_allclose(pi.log_prob(jnp.asarray([1.1])), expected, rtol=1e-5)

    def test_rows_of_a_batch_have_independent_noise(self):
        pi = StateDependentNoise(jnp.zeros((2, 3)), jnp.ones((2, 4)), jnp.ones((4, 3)))
        first, second = pi.sample(seed=KEY)
        assert (first != second).all()
