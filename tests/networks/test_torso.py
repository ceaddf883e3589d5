import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

from stoix_like.networks.inputs import EmbeddingActionInput, EmbeddingActionOnehotInput
from stoix_like.networks.torso import (
    BatchRenormMLPTorso,
    BroTorso,
    CNNTorso,
    GridTorso,
    MLPTorso,
    NoisyMLPTorso,
    ResNetTorso,
    SimBaTorso,
    SimBaV2Torso,
    VisualResNetTorso,
    as_images,
)
from support.compiled import run

KEY = jax.random.key(0)
VECTORS = {
    "mlp": MLPTorso((8, 4)),
    "mlp_norm": MLPTorso((8, 4), "silu", True, "lecun_normal", False),
    "noisy": NoisyMLPTorso((8, 4)),
    "batch_renorm": BatchRenormMLPTorso((8, 4)),
    "resnet": ResNetTorso(4, 1),
    "simba": SimBaTorso(4, 1),
    "simba_v2": SimBaV2Torso(4, 1),
    "bro": BroTorso(4, 1),
}
IMAGES = {
    "cnn": CNNTorso((4, 8), (3, (2, 3)), (1, (2, 1)), use_layer_norm=True, hidden_sizes=(4,)),
    "visual_resnet": VisualResNetTorso((4,), (1,), use_layer_norm=True, hidden_sizes=(4,)),
}


def test_the_sixth_argument_of_noisy_torsos_is_the_scale_of_their_noise():
    torso = NoisyMLPTorso((8,), "relu", False, "ones", True, 0.1)
    assert (torso.sigma_zero, torso.dropout_rate) == (0.1, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*VECTORS, *IMAGES])
def test_torsos_accept_any_number_of_leading_axes(name):
    torso = (VECTORS | IMAGES)[name]
    x = jax.random.normal(KEY, (2, 3, 5) if name in VECTORS else (2, 3, 6, 6, 2))
    params = jax.jit(torso.init)(KEY, x[0, 0])
    many, row, one = jax.jit(lambda params, x: [torso.apply(params, y) for y in (x, x[1], x[1, 2])])(params, x)
    assert (many.shape, row.shape, one.shape) == ((2, 3, 4), (3, 4), (4,))
    np.testing.assert_allclose(many[1, 2], one, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(row[2], one, rtol=1e-4, atol=1e-5)


def test_mlp_matches_hand_computed_output():
    torso = MLPTorso((2, 1), "relu", kernel_init="ones", activate_final=False)
    x = jnp.asarray([[1.0, 2.0], [-4.0, 1.0]])
    # The rows sum to 3 and -3, relu gives 3 and 0, and the two units sum to 6 and 0.
    np.testing.assert_allclose(jax.jit(torso.init_with_output)(KEY, x)[0], [[6.0], [0.0]])


def test_simba_matches_hand_computed_output():
    """Of two units, normalisation keeps the signs of their differences from the mean; the first layer is the identity.

    x = (3, 2) is normalised to (1, -1), whose sum is 0. The bias gives (1, 0), and the block adds (0, 1/2): (3, 2.5) is
    normalised to (1, -1), plus 5. Without the residual, (0, 1/2) would be normalised to (-1, 1). Without the first
    normalisation, the block would add (0, 6/2 + 5 * 3), and the result would be (-1, 1), too.
    """
    torso = SimBaTorso(2, 1, 1, kernel_init="ones", block_kernel_init="ones")
    params = jax.jit(torso.init)(KEY, jnp.ones(2))["params"]
    params["Dense_0"]["kernel"] = jnp.eye(2)
    params["Dense_1"]["bias"] = jnp.asarray([1.0, 0.0])
    params["Dense_2"]["kernel"] = jnp.asarray([[0.0, 0.5], [0.0, 3.0]])
    params["LayerNorm_1"]["bias"] = jnp.asarray([5.0, 5.0])
    np.testing.assert_allclose(run(torso.apply, {"params": params}, jnp.asarray([3.0, 2.0])), [6.0, 4.0], atol=1e-4)


def test_bro_matches_hand_computed_output():
    """Of two units, normalisation keeps the signs of their differences from the mean; the first layer is the identity.

    (3, 2) is normalised to (1, -1), and relu gives (1, 0). In the block, W_1 swaps the units: (0, 1) is normalised to
    (-1, 1), relu gives (0, 1), and W_2 = I, normalised, adds (-1, 1).
    """
    torso = BroTorso(2, 1)
    params = jax.jit(torso.init)(KEY, jnp.ones(2))["params"]
    for i, kernel in enumerate((jnp.eye(2), jnp.eye(2)[::-1], jnp.eye(2))):
        params[f"Dense_{i}"]["kernel"] = kernel
    np.testing.assert_allclose(run(torso.apply, {"params": params}, jnp.asarray([3.0, 2.0])), [0.0, 1.0], atol=1e-4)


def test_dropout_needs_its_rng_and_precedes_layer_normalisation():
    """A unit is dropped with probability 1/2 and doubled otherwise; normalisation hides the doubling, not the zeros."""
    torso, x = MLPTorso((64,), dropout_rate=0.5), jnp.ones((200, 3))
    params = jax.jit(torso.init)(KEY, x)
    plain, dropped = run(torso.apply, params, x), run(torso.apply, params, x, rngs={"dropout": jax.random.key(1)})
    kept = dropped[:, plain[0] > 0] != 0
    # About 32 positive units × 200 rows: a standard error of 0.5 / sqrt(6400) = 0.006.
    assert float(kept.mean()) == pytest.approx(0.5, abs=0.03)
    np.testing.assert_allclose(dropped, jnp.where(dropped != 0, 2.0 * plain, 0.0), rtol=1e-5)
    normalised = MLPTorso((64,), use_layer_norm=True, dropout_rate=0.5)
    y = normalised.apply(jax.jit(normalised.init)(KEY, x), x, rngs={"dropout": jax.random.key(1)})
    # Dropped units are 0 before normalisation, hence equal within a row afterwards.
    smallest = [np.unique(np.asarray(row), return_counts=True)[1].max() for row in y[:20]]
    assert min(smallest) > 10


def test_dropping_every_unit_raises():
    with pytest.raises(ValueError, match=r"dropout_rate=1.0 must be at least 0 and less than 1"):
        MLPTorso((4,), dropout_rate=1.0)


def test_final_activation_is_optional():
    x = jax.random.normal(KEY, (64, 5))
    for activate_final in (True, False):
        torso = MLPTorso((8,), "relu", activate_final=activate_final)
        assert bool((jax.jit(torso.init_with_output)(KEY, x)[0] >= 0).all()) is activate_final


def test_noisy_torso_has_noise_only_with_its_rng():
    torso = VECTORS["noisy"]
    x = jnp.ones((2, 5))
    params = jax.jit(torso.init)(KEY, x)
    np.testing.assert_array_equal(run(torso.apply, params, x), run(torso.apply, params, x))
    assert (run(torso.apply, params, x) != run(torso.apply, params, x, rngs={"noise": KEY})).any()


class TestImages:
    def test_pixels_are_scaled_to_the_unit_interval(self):
        image = jnp.asarray([[[0], [255]]], jnp.uint8)
        np.testing.assert_allclose(as_images(image).ravel(), [0.0, 1.0])
        assert as_images(image).dtype == jnp.float32
        np.testing.assert_allclose(as_images(image.astype(jnp.int32)).ravel(), [0.0, 255.0])
        assert as_images(image.astype(bool)).dtype == jnp.float32
        assert as_images(image.astype(jnp.bfloat16)).dtype == jnp.bfloat16

    def test_channel_axis_is_moved_or_added(self):
        assert as_images(jnp.zeros((7, 3, 4, 5)), channel_first=True).shape == (7, 4, 5, 3)
        assert as_images(jnp.zeros((7, 4, 5)), has_channels=False).shape == (7, 4, 5, 1)

    def test_channel_first_gives_equal_output(self):
        x = jax.random.normal(KEY, (2, 6, 6, 3))
        last, first = (CNNTorso((4,), (3,), (1,), hidden_sizes=(4,), channel_first=first) for first in (False, True))
        params = jax.jit(last.init)(KEY, x)
        np.testing.assert_allclose(
            run(last.apply, params, x), run(first.apply, params, jnp.moveaxis(x, -1, -3)), rtol=1e-4, atol=1e-5
        )

    def test_vectors_are_refused(self):
        torso = IMAGES["cnn"]
        with pytest.raises(ValueError, match="is not an image.*network=mlp"):
            jax.jit(torso.init)(KEY, jnp.zeros((4, 5)))

    def test_inputs_that_do_not_fit_the_parameters_are_refused(self):
        for name, shape, other in (("mlp", (2, 5), (2, 4)), ("cnn", (2, 6, 6, 2), (2, 6, 6, 3))):
            torso = (VECTORS | IMAGES)[name]
            params = jax.eval_shape(torso.init, KEY, jnp.zeros(shape))
            with pytest.raises((ValueError, TypeError, ScopeParamShapeError)):
                jax.eval_shape(torso.apply, params, jnp.zeros(other))

    def test_channels_and_kernels_must_have_the_same_length(self):
        with pytest.raises(ValueError, match="lists of the same length"):
            CNNTorso((4, 4), (3,), (1,)).init(KEY, jnp.zeros((4, 5, 2)))

    @pytest.mark.parametrize(("side", "scale"), [(4, 1), (9, 3)])
    def test_the_first_convolution_grows_with_large_images(self, side, scale):
        """9 pixels exceed 4 by a factor of 2.25, rounded up to 3; the second convolution stays as it is."""
        x = jax.random.normal(KEY, (1, side, 3, 1))
        fitted = CNNTorso((2, 2), ((2, 1), 3), (1, 2), hidden_sizes=(4,), max_size=4)
        fixed = CNNTorso((2, 2), ((2 * scale, scale), 3), (scale, 2), hidden_sizes=(4,))
        params = jax.jit(fitted.init)(KEY, x)
        np.testing.assert_array_equal(run(fitted.apply, params, x), run(fixed.apply, params, x))

    def test_the_largest_size_has_pixels(self):
        with pytest.raises(ValueError, match="max_size=0 must be at least 1"):
            CNNTorso((4,), (3,), (1,), max_size=0)


@pytest.mark.parametrize("name", VECTORS)
def test_pixels_reach_dense_layers_scaled_and_floats_unchanged(name):
    torso = VECTORS[name]
    pixels = jnp.asarray([[0, 51, 255]], jnp.uint8)
    scaled = pixels.astype(jnp.float32) / 255.0
    params = jax.jit(torso.init)(KEY, scaled)
    np.testing.assert_array_equal(run(torso.apply, params, pixels), run(torso.apply, params, scaled))
    # Neither floats above one nor integers that are no pixels are scaled.
    counts = jnp.asarray([[0, 51, 255]], jnp.int32)
    np.testing.assert_array_equal(
        run(torso.apply, params, counts), run(torso.apply, params, counts.astype(jnp.float32))
    )


def test_pixels_next_to_an_action_are_scaled():
    pixels, action = jnp.asarray([[0, 51, 255]], jnp.uint8), jnp.asarray([[3.0]])
    joined = run(EmbeddingActionInput().apply, {}, pixels, action)
    np.testing.assert_allclose(joined, [[0.0, 0.2, 1.0, 3.0]])
    one_hot = run(EmbeddingActionOnehotInput(2).apply, {}, pixels, jnp.asarray([1]))
    np.testing.assert_allclose(one_hot, [[0.0, 0.2, 1.0, 0.0, 1.0]])


def test_cells_of_a_grid_are_embedded_by_the_sum_over_channels():
    torso = GridTorso(embedding_size=2, hidden_sizes=(3,), activation="identity", num_symbols=4)
    grid = jnp.asarray([[[1, 0], [3, 2]]], jnp.uint8)
    params = jax.jit(torso.init)(KEY, grid)
    tables = params["params"]["tables"]["kernel"].reshape(2, 4, 2)
    cells = jnp.stack([tables[0, 1] + tables[1, 0], tables[0, 3] + tables[1, 2]])
    dense = params["params"]["MLPTorso_0"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(run(torso.apply, params, grid), cells.reshape(-1) @ dense, rtol=1e-5)
    np.testing.assert_allclose(
        run(torso.apply, params, grid[None, None])[0, 0], run(torso.apply, params, grid), rtol=1e-5
    )


def test_symbols_out_of_range_have_no_embedding():
    torso = GridTorso(embedding_size=2, hidden_sizes=(3,), num_symbols=4, has_channels=False)
    params = jax.jit(torso.init)(KEY, jnp.zeros((2, 2), int))
    np.testing.assert_array_equal(run(torso.apply, params, jnp.asarray([[-1, 4], [5, 100]])), jnp.zeros(3))


def test_grids_must_be_integers():
    with pytest.raises(ValueError, match="observations of type float32 are not symbols: choose network=cnn"):
        jax.jit(GridTorso().init)(KEY, jnp.ones((3, 3, 2)))


def test_padded_convolutions_for_atari_have_the_size_that_the_guide_names():
    torso = CNNTorso((32, 64, 64), (8, 4, 3), (4, 2, 1), hidden_sizes=(512,))
    params = jax.eval_shape(torso.init, KEY, jnp.zeros((84, 84, 4)))["params"]
    # 84 / 4 = 21, then 21 / 2 = 11, rounded up; without padding it would be 20, 9 and 7.
    assert params["MLPTorso_0"]["Dense_0"]["kernel"].shape == (11 * 11 * 64, 512)
    # 8,224 + 32,832 + 36,928 in the convolutions, and 7,744 * 512 + 512.
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 4_043_424
