"""Values of a configuration, converted and checked by annotations."""

import re
import typing
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.networks.from_config.modules import build_networks
from support.network_files import config

DISCRETE = Discrete(3)


BOUNDED, UNBOUNDED = Box(-2.0, 2.0, (2,)), Box(-np.inf, np.inf, (2,))


FEATURE = "stoix_like.networks.inputs.FeatureInput"


TORSO = "actor_network__pre_torso__"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{TORSO}use_layer_norm": "no"},
            r"pre_torso\.use_layer_norm=no has the wrong type: it must be true or false",
        ),
        ({f"{TORSO}use_layer_norm": 0}, r"pre_torso\.use_layer_norm=0 .*true or false"),
        ({f"{TORSO}layer_sizes": 128}, r"pre_torso\.layer_sizes=128 .*a list of integers: write \[128\]"),
        ({f"{TORSO}layer_sizes": None}, r"pre_torso\.layer_sizes=null .*integers"),
        ({f"{TORSO}layer_sizes": "[64]"}, r"pre_torso\.layer_sizes=\[64\] "),
        ({f"{TORSO}activation": None}, r"pre_torso\.activation=null .*it must be a string, such as relu"),
        ({f"{TORSO}activation": 0.5}, r"pre_torso\.activation='0.5' is not a known activation: choose from celu"),
        ({f"{TORSO}activation": ["relu"]}, r"pre_torso\.activation=\[relu\] .*it must be a string, such as relu"),
        ({f"{TORSO}kernel_init": 0.5}, r"pre_torso\.kernel_init='0.5' is not a known initialiser: choose from"),
        ({f"{TORSO}kernel_init": None}, r"pre_torso\.kernel_init=null .*it must be a string"),
        ({f"{TORSO}_partial_": "no"}, r"pre_torso\._partial_=no .*true or false"),
        (
            {"actor_network__input_layer": {"_target_": FEATURE, "feature_name": None}},
            r"input_layer\.feature_name=null .*a string",
        ),
        ({"actor_network__pre_torso": None}, r"pre_torso=null is not a module: use .*torso\.MLPTorso"),
        ({"actor_network__action_head": 3}, r"action_head=3 is not a module: use .*heads\.policy_head"),
        (
            {"critic_network__critic_head": {"kernel_init": "zeros"}},
            r"critic_head={kernel_init: zeros} is not a module: .* leave it out: '~network.critic_network.critic_head'",
        ),
        # Without it, nothing would be left of the network.
        (
            {"critic_network": {"pre_torso": {"layer_sizes": [8]}}},
            r"pre_torso={layer_sizes: \[8\]} is not a module: use .*, or choose network=… with critic_network$",
        ),
    ],
)
def test_values_of_the_wrong_type_are_refused_by_key(changes, message):
    base = OmegaConf.to_container(config())
    for key, value in changes.items():
        *parents, last = (
            key.split("__") if not key.endswith("_partial_") else ["actor_network", "pre_torso", "_partial_"]
        )
        node = base
        for parent in parents:
            node = node[parent]
        node[last] = value
    with pytest.raises(ConfigError, match=rf"^network\.\w+\.{message}") as caught:
        build_networks(base, DISCRETE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("heads.MultivariateNormalDiagHead", r"min_scale=small .*it must be a number$"),
        ("heads.LinearHead", r"pre_shape=3 .*it must be a list of integers or null$"),
    ],
)
def test_fields_of_heads_are_checked_by_their_annotations(block, message):
    name, value = re.match(r"(\w+)=(\w+)", message).groups()
    plain = {"head": {"_target_": f"stoix_like.networks.{block}", name: int(value) if value.isdigit() else value}}
    if "Linear" in block:
        plain["head"]["output_dim"] = 2
    with pytest.raises(ConfigError, match=rf"^network\.head\.{message}"):
        build_networks(plain, UNBOUNDED)


def test_values_are_converted_to_the_annotations():
    torso = build_networks(config(**{f"{TORSO}layer_sizes": [1e2, 64.0]}), DISCRETE).actor_network.pre_torso
    assert [type(size) for size in torso.layer_sizes] == [int, int]
    plain = {
        "torso": {
            "_target_": "stoix_like.networks.torso.CNNTorso",
            "channel_sizes": [2, 2],
            "kernel_sizes": [[3, 2.0], 3],
            "strides": [1, 1],
            "kernel_init": "lecun_normal",
        },
        "layer": {"_target_": "stoix_like.networks.layers.NoisyLinear", "features": 2, "sigma_zero": "5e-1"},
        "dense": {"_target_": "flax.linen.Dense", "features": 2.0, "use_bias": False, "dtype": "bfloat16"},
    }
    networks = build_networks(plain, DISCRETE)
    assert networks.torso.kernel_sizes == ((3, 2), 3)
    assert networks.layer.sigma_zero == 0.5
    assert (networks.dense.features, networks.dense.use_bias, networks.dense.dtype) == (2, False, "bfloat16")


class Custom(nn.Module):
    """A module whose arguments have names that mean something else in this package."""

    sizes: dict[str, int] | None = None
    options: Any = None
    layers: typing.Sequence = ()
    pair: tuple[int, float] = (1, 0.5)
    act: Callable = nn.relu
    num_layers: int = 1
    features: bool = True
    activation: str = "relu"
    vmin: float = 0.0
    vmax: float = 1.0


def custom(**arguments):
    return build_networks({"part": {"_target_": f"{__name__}.Custom", **arguments}}, DISCRETE).part


def test_dictionaries_of_custom_modules_are_frozen():
    part = custom(sizes={"a": 8, "b": 4.0}, options={"width": [{"c": 1}]})
    assert dict(part.sizes.items()) == {"a": 8, "b": 4}
    assert part.options["width"][0]["c"] == 1
    assert hash(part) == hash(custom(sizes={"a": 8, "b": 4}, options={"width": [{"c": 1}]}))


def test_arguments_of_custom_modules_mean_what_their_annotations_say():
    relu = {"_target_": "flax.linen.relu", "_partial_": True}
    part = custom(
        layers=[8, 4], pair=[8, 0.5], act=relu, num_layers=0, features=False, activation="mine", vmin=2, vmax=1
    )
    assert (part.layers, part.pair, part.num_layers, part.features) == ((8, 4), (8, 0.5), 0, False)
    assert (part.activation, part.vmin, part.vmax) == ("mine", 2.0, 1.0)
    assert part.act.func is jax.nn.relu


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"act": "relu"},
            "act=relu has the wrong type: it must be a function, such as {_target_: flax.linen.relu, _par",
        ),
        ({"pair": [8]}, "pair=[8] has the wrong type: it must be a list [an integer, a number]"),
        ({"layers": 8}, "layers=8 has the wrong type: it must be a list of values: write [8]"),
        ({"sizes": {"a": "b"}}, "sizes={a: b} has the wrong type: it must be integers by name or null"),
    ],
)
def test_values_that_do_not_fit_custom_modules_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=re.escape(f"network.part.{message}")):
        custom(**arguments)
