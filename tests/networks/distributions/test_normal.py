import distrax
import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks.distributions import MultivariateNormalDiag, StateDependentNoise
from support.compiled import run

KEY = jax.random.key(0)
LOGITS = jax.device_put(np.asarray([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]], np.float32))


class TestNormal:
    def test_agrees_with_distrax(self):
        def results(loc):
            value, scale = jnp.ones_like(loc), jnp.exp(loc)
            ours, theirs = (kind(loc, scale) for kind in (MultivariateNormalDiag, distrax.MultivariateNormalDiag))
            pairs = [(pi.log_prob(value), pi.entropy()) for pi in (ours, theirs)]
            return *pairs, ours.mean(), ours.stddev(), ours.kl_divergence(theirs)

        ours, theirs, mean, stddev, divergence = run(results, LOGITS)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        np.testing.assert_allclose(mean, LOGITS)
        np.testing.assert_allclose(stddev, np.exp(LOGITS), rtol=1e-6)
        np.testing.assert_allclose(divergence, 0.0, atol=1e-5)

    def test_one_scale_is_broadcast_over_the_batch(self):
        pi = run(MultivariateNormalDiag, LOGITS, jnp.asarray([1.0, 2.0, 3.0]))
        assert run(pi.sample, seed=KEY, sample_shape=(4,)).shape == (4, 2, 3)
        assert run(pi.entropy).shape == (2,)


class TestStateDependentNoise:
    def test_noise_is_linear_in_the_features_for_one_key(self):
        def noise(features):
            noise_scale = jnp.exp(jax.random.normal(KEY, (4, 3)))
            return StateDependentNoise(jnp.zeros(3), features, noise_scale, 0.0).sample(seed=KEY)

        first, second = np.random.default_rng(0).normal(size=(2, 4))
        whole, *parts = np.asarray(jax.jit(jax.vmap(noise))(np.stack([first + second, first, second])))
        np.testing.assert_allclose(whole, sum(parts), rtol=1e-4, atol=1e-5)

    def test_samples_have_the_stated_standard_deviation(self):
        parameters = np.zeros((2, 1)), np.asarray([[2.0, 1.0], [0.0, 0.0]]), np.asarray([[0.5], [1.0]])
        pi = run(StateDependentNoise, *jax.device_put(parameters), 0.5)
        # Variances: 4 * 1/4 + 1 * 1 and the floor, 1/4; of features of zero, the floor alone.
        np.testing.assert_allclose(run(pi.stddev), [[1.5], [0.5]], rtol=1e-6)
        samples = np.asarray(run(pi.sample, seed=KEY, sample_shape=20_000))
        np.testing.assert_allclose(samples.std(0), [[1.5], [0.5]], rtol=0.02)

    def test_log_prob_is_that_of_the_marginal_normal_distribution(self):
        """Features (2, 1), deviations (0.5, 1), floor 0.7: the variance is 4 * 0.25 + 1 + 0.49 = 2.49."""
        pi = run(StateDependentNoise, jnp.asarray([0.3]), jnp.asarray([2.0, 1.0]), jnp.asarray([[0.5], [1.0]]), 0.7)
        expected = run(distrax.Normal(0.3, np.sqrt(2.49)).log_prob, 1.1)
        np.testing.assert_allclose(run(pi.log_prob, jnp.asarray([1.1])), expected, rtol=1e-5)

    def test_rows_of_a_batch_have_independent_noise(self):
        pi = run(StateDependentNoise, *jax.device_put((np.zeros((2, 3)), np.ones((2, 4)), np.ones((4, 3)))))
        first, second = np.asarray(run(pi.sample, seed=KEY))
        assert (first != second).all()
