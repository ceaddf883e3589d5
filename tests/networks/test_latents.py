import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks import latents
from stoix_like.networks.distributions import mix_uniform
from support.compiled import run

KEY = jax.random.key(0)


# By hand: softmax(0, ln 3) = (1/4, 3/4); mixed with 20 % of (1/2, 1/2): (0.3, 0.7).
def test_a_uniform_distribution_is_mixed_into_the_probabilities():
    logits, certain = jax.device_put((np.log([[1.0, 3.0]]), np.array([0.0, -1e9])))
    mixed = run(jax.vmap(mix_uniform, (None, 0)), logits, jnp.array([0.2, 0.0]))
    np.testing.assert_allclose(np.exp(mixed)[:, 0], [[0.3, 0.7], [0.25, 0.75]], rtol=1e-5)
    assert jax.eval_shape(lambda: mix_uniform(logits.astype(jnp.bfloat16), 0.01)).dtype == jnp.float32
    # A class without probability keeps a finite logit.
    np.testing.assert_allclose(np.exp(run(mix_uniform, certain, 0.01)), [0.995, 0.005], rtol=1e-5)
    gradient = run(jax.grad(lambda logits: jnp.sum(mix_uniform(logits, 0.0))), certain)
    assert np.isfinite(gradient).all()


def test_samples_are_one_hot_and_follow_the_probabilities():
    probs = jnp.array([0.0, 0.5, 0.2, 0.3, 0.0])
    logits = run(lambda probs: jnp.log(jnp.broadcast_to(probs, (100, 100, 5))), probs)
    samples = np.asarray(run(latents.sample_straight_through, KEY, logits))
    np.testing.assert_allclose(np.sort(samples, axis=-1), np.broadcast_to([0, 0, 0, 0, 1], samples.shape), atol=1e-6)
    # The standard deviation of a mean over 10,000 samples is at most 0.005.
    np.testing.assert_allclose(samples.mean((0, 1)), probs, atol=0.02)
    assert (samples[..., 0] == 0).all()
    np.testing.assert_array_equal(run(lambda logits: latents.mode(logits)[0, 0], logits), [0, 1, 0, 0, 0])


# The sum of all probabilities in float32 may be less than the largest uniform number: no vector is empty.
def test_every_sample_has_a_class_where_the_sum_of_probabilities_is_rounded_down(monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, 1.0))
    assert run(lambda logits: latents.sample_straight_through(KEY, logits)[:, -1].all(), jnp.asarray([[0.0] * 7] * 2))


# d/d logits sum_k w_k p_k = p * (w - sum p w): for p = (1/4, 3/4) and w = (1, 2), by hand
# 1/4 (1 - 7/4) = -3/16 and 3/4 (2 - 7/4) = 3/16.
def test_gradients_are_those_of_the_probabilities():
    def loss(logits):
        return jnp.sum(latents.sample_straight_through(KEY, logits) * jnp.array([1.0, 2.0]))

    gradient = run(jax.grad(loss), jax.device_put(np.log([1.0, 3.0])))
    np.testing.assert_allclose(gradient, [-3 / 16, 3 / 16], rtol=1e-5)
