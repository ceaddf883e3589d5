from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks import convolution
from stoix_like.networks.convolution import make_convolution, make_upsampling_convolution
from stoix_like.networks.torso import CNNTorso, VisualResNetTorso
from support.compiled import run
from support.selections import first

KEY = jax.random.key(0)


def value_and_gradients(module, params, x):
    def loss(params, x):
        y = run(module.apply, params, x)
        return jnp.sum(jnp.sin(y)), y

    (_, y), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x)
    return y, gradients


def assert_close(found, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    ("kernel", "strides", "size", "padding"),
    first(
        3,
        [
            ((3, 3), (1, 1), (10, 10), "SAME"),
            ((3, 3), (2, 2), (10, 9), "SAME"),
            ((2, 3), (3, 1), (7, 8), "VALID"),
            ((2, 3), (3, 1), (7, 8), "SAME"),
            ((3, 3), (2, 2), (6, 6), ((2, 0), (1, 3))),
        ],
    ),
)
def test_slices_equal_a_convolution_in_value_and_gradients(kernel, strides, size, padding):
    x = jax.random.normal(KEY, (3, *size, 2))
    reference = nn.Conv(4, kernel, strides, padding)
    params = jax.jit(reference.init)(KEY, x)
    sliced = make_convolution(4, kernel, strides, sliced=True, padding=padding)
    assert_close(value_and_gradients(sliced, params, x), value_and_gradients(reference, params, x))


@pytest.mark.parametrize("shape", [(6, 6, 2), (2, 3, 6, 6, 2), (0, 6, 6, 2)])
def test_slices_accept_any_number_of_leading_axes(shape):
    @jax.jit
    def outputs(x):
        params = nn.Conv(4, (3, 3)).init(KEY, jnp.zeros((6, 6, 2)))
        return [layer.apply(params, x) for layer in (make_convolution(4, (3, 3), sliced=True), nn.Conv(4, (3, 3)))]

    assert_close(*outputs(np.random.default_rng(0).normal(size=shape)))


@pytest.mark.parametrize("arguments", [{"kernel_dilation": 2}, {"feature_group_count": 2}])
def test_slices_refuse_dilations_and_groups(arguments):
    convolution = make_convolution(4, (3, 3), sliced=True, **arguments)
    with pytest.raises(ValueError, match="dilations or groups are not computed as slices: set sliced=False"):
        jax.jit(convolution.init)(KEY, jnp.zeros((1, 6, 6, 2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("torso", "arguments"),
    [(CNNTorso, ((4, 8), (3, (2, 3)), (1, (2, 1)), "tanh", True)), (VisualResNetTorso, ((4, 4), (1, 1), "tanh"))],
)
def test_torsos_have_the_same_parameters_and_outputs_on_every_platform(torso, arguments):
    x = jax.random.normal(KEY, (2, 10, 10, 3))
    native, sliced = (torso(*arguments, hidden_sizes=(4,), sliced=sliced) for sliced in (False, True))
    params = jax.jit(native.init)(KEY, x)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(sliced.init)(KEY, x), params)
    assert_close(value_and_gradients(sliced, params, x), value_and_gradients(native, params, x))


@pytest.mark.parametrize(("platform", "sliced"), [("cpu", True), ("gpu", False), ("tpu", False)])
def test_the_platform_selects_the_computation(monkeypatch, platform, sliced):
    monkeypatch.setattr(convolution.jax, "default_backend", lambda: platform)
    injected = make_convolution(4, (3, 3)).conv_general_dilated
    assert injected is (convolution.convolve_slices if sliced else None)
    assert make_convolution(4, (3, 3), sliced=not sliced).conv_general_dilated is not injected


@pytest.mark.parametrize("kernel", [(5, 5), (3, 4)])
def test_an_upsampling_convolution_equals_one_of_repeated_pixels(kernel):
    x = jax.random.normal(KEY, (2, 3, 4, 3))
    plain = make_convolution(5, kernel, sliced=False)
    params = plain.init(KEY, x)
    params["params"]["bias"] = jnp.arange(5.0)

    def apply(params, x):
        return plain.apply(params, x.repeat(2, axis=-2).repeat(2, axis=-3))

    expected = value_and_gradients(SimpleNamespace(apply=apply), params, x)
    for sliced in (False, True):
        module = make_upsampling_convolution(5, kernel, sliced)
        assert_close(value_and_gradients(module, params, x), expected)
