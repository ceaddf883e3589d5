import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks.layers import NoisyLinear
from support.compiled import run

KEY = jax.random.key(0)


class TestNoisyLinear:
    def test_noise_comes_from_the_noise_rng(self):
        layer = NoisyLinear(3)
        x = jax.random.normal(KEY, (4, 2, 5))
        params = jax.jit(layer.init)(KEY, x)
        mean = run(layer.apply, params, x)
        np.testing.assert_allclose(mean, x @ params["params"]["kernel"], rtol=1e-5, atol=1e-6)
        first, again = (run(layer.apply, params, x, rngs={"noise": KEY}) for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert (first != run(layer.apply, params, x, rngs={"noise": jax.random.key(1)})).all()

    def test_noise_has_the_expected_variance(self):
        # E[f(e)^2] = E|e| = sqrt(2/pi): Var y = s^2 (2/pi sum x^2 + sqrt(2/pi)), with s = 1/2 / sqrt(2).
        layer = NoisyLinear(1)
        x = jnp.asarray([1.0, 2.0])
        params = jax.jit(layer.init)(KEY, x)
        noisy = jax.jit(jax.vmap(lambda key: layer.apply(params, x, rngs={"noise": key})))
        variance = noisy(jax.random.split(KEY, 20_000)).var()
        np.testing.assert_allclose(variance, (2 / np.pi * 5 + np.sqrt(2 / np.pi)) / 8, rtol=0.05)

    def test_use_bias_false_creates_no_bias(self):
        layer = NoisyLinear(3, use_bias=False)
        assert set(jax.jit(layer.init)(KEY, jnp.ones(2))["params"]) == {"kernel", "sigma_kernel"}
