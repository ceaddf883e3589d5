import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.torso import CNNTorso, GridTorso, VisualResNetTorso, as_images
from support.selections import first
from support.torsos import assert_any_leading_axes

KEY = jax.random.key(0)
TORSOS = {
    "cnn": CNNTorso((4, 8), (3, (2, 3)), (1, (2, 1)), use_layer_norm=True, hidden_sizes=(4,)),
    "visual_resnet": VisualResNetTorso((4,), (1,), use_layer_norm=True, hidden_sizes=(4,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("torso", TORSOS.values(), ids=TORSOS)
def test_torsos_of_images_accept_any_number_of_leading_axes(torso):
    assert_any_leading_axes(torso, jax.random.normal(KEY, (2, 3, 6, 6, 2)))


class TestImages:
    def test_pixels_are_scaled_to_the_unit_interval(self):
        def results(image):
            return [as_images(image.astype(dtype)) for dtype in (jnp.uint8, jnp.int32, bool, jnp.bfloat16)]

        pixels, counts, flags, rounded = jax.jit(results)(np.asarray([[[0], [255]]], np.uint8))
        np.testing.assert_allclose(np.ravel(pixels), [0.0, 1.0])
        np.testing.assert_allclose(np.ravel(counts), [0.0, 255.0])
        assert pixels.dtype == flags.dtype == jnp.float32
        assert rounded.dtype == jnp.bfloat16

    def test_channel_axis_is_moved_or_added(self):
        moved = jax.eval_shape(lambda x: as_images(x, channel_first=True), np.zeros((7, 3, 4, 5)))
        added = jax.eval_shape(lambda x: as_images(x, has_channels=False), np.zeros((7, 4, 5)))
        assert (moved.shape, added.shape) == ((7, 4, 5, 3), (7, 4, 5, 1))

    def test_channel_first_gives_equal_output(self):
        x = np.random.default_rng(0).normal(size=(2, 6, 6, 3))
        last, first = (CNNTorso((4,), (3,), (1,), hidden_sizes=(4,), channel_first=first) for first in (False, True))
        y, params = jax.jit(last.init_with_output)(KEY, x)
        np.testing.assert_allclose(y, jax.jit(first.apply)(params, np.moveaxis(x, -1, -3)), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(("side", "scale"), first(1, [(9, 3), (4, 1)]))
    def test_the_first_convolution_grows_with_large_images(self, side, scale):
        """9 pixels exceed 4 by a factor of 2.25, rounded up to 3; the second convolution stays as it is."""
        fitted = CNNTorso((2, 2), ((2, 1), 3), (1, 2), hidden_sizes=(4,), max_size=4)
        fixed = CNNTorso((2, 2), ((2 * scale, scale), 3), (scale, 2), hidden_sizes=(4,))
        x = np.random.default_rng(0).normal(size=(1, side, 3, 1))
        y, params = jax.jit(fitted.init_with_output)(KEY, x)
        np.testing.assert_array_equal(y, jax.jit(fixed.apply)(params, x))


def test_cells_of_a_grid_are_embedded_by_the_sum_over_channels():
    torso = GridTorso(embedding_size=2, hidden_sizes=(3,), activation="identity", num_symbols=4)
    grid = np.asarray([[[1, 0], [3, 2]]], np.uint8)
    y, params = jax.device_get(jax.jit(torso.init_with_output)(KEY, grid))
    tables = params["params"]["tables"]["kernel"].reshape(2, 4, 2)
    cells = np.stack([tables[0, 1] + tables[1, 0], tables[0, 3] + tables[1, 2]])
    np.testing.assert_allclose(y, cells.reshape(-1) @ params["params"]["MLPTorso_0"]["Dense_0"]["kernel"], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(torso.apply)(params, grid[None, None]), y[None, None], rtol=1e-5)


def test_symbols_out_of_range_have_no_embedding():
    torso = GridTorso(embedding_size=2, hidden_sizes=(3,), num_symbols=4, has_channels=False)
    y, _ = jax.jit(torso.init_with_output)(KEY, np.asarray([[-1, 4], [5, 100]], np.int32))
    np.testing.assert_array_equal(y, np.zeros(3))


def test_padded_convolutions_for_atari_have_the_size_that_the_guide_names():
    torso = CNNTorso((32, 64, 64), (8, 4, 3), (4, 2, 1), hidden_sizes=(512,))
    params = jax.eval_shape(torso.init, KEY, np.zeros((84, 84, 4)))["params"]
    # 84 / 4 = 21, then 21 / 2 = 11, rounded up; without padding it would be 20, 9 and 7.
    assert params["MLPTorso_0"]["Dense_0"]["kernel"].shape == (11 * 11 * 64, 512)
    # 8,224 + 32,832 + 36,928 in the convolutions, and 7,744 * 512 + 512.
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 4_043_424


@pytest.mark.parametrize(
    ("make", "shape", "words"),
    [
        (lambda: TORSOS["cnn"], (4, 5), "is not an image.*network=mlp"),
        (lambda: CNNTorso((4, 4), (3,), (1,)), (4, 5, 2), "lists of the same length"),
        (lambda: CNNTorso((4,), (3,), (1,), max_size=0), (4, 5, 2), "max_size=0 must be at least 1"),
        (GridTorso, (3, 3, 2), "observations of type float32 are not symbols: choose network=cnn"),
    ],
)
def test_what_does_not_fit_images_is_refused(make, shape, words):
    with pytest.raises(ValueError, match=words):
        jax.jit(make().init)(KEY, np.ones(shape))
