import re

import flax.linen as nn
import jax
import jax.nn
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.composition import config_dir
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError
from stoix_like.networks.base import chained_torsos
from stoix_like.networks.from_config.modules import build_networks, choices
from stoix_like.networks.heads import BetaDistributionHead, DeterministicHead, NormalAffineTanhDistributionHead
from stoix_like.networks.inputs import DictInput, EmbeddingActionInput, TorsoInput
from stoix_like.networks.torso import MLPTorso
from support.network_files import config

KEY = jax.random.key(0)
DISCRETE, MULTI = Discrete(3), MultiDiscrete((2, 3))
BOUNDED, UNBOUNDED = Box(-2.0, 2.0, (2,)), Box(-np.inf, np.inf, (2,))
HEADS = "stoix_like.networks.heads."


def with_head(target, **arguments):
    loaded = config()
    loaded.actor_network.action_head = {"_target_": target, **arguments}
    return loaded


def test_lists_become_tuples_and_modules_are_hashable():
    networks = build_networks(config("mlp_continuous"), BOUNDED)
    assert networks.actor_network.pre_torso.layer_sizes == (64, 64)
    assert isinstance(networks.actor_network.action_head, NormalAffineTanhDistributionHead)
    assert networks.actor_network.action_head.maximum == (2.0, 2.0)
    hash(networks.actor_network.action_head)


def test_configured_arguments_override_the_action_space():
    head = build_networks(with_head(HEADS + "NormalAffineTanhDistributionHead", minimum=-0.5), BOUNDED)
    assert head.actor_network.action_head.minimum == -0.5
    assert head.actor_network.action_head.maximum == (2.0, 2.0)


def test_arguments_of_the_head_before_are_left_out_and_typos_are_refused():
    path, notes = "stoix_like.networks.heads.BetaDistributionHead", []
    head = {"_target_": path, "min_scale": 1e-3, "kernel_init": "orthogonal(0.01)"}
    built = build_networks({"actor_network": {"action_head": head}}, Box(-1.0, 1.0, (2,)), notes=notes)
    assert isinstance(built.actor_network.action_head, BetaDistributionHead)
    assert notes == ["network.actor_network.action_head: left out min_scale, which BetaDistributionHead does not take"]
    with pytest.raises(ConfigError, match="network.actor_network.action_head.min_scal is not an argument"):
        build_networks({"actor_network": {"action_head": {**head, "min_scal": 1.0}}}, Box(-1.0, 1.0, (2,)))


@pytest.mark.parametrize("kind", ["head", "torso"])
def test_choices_name_what_a_configuration_may_name(kind):
    presets = "".join(path.read_text() for path in (config_dir() / "network").rglob("*.yaml"))
    targets = set(re.findall(rf"_target_: (stoix_like\.networks\.{kind}s?\.\w*{kind})\b", presets, re.IGNORECASE))
    assert targets
    assert targets <= choices(kind).keys()


def test_bounds_are_passed_only_for_bounded_spaces():
    for space, minimum in ((BOUNDED, (-2.0, -2.0)), (UNBOUNDED, None)):
        head = build_networks(with_head(HEADS + "DeterministicHead"), space).actor_network.action_head
        assert isinstance(head, DeterministicHead)
        assert head.minimum == minimum


def test_nested_targets_values_and_partials_are_built():
    nested = {
        "action_head": {
            "_target_": HEADS + "PolicyValueHead",
            "action_head": {"_target_": HEADS + "CategoricalHead"},
            "critic_head": {"_target_": HEADS + "ScalarCriticHead"},
        },
        "torsos": [{"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": [4]}],
        "later": {"_target_": HEADS + "LinearHead", "_partial_": True, "kernel_init": "orthogonal(1.0)"},
        "width": 3,
    }
    networks = build_networks(nested, DISCRETE)
    assert networks.action_head.action_head.action_dim == 3
    assert networks.torsos[0].layer_sizes == (4,)
    assert networks.later(output_dim=2).output_dim == 2
    assert networks.width == 3


@pytest.mark.parametrize(
    ("head", "space", "advice"),
    [
        ("CategoricalHead", BOUNDED, "bounded continuous actions.*network=mlp_continuous"),
        ("CategoricalHead", UNBOUNDED, "unbounded continuous actions.*network=mlp"),
        ("CategoricalHead", MULTI, r"sizes \(2, 3\).*network=mlp"),
        ("NormalAffineTanhDistributionHead", DISCRETE, "3 discrete actions.*network=mlp"),
        ("NormalAffineTanhDistributionHead", UNBOUNDED, "unbounded continuous actions.*network=mlp"),
    ],
)
def test_heads_refuse_unsupported_action_spaces(head, space, advice):
    with pytest.raises(ConfigError, match=rf"^network\.actor_network\.action_head=.*{head} does not fit .*{advice}"):
        build_networks(with_head(HEADS + head), space)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_network__pre_torso__activation": "rleu"}, r"pre_torso\.activation='rleu' is not .*'relu'"),
        ({"actor_network__pre_torso__layersizes": [3]}, r"pre_torso\.layersizes is not an argument.*'layer_sizes'"),
        ({"actor_network__pre_torso__kernel_init": "ortho"}, r"kernel_init='ortho' is not .*initialiser.*'orthogonal'"),
        ({"actor_network__pre_torso___target_": "stoix_like.networks.torso.MLPTors"}, r"_target_=.*'MLPTorso'"),
        ({"actor_network__pre_torso___target_": "stoix_like.networks.torsos.MLPTorso"}, r"cannot be imported"),
        ({"critic_network__critic_head___target_": HEADS + "LinearHead"}, r"critic_head=.*cannot be built.*output_dim"),
        ({"name": "cnn", "actor_network__pre_torso__strides": [1]}, r"strides=\[1\]: use lists of the same"),
    ],
)
def test_errors_name_the_key(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build_networks(config(**changes), DISCRETE)
    assert str(caught.value).startswith("network.")
    assert "\n" not in str(caught.value)


class Custom(nn.Module):
    """A torso that computes in float32 alone."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"pre_torso": Custom()}, "pre_torso"),
        ({"post_torso": Custom()}, "post_torso"),
        ({"rnn_layer": Custom()}, "rnn_layer"),
        ({"input_layer": DictInput({"grid": Custom()})}, "input_layer.layers.grid"),
        ({"input_layer": EmbeddingActionInput(TorsoInput(Custom()))}, "input_layer.input_layer.pre_torso"),
    ],
)
def test_torsos_without_a_dtype_are_refused_wherever_they_are(part, place):
    network = {"q_network": {"pre_torso": MLPTorso((4,)), **part}}
    build_networks(network, DISCRETE)
    with pytest.raises(ConfigError, match=rf"^network\.q_network\.{place}=Custom cannot compute in bfloat16: give it"):
        build_networks(network, DISCRETE, dtype="bfloat16")


def test_a_network_that_is_missing_is_answered_with_those_that_are_there():
    networks = build_networks({"actor_network": {}, "critic_network": {}}, Discrete(2), None)
    with pytest.raises(AttributeError, match="no q_network in network, only actor_network, critic_network: choose"):
        _ = networks.q_network
    assert not hasattr(networks, "q_network")


def test_chained_torsos_accept_modules_and_configs():
    config = {"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": [7]}
    network = chained_torsos([config, MLPTorso((3,))], activation="tanh")
    assert network.layers[0].activation == "tanh"
    assert jax.jit(network.init_with_output)(KEY, jnp.ones((2, 3, 5)))[0].shape == (2, 3, 3)
    for configs in (OmegaConf.create([config, {**config, "layer_sizes": [3]}]), [OmegaConf.create(config)]):
        network = chained_torsos(configs, activation="tanh")
        assert network.layers[0].layer_sizes == (7,)
        hash(network)
        shape = jax.jit(network.init_with_output)(KEY, jnp.ones((2, 3, 5)))[0].shape
        assert shape == (2, 3, 3 if len(configs) == 2 else 7)
