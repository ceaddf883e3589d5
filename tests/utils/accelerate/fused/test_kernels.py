"""Tests of fused perceptrons, whose kernels run here as operations of jax."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils.accelerate.fused.form import Layer, find_form
from stoix_like.utils.accelerate.fused.perceptron import perceptron
from support.compiled import run
from support.selections import first

ACTIVATIONS = {"relu": jax.nn.relu, "silu": jax.nn.silu, "swish": jax.nn.silu, "tanh": jnp.tanh}
# Sizes that are powers of two and others, one block of inputs and several, and tiles of the last hidden layer.
CASES = [
    (17, (256, 256), 6, "relu", False, 70),
    (3, (64, 64), 1, "relu", True, 2200),
    (5, (120, 84), 3, "silu", False, 7),
    (4, (64, 64), 2, "tanh", False, 100),
    (60, (64,), 40, "swish", True, 33),
    (8, (256,), 2, "tanh", False, 40),
]


def make_layers(inputs, widths, outputs, norm, seed=0):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0] if len(shape) > 1 else 4), jnp.float32)

    sides = [inputs, *widths, outputs]
    layers = [Layer(draw(d, f), draw(f)) for d, f in itertools.pairwise(sides)]
    if norm:
        layers[:-1] = [
            layer._replace(scale=1.0 + draw(f), offset=draw(f)) for layer, f in zip(layers, widths, strict=False)
        ]
    return layers


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(dtype, a, b):
    """Multiply matrices with operands rounded to a dtype, also in the gradient: what a matrix unit does."""
    return rounded(a, dtype) @ rounded(b, dtype)


def rounded(x, dtype):
    return x if dtype == "float32" else x.astype(dtype).astype(x.dtype)


product.defvjp(
    lambda dtype, a, b: (product(dtype, a, b), (a, b)),
    lambda dtype, ab, dy: (product(dtype, dy, ab[1].T), product(dtype, ab[0].T, dy)),
)


def reference(activation, dtype, layers, x):
    """The layers of flax: dense, layer normalisation with epsilon 1e-6, activation; the last one dense alone."""
    *hidden, last = layers
    for layer in hidden:
        x = product(dtype, x, layer.kernel) + layer.bias[None]
        if layer.scale is not None:
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
            x = x * layer.scale[None] + layer.offset[None]
        x = ACTIVATIONS[activation](x)
    return x @ last.kernel + last.bias[None]


def check_close(found, expected, tolerance):
    """Compare arrays, each relative to its largest entry."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-3)])
@pytest.mark.parametrize(("inputs", "widths", "outputs", "activation", "norm", "batch"), first(2, CASES))
def test_outputs_and_gradients_are_those_of_the_layers_in_float64(
    inputs, widths, outputs, activation, norm, batch, dtype, tolerance
):
    layers = make_layers(inputs, widths, outputs, norm)
    rng = np.random.default_rng(1)
    x, dy = (jnp.asarray(rng.normal(size=(batch, size)), jnp.float32) for size in (inputs, outputs))
    form = find_form(layers, activation, dtype, interpret=True)

    def gradients(function, layers, x, dy):
        y, pullback = jax.vjp(function, layers, x)
        return y, pullback(dy)

    found = run(gradients, partial(perceptron, form), layers, x, dy)
    with jax.enable_x64():
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (layers, x, dy))
        expected = run(gradients, partial(reference, activation, dtype), *jax.tree.map(jnp.asarray, exact))
    check_close(found, expected, tolerance)


def test_only_the_gradients_that_are_needed_are_computed():
    given = make_layers(4, (64, 64), 2, False), jnp.ones((5, 4))
    form = find_form(given[0], "tanh", interpret=True)
    some = [jax.grad(lambda *given: jnp.sum(perceptron(form, *given) ** 2), needed) for needed in (0, 1, (0, 1))]
    assert [str(jax.make_jaxpr(gradient)(*given)).count("pallas_call") for gradient in some] == [2, 2, 3]
    layers, x, both = run(lambda *given: [gradient(*given) for gradient in some], *given)
    check_close((layers, x), both, 0)


def test_networks_side_by_side_and_batches_with_more_axes_are_like_each_alone():
    each = [make_layers(4, (64, 64), 2, False, seed) for seed in (0, 1)]
    x = jax.random.normal(jax.random.key(0), (3, 2, 4))
    form = find_form(each[0], "tanh", interpret=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    together = run(jax.vmap(partial(perceptron, form), (0, None)), stacked, x)
    expected = [run(reference, "tanh", "float32", layers, x.reshape(6, 4)).reshape(3, 2, 2) for layers in each]
    check_close([*together], expected, 1e-5)
