import math

import jax
import jax.nn
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.networks.inputs import ArrayInput, FeatureInput
from support.compiled import run
from support.network_files import config

DISCRETE, MULTI = Discrete(3), MultiDiscrete((2, 3))
FEATURE = "stoix_like.networks.inputs.FeatureInput"
VECTOR = Box(0.0, 1.0, (4,))


@pytest.mark.parametrize(
    ("network", "shape"),
    [*(("mlp", shape) for shape in ((4,), (10, 5), (10, 10, 4))), ("cnn", (10, 5)), ("cnn", (10, 10, 4))],
)
def test_images_are_flattened_for_vector_torsos_and_have_channels_for_convolutions(network, shape):
    sizes = {"mlp": "layer_sizes", "cnn": "hidden_sizes"}
    small = config(network, **{f"actor_network__pre_torso__{sizes[network]}": [8]})
    networks = build_networks(small, DISCRETE, Box(0.0, 1.0, shape)).actor_network
    actor = FeedForwardActor(networks.action_head, networks.pre_torso, networks.input_layer)
    policy, params = jax.eval_shape(actor.init_with_output, jax.random.key(0), Observation(np.ones((3, 2, *shape))))
    assert jax.eval_shape(lambda pi, key: pi.sample(seed=key), policy, jax.random.key(1)).shape == (3, 2)
    if network == "mlp":
        assert params["params"]["torso"]["Dense_0"]["kernel"].shape[0] == math.prod(shape)


def test_convolutions_take_the_image_beside_the_last_action_and_reward():
    """Others of a dictionary's entries are refused, and so are vectors."""
    parts = {"observation": Box(0.0, 1.0, (10, 10)), "last_action": Box(0.0, 1.0, (3,))}
    actor = build_networks(config("cnn"), DISCRETE, Dict(parts)).actor_network
    assert actor.input_layer.layers["observation"].has_channels is False
    assert isinstance(actor.pre_torso, ArrayInput)
    more = Dict({"observation": Box(0.0, 1.0, (10, 10)), "map": Box(0.0, 1.0, (2,))})
    for space, words in (
        (more, "the entries map, observation: choose network=mlp"),
        (VECTOR, r"\(4,\): choose network=mlp"),
    ):
        with pytest.raises(ConfigError, match=words):
            build_networks(config("cnn"), DISCRETE, space)


@pytest.mark.parametrize(
    ("space", "num_symbols", "has_channels"),
    [(Box(0, 10, (5, 5, 3), jnp.uint8), 11, True), (Box(-1, 12, (5, 5), jnp.int32), 13, False)],
)
def test_grids_have_as_many_symbols_as_the_observation_space(space, num_symbols, has_channels):
    torso = build_networks(config("grid"), DISCRETE, space).actor_network.pre_torso
    assert (torso.num_symbols, torso.has_channels) == (num_symbols, has_channels)
    configured = config("grid", actor_network__pre_torso__num_symbols=7)
    assert build_networks(configured, DISCRETE, space).actor_network.pre_torso.num_symbols == 7


@pytest.mark.parametrize("feature", ["agent_view.grid", "agent_view"])
def test_grids_within_dictionaries_have_as_many_symbols_as_their_entry(feature):
    space = Dict({"grid": Box(0, 40, (5, 5), jnp.int32), "position": Box(0.0, 1.0, (2,))})
    block = OmegaConf.to_container(config("grid").actor_network)
    vector = {"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": [4]}
    if feature == "agent_view":
        layers = {"grid": block["pre_torso"], "position": vector}
        block["input_layer"] = {"_target_": "stoix_like.networks.inputs.DictInput", "layers": layers}
        block["pre_torso"] = vector
    else:
        block["input_layer"] = {"_target_": FEATURE, "feature_name": feature}
    actor = build_networks({"actor_network": block}, DISCRETE, space).actor_network
    torso = actor.input_layer.layers["grid"] if feature == "agent_view" else actor.pre_torso
    assert (torso.num_symbols, torso.has_channels) == (41, False)


def test_integers_without_a_largest_value():
    """Other networks do not need one."""
    space = Box(0, np.inf, (5, 5), jnp.int32)
    build_networks(config("mlp"), DISCRETE, space)
    torso = build_networks(config("grid"), DISCRETE, space).actor_network.pre_torso
    with pytest.raises(ValueError, match=r"num_symbols=None, .*: set num_symbols"):
        jax.jit(torso.init)(jax.random.key(0), jnp.zeros((5, 5), jnp.int32))


def test_a_feature_that_the_observation_lacks_is_refused_with_those_that_it_has():
    for name in ("obs", "step_count"):
        with pytest.raises(
            AttributeError, match=rf"feature_name={name} is not part of the observation: use agent_view\b"
        ):
            run(FeatureInput(name).apply, {}, Observation(jnp.ones(3)))
