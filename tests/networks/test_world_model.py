import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete
from stoix_like.networks import world_model
from stoix_like.networks.world_model import ObservationDecoder, ObservationEncoder, decoded_view, decoder_loss

KEY = jax.random.key(0)
SMALL = {"units": 8, "num_layers": 1, "channels": 2, "kernel_size": 3}
VECTOR = Box(-np.inf, np.inf, (3,))
PIXELS = Box(0, 255, (64, 64, 3), jnp.uint8)
MINATAR = Box(0, 1, (10, 10, 4), jnp.bool_)
CATCH = Box(0.0, 1.0, (10, 5))
ATARI = Box(0, 255, (84, 84, 1), jnp.uint8)
GRID = Box(0, 10, (7, 7, 3), jnp.uint8)
NESTED = Dict(
    {"image": CATCH, "agent": Dict({"position": VECTOR, "item": Discrete(3)}), "tools": MultiDiscrete((2, 4))}
)

# The tokens are the units of the dense layers, then pixels times channels of the last convolution of each image:
# 64 -> 32 -> 16 -> 8 -> 4 (4th convolution, 4 x 2 channels), 10 -> 5 (5 x 5 x 2), 10 x 5 -> 5 x 3 (x 2),
# 84 -> 42 -> 21 -> 11 -> 6 (6 x 6 x 8).
TOKENS = {
    "vector": (VECTOR, 8),
    "pixels": (PIXELS, 4 * 4 * 8),
    "minatar": (MINATAR, 5 * 5 * 2),
    "catch": (CATCH, 5 * 3 * 2),
    "atari": (ATARI, 6 * 6 * 8),
    "grid": (GRID, 8),
    "discrete": (Discrete(5), 8),
    "nested": (NESTED, 8 + 30),
}


def _zeros(space, *leading):
    if isinstance(space, Dict):
        return {name: _zeros(part, *leading) for name, part in space.spaces.items()}
    return jnp.zeros((*leading, *space.shape), space.dtype)


@pytest.mark.parametrize("name", TOKENS)
def test_observations_of_all_kinds_are_encoded_and_decoded(name):
    space, width = TOKENS[name]
    encoder = ObservationEncoder(**SMALL, space=space)
    decoder = ObservationDecoder(**SMALL, space=space)

    def run(view, features):
        tokens, _ = encoder.init_with_output(KEY, view)
        predictions, _ = decoder.init_with_output(KEY, features)
        return tokens, decoder_loss(space, predictions, view), decoded_view(space, predictions)

    # Without leading axes, as a policy of one environment, and with two.
    for leading in ((), (2, 3)):
        view = _zeros(space, *leading)
        tokens, loss, decoded = jax.eval_shape(run, view, jnp.ones((*leading, 5)))
        assert (tokens.shape, tokens.dtype, loss.shape) == ((*leading, width), jnp.float32, leading)
        assert jax.tree.map(jnp.shape, decoded) == jax.tree.map(jnp.shape, view)
        assert {leaf.dtype for leaf in jax.tree.leaves((loss, decoded))} == {jnp.dtype(jnp.float32)}


# By hand. Vector: targets symlog(e - 1, 0, 1 - e^2) = (1, 0, -2), predictions 0: 1 + 0 + 4. Image: 255 -> 1 and
# 51 -> 0.2 against 0.5: 0.25 + 0.09 + 23 * 0.25 for the black pixels. Symbols, uniform over 3: ln 3. Flags (1, 0)
# against 1/2: 0.25 each.
def test_losses_match_values_by_hand():
    space = Dict({"v": VECTOR, "i": Box(0, 255, (5, 5), jnp.uint8), "s": Discrete(3), "f": Box(0, 1, (2,), jnp.bool_)})
    image = jnp.zeros((5, 5), jnp.uint8).at[0, :2].set(jnp.array([255, 51], jnp.uint8))
    vector = jnp.array([math.e - 1.0, 0.0, 1.0 - math.e**2])
    view = {"v": vector, "i": image, "s": jnp.int32(1), "f": jnp.array([True, False])}
    predictions = {
        "agent_view.v": jnp.zeros(3),
        "agent_view.i": jnp.full((5, 5), 0.5),
        "agent_view.s": jnp.zeros(3),
        "agent_view.f": jnp.array([0.5, 0.5]),
    }
    expected = 5.0 + 0.34 + 23 * 0.25 + math.log(3.0) + 0.5
    np.testing.assert_allclose(decoder_loss(space, predictions, view), expected, rtol=1e-6)


def test_perfect_predictions_decode_to_the_observation():
    space = Dict({"v": VECTOR, "i": Box(0, 255, (5, 5, 1), jnp.uint8), "s": Box(2, 4, (2,), jnp.int32)})
    view = {"v": jnp.array([0.0, 1e4, -3.0]), "i": jnp.arange(25, dtype=jnp.uint8).reshape(5, 5, 1)}
    view["s"] = jnp.array([2, 4])
    predictions = {
        "agent_view.v": world_model.symlog(view["v"]),
        "agent_view.i": view["i"] / 255.0,
        "agent_view.s": 100.0 * jnp.eye(3)[jnp.array([0, 2])],
    }
    decoded = decoded_view(space, predictions)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), decoded, view)
    np.testing.assert_allclose(decoder_loss(space, predictions, view), 0.0, atol=1e-6)


def test_vectors_and_symbols_enter_as_symlog_and_one_hot():
    space = Dict({"a": Discrete(3), "b": VECTOR})
    x = {"a": jnp.int32(2), "b": jnp.array([math.e - 1.0, 0.0, 1.0 - math.e])}
    pairs = [(Discrete(3), x["a"]), (VECTOR, x["b"])]
    entered = jnp.concatenate([world_model._as_vector(*pair) for pair in pairs])
    np.testing.assert_allclose(entered, [0, 0, 1, 1, 0, -1], atol=1e-6)
    plain = ObservationEncoder(**SMALL, space=space)
    params = plain.init(KEY, x)
    assert params["params"]["Dense_0"]["kernel"].shape == (6, 8)


def test_layers_compute_in_bfloat16_and_outputs_are_float32():
    encoder = ObservationEncoder(**SMALL, space=NESTED, dtype=jnp.bfloat16)
    decoder = ObservationDecoder(**SMALL, space=NESTED, dtype=jnp.bfloat16)
    view, features = _zeros(NESTED, 2), jnp.ones((2, 5))
    for module, inputs in ((encoder, view), (decoder, features)):
        outputs, params = jax.eval_shape(lambda x, module=module: module.init_with_output(KEY, x), inputs)
        assert {leaf.dtype for leaf in jax.tree.leaves((outputs, params))} == {jnp.dtype(jnp.float32)}
    assert "bf16" in str(jax.make_jaxpr(lambda x: decoder.init_with_output(KEY, x))(features))
