import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete
from stoix_like.networks import world_model
from stoix_like.networks.world_model import ObservationDecoder, ObservationEncoder, decoded_view, decoder_loss
from support.compiled import run

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
    return np.zeros((*leading, *space.shape), space.dtype)


@pytest.mark.parametrize("name", TOKENS)
def test_observations_of_all_kinds_are_encoded_and_decoded(name):
    space, width = TOKENS[name]
    encoder = ObservationEncoder(**SMALL, space=space)
    decoder = ObservationDecoder(**SMALL, space=space)

    def coded(view, features):
        tokens, _ = encoder.init_with_output(KEY, view)
        predictions, _ = decoder.init_with_output(KEY, features)
        return tokens, decoder_loss(space, predictions, view), decoded_view(space, predictions)

    # Without leading axes, as a policy of one environment, and with two.
    for leading in ((), (2, 3)):
        view = _zeros(space, *leading)
        tokens, loss, decoded = jax.eval_shape(coded, view, np.ones((*leading, 5)))
        assert (tokens.shape, tokens.dtype, loss.shape) == ((*leading, width), jnp.float32, leading)
        assert jax.tree.map(jnp.shape, decoded) == jax.tree.map(np.shape, view)
        assert {leaf.dtype for leaf in jax.tree.leaves((loss, decoded))} == {jnp.dtype(jnp.float32)}


# By hand. Vector: targets symlog(e - 1, 0, 1 - e^2) = (1, 0, -2), predictions 0: 1 + 0 + 4. Image: 255 -> 1 and
# 51 -> 0.2 against 0.5: 0.25 + 0.09 + 23 * 0.25 for the black pixels. Symbols, uniform over 3: ln 3. Flags (1, 0)
# against 1/2: 0.25 each.
def test_losses_match_values_by_hand():
    space = Dict({"v": VECTOR, "i": Box(0, 255, (5, 5), jnp.uint8), "s": Discrete(3), "f": Box(0, 1, (2,), jnp.bool_)})
    image = np.zeros((5, 5), np.uint8)
    image[0, :2] = 255, 51
    vector = np.array([math.e - 1.0, 0.0, 1.0 - math.e**2])
    view = jax.device_put({"v": vector, "i": image, "s": np.int32(1), "f": np.array([True, False])})
    predictions = {"v": np.zeros(3), "i": np.full((5, 5), 0.5), "s": np.zeros(3), "f": np.array([0.5, 0.5])}
    predictions = jax.device_put({f"agent_view.{name}": value for name, value in predictions.items()})
    expected = 5.0 + 0.34 + 23 * 0.25 + math.log(3.0) + 0.5
    np.testing.assert_allclose(run(decoder_loss, space, predictions, view), expected, rtol=1e-6)


def test_perfect_predictions_decode_to_the_observation():
    space = Dict({"v": VECTOR, "i": Box(0, 255, (5, 5, 1), jnp.uint8), "s": Box(2, 4, (2,), jnp.int32)})
    view = {"v": np.array([0.0, 1e4, -3.0]), "i": np.arange(25, dtype=np.uint8).reshape(5, 5, 1)}
    view = jax.device_put(view | {"s": np.array([2, 4])})

    def results(view):
        predictions = {
            "agent_view.v": world_model.symlog(view["v"]),
            "agent_view.i": view["i"] / 255.0,
            "agent_view.s": 100.0 * jnp.eye(3)[jnp.array([0, 2])],
        }
        return decoded_view(space, predictions), decoder_loss(space, predictions, view)

    decoded, loss = run(results, view)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), decoded, view)
    np.testing.assert_allclose(loss, 0.0, atol=1e-6)


def test_vectors_and_symbols_enter_as_symlog_and_one_hot():
    space = Dict({"a": Discrete(3), "b": VECTOR})
    x = jax.device_put({"a": np.int32(2), "b": np.array([math.e - 1.0, 0.0, 1.0 - math.e])})
    pairs = [(Discrete(3), x["a"]), (VECTOR, x["b"])]
    entered = np.concatenate([run(world_model._as_vector, *pair) for pair in pairs])
    np.testing.assert_allclose(entered, [0, 0, 1, 1, 0, -1], atol=1e-6)
    plain = ObservationEncoder(**SMALL, space=space)
    params = jax.eval_shape(plain.init, KEY, x)
    assert params["params"]["Dense_0"]["kernel"].shape == (6, 8)
