import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils.accelerate.columns import argmax
from stoix_like.utils.accelerate.stored import relu, tanh

X = jnp.asarray([-2.0, -0.0, 0.0, 0.5, 3.0])


@pytest.mark.parametrize(("function", "reference"), [(relu, jax.nn.relu), (tanh, jnp.tanh)])
def test_activations_on_gpus_are_those_of_jax_with_their_gradients(monkeypatch, function, reference):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found, expected = (jax.jvp(one, (X,), (jnp.ones(5),)) for one in (function, reference))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_largest_column_is_the_first_one_and_not_a_number_is_larger(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rows = [[1, 1, 0], [0, 2, 2], [-jnp.inf, -jnp.inf, -jnp.inf], [3, jnp.nan, jnp.nan], [jnp.nan, 9, 0], [0, -1, 5]]
    x = jnp.asarray(rows, jnp.float32).reshape(2, 3, 3)
    assert argmax(x).tolist() == jnp.argmax(x, -1).tolist() == [[0, 1, 0], [1, 0, 2]]
    assert "argmax" not in str(jax.make_jaxpr(argmax)(x))
    assert argmax(x).dtype == jnp.int32
