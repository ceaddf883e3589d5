import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks import convolution
from stoix_like.networks.convolution import convolve_symmetrically, make_convolution, make_upsampling_convolution
from stoix_like.networks.torso import CNNTorso, VisualResNetTorso
from support.compiled import run
from support.selections import first

KEY = jax.random.key(0)


def assert_equal_in_value_and_gradients(shape, reference, *others, apply=None, x64=False):
    """Compare modules with the parameters of the first one, which `apply(params, x)` may call, in one program."""

    @jax.jit
    def computed(x):
        params = reference.init(KEY, x)
        params["params"] = jax.tree.map(lambda leaf: leaf + 0.1, params["params"])

        def value_and_gradients(function):
            y, pull = jax.vjp(function, params, x)
            return y, pull(jnp.cos(y))

        return [value_and_gradients(function) for function in (apply or reference.apply, *(o.apply for o in others))]

    with jax.enable_x64(x64):
        expected, *found = computed(np.random.default_rng(0).normal(size=shape))
    for values in found:
        assert_close(values, expected, 1e-6 if x64 else 1e-5)


def assert_close(found, expected, tolerance=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), found, expected)


@pytest.mark.parametrize(
    ("kernel", "strides", "size", "padding"),
    first(
        2,
        [
            ((3, 3), (1, 1), (10, 10), "SAME"),
            ((2, 3), (3, 1), (7, 8), "VALID"),
            ((3, 3), (2, 2), (10, 9), "SAME"),
            ((2, 3), (3, 1), (7, 8), "SAME"),
            ((3, 3), (2, 2), (6, 6), ((2, 0), (1, 3))),
        ],
    ),
)
def test_slices_equal_a_convolution_in_value_and_gradients(kernel, strides, size, padding):
    sliced = make_convolution(4, kernel, strides, sliced=True, padding=padding)
    assert_equal_in_value_and_gradients((3, *size, 2), nn.Conv(4, kernel, strides, padding), sliced)


@pytest.mark.parametrize("shape", [(6, 6, 2), (2, 3, 6, 6, 2), (0, 6, 6, 2)])
def test_slices_accept_any_number_of_leading_axes(shape):
    @jax.jit
    def outputs(x):
        params = nn.Conv(4, (3, 3)).init(KEY, jnp.zeros((6, 6, 2)))
        return [layer.apply(params, x) for layer in (make_convolution(4, (3, 3), sliced=True), nn.Conv(4, (3, 3)))]

    assert_close(*outputs(np.random.default_rng(0).normal(size=shape)))


@pytest.mark.parametrize("arguments", [{"kernel_dilation": 2}, {"feature_group_count": 2}])
def test_slices_refuse_dilations_and_groups(arguments):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        make_convolution(4, (3, 3), sliced=True, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("torso", "arguments"),
    [(CNNTorso, ((4, 8), (3, (2, 3)), (1, (2, 1)), "tanh", True)), (VisualResNetTorso, ((4, 4), (1, 1), "tanh"))],
)
def test_torsos_have_the_same_parameters_and_outputs_on_every_platform(torso, arguments):
    native, sliced = (torso(*arguments, hidden_sizes=(4,), sliced=sliced) for sliced in (False, True))
    params = [run(module.init, KEY, jnp.zeros((2, 10, 10, 3))) for module in (native, sliced)]
    jax.tree.map(np.testing.assert_array_equal, *params)
    # Float32 sums of cancelling terms differ by more with their order.
    assert_equal_in_value_and_gradients((2, 10, 10, 3), native, sliced, x64=True)


@pytest.mark.parametrize(
    ("platform", "expected"), [("cpu", convolution.convolve_slices), ("gpu", convolve_symmetrically), ("tpu", None)]
)
def test_the_platform_selects_the_computation(monkeypatch, platform, expected):
    monkeypatch.setattr(convolution.jax, "default_backend", lambda: platform)
    assert make_convolution(4, (3, 3)).conv_general_dilated is expected
    assert make_convolution(4, (3, 3), sliced=platform != "cpu").conv_general_dilated is not expected


@pytest.mark.parametrize("kernel", [(3, 4), pytest.param((5, 5), marks=pytest.mark.slow)])
def test_an_upsampling_convolution_equals_one_of_repeated_pixels(kernel):
    plain = make_convolution(5, kernel, sliced=False)
    upsampling = [make_upsampling_convolution(5, kernel, sliced) for sliced in (False, True)]

    def apply(params, x):
        return plain.apply(params, x.repeat(2, axis=-2).repeat(2, axis=-3))

    assert_equal_in_value_and_gradients((2, 3, 4, 3), plain, *upsampling, apply=apply)


def test_dilated_kernels_keep_their_padding():
    x, layout = jnp.ones((1, 10, 10, 3)), {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "rhs_dilation": (2, 2)}
    found, expected = (
        convolve(x, jnp.ones((3, 3, 3, 4)), (2, 2), "SAME", **layout)
        for convolve in (convolve_symmetrically, jax.lax.conv_general_dilated)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("size", "kernel", "stride"), [(10, 3, 2), (9, 3, 2), (8, 4, 2), (7, 2, 1), (84, 8, 4)])
def test_padding_is_the_same_before_and_behind_with_equal_results(size, kernel, stride):
    """`SAME` pads (ceil(10 / 2) - 1) 2 + 3 - 10 = 1 pixel behind 10; before it, a kernel of 4 has a zero."""
    keys = jax.random.split(jax.random.key(0), 2)
    images, weights = jax.random.normal(keys[0], (2, size, size, 3)), jax.random.normal(keys[1], (kernel, kernel, 3, 4))
    layout = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    functions = convolve_symmetrically, jax.lax.conv_general_dilated

    def gradients(convolve):
        def loss(images, weights):
            return jnp.sum(convolve(images, weights, (stride, stride), "SAME", **layout) ** 2)

        return jax.value_and_grad(loss, (0, 1))(images, weights)

    for found, expected in zip(*map(jax.tree.leaves, map(gradients, functions)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    traced = jax.make_jaxpr(lambda x: convolve_symmetrically(x, weights, (stride, stride), "SAME", **layout))(images)
    called = str(traced)
    ((before, behind),) = {*re.findall(r"padding=\(\((\d+), (\d+)\), \(\1, \2\)\)", called)}
    assert before == behind
