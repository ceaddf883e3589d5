"""What every torso does, and one with variables that are no parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


def assert_any_leading_axes(torso, x):
    """Check that the embeddings of inputs `[2, 3, ...]` are those of each row, and of each input alone."""
    params = jax.jit(torso.init)(jax.random.key(0), x[0, 0])
    many, row, one = jax.jit(lambda params, x: [torso.apply(params, y) for y in (x, x[1], x[1, 2])])(params, x)
    assert (many.shape, row.shape, one.shape) == ((2, 3, 4), (3, 4), (4,))
    np.testing.assert_allclose(many[1, 2], one, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(row[2], one, rtol=1e-4, atol=1e-5)


def assert_pixels_are_scaled(torso):
    """Check that pixels are scaled, and neither floats above one nor integers that are no pixels."""
    pixels = np.array([[0, 51, 255]], np.uint8)
    counts, floats = np.int32(pixels), jax.device_put(np.float32(pixels))
    params, embed = jax.jit(torso.init)(jax.random.key(0), floats), jax.jit(torso.apply)
    # In programs of their own: in one, conversions are fused with products, which rounds.
    np.testing.assert_array_equal(embed(params, pixels), embed(params, floats / 255.0))
    np.testing.assert_array_equal(embed(params, counts), embed(params, floats))


class FixedFeatures(nn.Module):
    """Random features in a collection of their own, so that they are not trained."""

    @nn.compact
    def __call__(self, x):
        draw = self.variable("constants", "b", lambda: jax.random.normal(self.make_rng("params"), (x.shape[-1], 2)))
        return nn.Dense(2)(jnp.sin(x @ draw.value))
