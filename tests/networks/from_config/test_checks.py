import re

import pytest

from stoix_like.envs.spaces import Discrete
from stoix_like.errors import ConfigError
from stoix_like.networks.from_config.modules import build_networks, instantiate

DISCRETE = Discrete(3)
HEADS = "stoix_like.networks.heads."


@pytest.mark.parametrize(
    ("target", "name", "size"),
    [
        ("torso.ResNetTorso", "hidden_size", 0),
        ("torso.MLPTorso", "layer_sizes", [64, -1]),
        ("torso.VisualResNetTorso", "blocks_per_group", [1.5]),
        ("heads.ImplicitQuantileCriticHead", "num_cosines", 0),
        ("heads.ImplicitQuantileCriticHead", "num_values", 0),
        ("heads.LinearHead", "output_dim", 0),
        ("layers.NoisyLinear", "features", None),
    ],
)
def test_sizes_out_of_range_are_refused(target, name, size):
    plain = {"part": {"_target_": f"stoix_like.networks.{target}", name: size}}
    with pytest.raises(ConfigError, match=rf"network\.part\.{name}=.* is out of range"):
        build_networks(plain, DISCRETE)


def test_optional_sizes_may_be_none():
    plain = {"head": {"_target_": HEADS + "ImplicitQuantileCriticHead", "num_values": None}}
    assert build_networks(plain, DISCRETE).head.num_values is None


@pytest.mark.parametrize(
    ("cell", "kwargs", "message"),
    [
        ("gtrxl", {"windw": 4}, "cell_kwargs.windw is not an option of cell_type=gtrxl: did you mean 'window'"),
        ("gtrxl", {"window": 0}, "cell_kwargs.window=0 is out of range"),
        ("mlstm", {"num_heads": 3}, "cell_kwargs.num_heads=3 must divide hidden_state_dim=8: use a divisor"),
        ("mlstm", {"forget_gate": "tanh"}, "cell_kwargs.forget_gate=tanh is not known"),
        ("gru", {"window": 4}, "cell_kwargs.window is not an option of cell_type=gru: it has none"),
        ("gru", 3, "cell_kwargs=3 must be options by name: use network.cell_kwargs={name: value}, or null"),
        ("s5", {"dt_min": 1.0}, r"cell_kwargs.dt_min=1.0 must not exceed dt_max=0.1: use a smaller dt_min"),
    ],
)
def test_options_that_cells_do_not_have_are_refused(cell, kwargs, message):
    node = {"_target_": "stoix_like.networks.base.ScannedRNN", "cell_type": cell, "hidden_state_dim": 8}
    with pytest.raises(ConfigError, match=re.escape(message)):
        instantiate({**node, "cell_kwargs": kwargs})
    assert instantiate({**node, "cell_kwargs": {}}).initialize_carry(2) is not None


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
