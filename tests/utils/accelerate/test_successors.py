import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.normalisation import LayerNorm
from stoix_like.schema import INT32_MAX
from stoix_like.utils.accelerate import successors
from stoix_like.utils.accelerate.stored import tanh
from support.compiled import run
from support.platforms import take_accelerator_forms


@pytest.mark.parametrize(
    ("length", "limit", "expected"),
    [
        # At most ceil(T / L) episodes of L steps end in T steps.
        (128, 500, 1),
        (128, 128, 1),
        (128, 100, 2),
        (128, 40, 4),
        (128, INT32_MAX, 1),
        # Of these steps, too many may be truncated, or it is not known how many.
        (128, 31, None),
        (128, None, None),
        (3, 500, None),
    ],
)
def test_the_most_truncations_of_a_rollout(length, limit, expected):
    assert successors.count_truncations(length, limit) == expected


@pytest.mark.parametrize("most", [1, 3])
def test_values_of_kept_successors_are_those_of_all_successors(most):
    # Truncated steps have successors of their own; elsewhere the successor is what is observed next.
    rng = np.random.default_rng(most)
    T, N = 16, 5
    truncated = np.zeros((T, N), bool)
    for n in range(N):
        truncated[rng.choice(T, min(n, most), replace=False), n] = True
    observation = rng.normal(size=(T, N)).astype(np.float32)
    final = rng.normal(size=(T, N)).astype(np.float32)
    following = np.concatenate([observation[1:], final[-1:]])
    successor = np.where(truncated, final, following)

    @jax.jit
    def values_of_kept(observation, successor, truncated):
        slots, count = successors.no_successors(jnp.zeros(N), most), jnp.zeros(N, jnp.int32)
        for t in range(T):
            slots, count = successors.keep_truncated(slots, count, successor[t], truncated[t])
        kept = successors.with_last(slots, successor[-1])
        assert kept.shape == (most + 1, N)
        squares = (jnp.square(x) for x in (kept, successor))
        return count, [successors.successor_values(x, jnp.square(observation), truncated) for x in squares]

    count, values = values_of_kept(observation, successor, truncated)
    np.testing.assert_array_equal(count, truncated.sum(0))
    np.testing.assert_array_equal(values, [np.square(successor)] * 2)


X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32))


def test_the_gradient_of_a_stored_tanh_is_that_of_jax(monkeypatch):
    expected = run(jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(x) ** 3)), X)
    take_accelerator_forms(monkeypatch)
    jax.tree.map(np.testing.assert_array_equal, run(jax.value_and_grad(lambda x: jnp.sum(tanh(x) ** 3)), X), expected)


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
