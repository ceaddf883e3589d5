import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed
from stoix_like.networks.distributions import Categorical, MixedActionDistribution, MultivariateNormalDiag

SPACE = Mixed(Dict({"choice": Discrete(2), "push": Box(-np.inf, np.inf, (2,))}))


def mixed(probability, mean):
    choice = Categorical(probs=jnp.array([[1 - probability, probability]]))
    push = MultivariateNormalDiag(jnp.array([[mean, 0.0]]), jnp.ones((1, 2)))
    return MixedActionDistribution([choice, push], SPACE)


def test_parts_are_independent():
    pi = mixed(0.25, 1.0)
    # log 0.25 + log N(2; 1, 1) + log N(0; 0, 1) = -1.3863 - (0.5 + 0.9189) - 0.9189.
    np.testing.assert_allclose(pi.log_prob(jnp.array([[1.0, 2.0, 0.0]])), [-3.7242], atol=1e-4)
    # H = -(0.75 log 0.75 + 0.25 log 0.25) + 2 (0.5 + 0.9189) = 0.5623 + 2.8379.
    np.testing.assert_allclose(pi.entropy(), [3.4002], atol=1e-4)
    np.testing.assert_array_equal(pi.mode(), [[0.0, 1.0, 0.0]])
    # KL = 0.75 log(0.75 / 0.5) + 0.25 log(0.25 / 0.5) + 1 / 2 = 0.1308 + 0.5.
    np.testing.assert_allclose(pi.kl_divergence(mixed(0.5, 0.0)), [0.6308], atol=1e-4)


def test_samples_have_the_frequencies_of_the_parts():
    samples, log_probs = mixed(0.25, 1.0).sample_and_log_prob(seed=jax.random.key(0), sample_shape=(4000,))
    assert samples.shape == (4000, 1, 3)
    np.testing.assert_allclose(log_probs, mixed(0.25, 1.0).log_prob(samples), rtol=1e-5)
    # Standard errors: 0.007 for the choice, 0.016 for the mean.
    np.testing.assert_allclose(samples.mean((0, 1)), [0.25, 1.0, 0.0], atol=0.06)
    assert set(np.unique(samples[..., 0])) == {0.0, 1.0}
