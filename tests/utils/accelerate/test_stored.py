import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.normalisation import LayerNorm
from stoix_like.utils.accelerate.stored import tanh
from support.platforms import take_accelerator_forms

X = jax.random.normal(jax.random.key(0), (5, 7))


def test_the_gradient_of_a_stored_tanh_is_that_of_jax(monkeypatch):
    expected = jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(x) ** 3))(X)
    take_accelerator_forms(monkeypatch)
    jax.tree.map(np.testing.assert_array_equal, jax.value_and_grad(lambda x: jnp.sum(tanh(x) ** 3))(X), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_layer_normalisation_is_that_of_flax(dtype, monkeypatch):
    take_accelerator_forms(monkeypatch)
    variables = {"params": {"scale": jnp.linspace(0.5, 2.0, 7), "bias": jnp.linspace(-1.0, 1.0, 7)}}
    assert jax.tree.structure(LayerNorm().init(jax.random.key(0), X)) == jax.tree.structure(variables)

    def normalised(layer):
        return jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(layer(dtype=dtype).apply(*args))), (0, 1))(variables, X)

    tolerance = 1e-5 if dtype is None else 2e-2
    for a, b in zip(*map(jax.tree.leaves, (normalised(LayerNorm), normalised(nn.LayerNorm))), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
