import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.errors import ConfigError
from stoix_like.networks.layers import NoisyLinear
from stoix_like.networks.utils import parse_initializer
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

    def test_initialisers_are_found_by_name(self):
        layer = NoisyLinear(3, kernel_init="orthogonal", bias_init="ones")
        params = jax.jit(layer.init)(KEY, jnp.ones(3))["params"]
        np.testing.assert_allclose(params["kernel"] @ params["kernel"].T, np.eye(3), atol=1e-5)
        np.testing.assert_array_equal(params["bias"], 1.0)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("lecun_normal(0.5)", "lecun_normal takes no numbers"),
            ("orthogonal(1, 0)", "orthogonal takes one number, its scale"),
            ("constant", "constant takes one number, its value"),
        ],
    )
    def test_numbers_that_an_initialiser_does_not_take_are_refused(self, name, hint):
        with pytest.raises(ConfigError, match=hint):
            parse_initializer(name)

    def test_use_bias_false_creates_no_bias(self):
        layer = NoisyLinear(3, use_bias=False)
        assert set(jax.jit(layer.init)(KEY, jnp.ones(2))["params"]) == {"kernel", "sigma_kernel"}
