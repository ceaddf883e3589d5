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
UNBOUNDED = Box(-np.inf, np.inf, (2,))
TORSO = "actor_network.pre_torso"
WIDE = {"pre_torso": {"layer_sizes": [8]}}
HEADS = "stoix_like.networks.heads."
NORMAL, LINEAR = {"_target_": f"{HEADS}MultivariateNormalDiagHead"}, {"_target_": f"{HEADS}LinearHead"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (f"{TORSO}.use_layer_norm", "no", "=no has the wrong type: it must be true or false"),
        (f"{TORSO}.layer_sizes", 128, r"=128 .*a list: write \[128\]"),
        (f"{TORSO}.layer_sizes", "[64]", r"=\[64\] "),
        (f"{TORSO}.activation", None, "' is not set: it must be a string"),
        (f"{TORSO}.activation", 0.5, "='0.5' is not a known activation: choose from celu"),
        (f"{TORSO}.kernel_init", 0.5, "='0.5' is not a known initialiser: choose from"),
        (f"{TORSO}._partial_", "no", "=no .*true or false"),
        ("actor_network.action_head", 3, r"=3 is not a module: use .*heads\.policy_head"),
        ("actor_network.action_head", NORMAL | {"min_scale": "small"}, r"\.min_scale=small .*it must be a number$"),
        (
            "actor_network.action_head",
            LINEAR | {"output_dim": 2, "pre_shape": 3},
            r"\.pre_shape=3 .*a list: write \[3\]$",
        ),
        (
            "critic_network.critic_head",
            {"kernel_init": "zeros"},
            "={'kernel_init': 'zeros'} is not .* leave it out: '~",
        ),
        # Without it, nothing would be left of the network.
        ("critic_network", WIDE, r"\.pre_torso={'layer_sizes': \(8,\)} is not a module: use .*, or choose network="),
    ],
)
def test_values_of_the_wrong_type_are_refused_by_key(key, value, words):
    base = node = OmegaConf.to_container(config())
    *parents, last = key.split(".")
    for parent in parents:
        node = node[parent]
    node[last] = value
    with pytest.raises(ConfigError, match=rf"^'?network\.{re.escape(key)}{words}") as caught:
        build_networks(base, UNBOUNDED if "head" in key else DISCRETE)
    assert "\n" not in str(caught.value)


def test_values_are_converted_to_the_annotations():
    torso = build_networks(config(actor_network__pre_torso__layer_sizes=[1e2, 64.0]), DISCRETE).actor_network.pre_torso
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
        ({"act": "relu"}, "act=relu cannot be set: collections.abc.Callable is built by a block"),
        ({"pair": [8]}, "pair=(8,) has the wrong length: it must have 2 entries"),
        ({"sizes": {"a": "b"}}, "sizes.a=b has the wrong type: it must be an integer"),
    ],
)
def test_values_that_do_not_fit_custom_modules_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=re.escape(f"network.part.{message}")):
        custom(**arguments)


@pytest.mark.parametrize(
    ("target", "name", "size"),
    [
        ("torso.ResNetTorso", "hidden_size", 0),
        ("torso.MLPTorso", "layer_sizes", [64, -1]),
        ("torso.GridTorso", "num_symbols", 0),
        ("torso.SimBaTorso", "expansion", 0),
        ("torso.SimNormTorso", "group_size", 0),
        ("heads.ImplicitQuantileDiscreteQNetwork", "num_cosines", 0),
        ("heads.LinearHead", "output_dim", 0),
    ],
)
def test_sizes_out_of_range_are_refused(target, name, size):
    plain = {"part": {"_target_": f"stoix_like.networks.{target}", name: size}}
    with pytest.raises(ConfigError, match=rf"network\.part\.{name}=.* is out of range"):
        build_networks(plain, DISCRETE)


def test_optional_sizes_may_be_none():
    plain = {"torso": {"_target_": "stoix_like.networks.torso.GridTorso", "num_symbols": None}}
    assert build_networks(plain, DISCRETE).torso.num_symbols is None


@pytest.mark.parametrize(
    ("cell", "kwargs", "message"),
    [
        ("gtrxl", {"windw": 4}, "cell_kwargs.windw is not an option of cell_type=gtrxl: did you mean 'window'"),
        ("gtrxl", {"window": 0}, "cell_kwargs.window=0 is out of range"),
        ("mlstm", {"num_heads": 3}, "cell_kwargs.num_heads=3 must divide hidden_state_dim=8: use a divisor"),
        ("mlstm", {"forget_gate": "tanh"}, "cell_kwargs.forget_gate=tanh is not known"),
        ("gru", {"window": 4}, "cell_kwargs.window is not an option of cell_type=gru: there are none"),
        ("gru", 3, "cell_kwargs=3 has the wrong type: it must be a mapping"),
        ("s5", {"dt_min": 1.0}, "cell_kwargs.dt_min=1 must be at most dt_max=0.1: use a smaller dt_min"),
    ],
)
def test_options_that_cells_do_not_have_are_refused(cell, kwargs, message):
    node = {"_target_": "stoix_like.networks.base.ScannedRNN", "cell_type": cell, "hidden_state_dim": 8}
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_networks({"rnn": {**node, "cell_kwargs": kwargs}}, DISCRETE)
    assert build_networks({"rnn": {**node, "cell_kwargs": {}}}, DISCRETE).rnn.initialize_carry(2) is not None


@pytest.mark.parametrize(
    ("head", "arguments", "message"),
    [
        ("DistributionalContinuousQNetwork", {"vmin": 2, "vmax": 2}, "vmin=2 must be less than vmax=2: use a smaller"),
        ("BoundedNormalHead", {"min_scale": 2.0}, "min_scale=2 must be at most max_scale=1: use a smaller"),
        ("MultivariateNormalDiagHead", {"min_scale": -1.0}, "min_scale=-1.0 is out of range"),
    ],
)
def test_empty_ranges_are_refused_also_with_a_default(head, arguments, message):
    with pytest.raises(ConfigError, match=rf"^network\.head\.{message}"):
        build_networks({"head": {"_target_": HEADS + head, **arguments}}, DISCRETE)


class Outer(nn.Module):
    inner: Custom | None = None


def test_an_argument_may_be_annotated_by_the_class_of_a_module():
    blocks = {"_target_": f"{__name__}.Outer", "inner": {"_target_": f"{__name__}.Custom"}}
    assert isinstance(build_networks({"part": blocks}, DISCRETE).part.inner, Custom)
