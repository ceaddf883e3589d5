import pytest

from stoix_like.cli.listings import lines
from stoix_like.composition import group_choices
from stoix_like.networks.from_config.modules import choices
from support.systems import SYSTEMS, schema


@pytest.mark.parametrize(
    ("group", "choice", "about"),
    [
        ("system", "sac/ff_sac", "Soft actor-critic, twin critics, continuous actions."),
        ("network", "mlp_ddpg", "A deterministic policy and critics of observation and action, for DDPG and TD3."),
        # A comment of two lines.
        ("network", "mlp_simba", "A squashed normal policy and critics with residual blocks (SimBa), for soft "),
    ],
)
def test_systems_and_networks_are_listed_with_a_line_about_each(group, choice, about):
    listed = lines(f"{group}s")
    if group == "network":
        names, listed = listed[: listed.index("")], listed[listed.index("") + 1 :]
        assert names[0].startswith("cnn      cnn  _c51")
        assert sum(len(line.split()) for line in names) >= len(group_choices("network"))
    assert [line for line in listed if not line.startswith("  ")] == [
        f"{group}={name}" for name in group_choices(group)
    ]
    assert len(listed) == 2 * len(group_choices(group))
    assert listed[listed.index(f"{group}={choice}") + 1].startswith(f"  {about}")
    assert all(len(line) > 20 for line in listed[1::2])


def test_parts_of_networks_are_listed_as_overrides():
    assert "network.actor_network.action_head._target_=stoix_like.networks.heads.BetaDistributionHead" in lines("heads")
    assert "network.critic_network.critic_head._target_=stoix_like.networks.heads.ScalarCriticHead" in lines("heads")
    assert "network.actor_network.pre_torso._target_=stoix_like.networks.torso.SimBaTorso" in lines("torsos")
    assert lines("cells")[:2] == ["network.actor_network.rnn_layer.cell_type=gru", "  GRU cell."]
    assert all(len(line) > 8 for kind in ("heads", "torsos", "cells") for line in lines(kind)[1::2])


def test_heads_are_listed_where_a_system_takes_them():
    taken = {
        (path, outputs)
        for system in SYSTEMS
        for path, needed in schema(system).network_heads.items()
        for outputs in (needed.outputs, *needed.alternatives)
    }
    heads = dict(line.split("._target_=")[::-1] for line in lines("heads")[::2])
    declared = {head: part.outputs for head, part in choices("head").items() if hasattr(part, "outputs")}
    assert {(heads[head].removeprefix("network."), declared[head]) for head in heads.keys() & declared} <= taken
    left_out = {head.rpartition(".")[2] for head in choices("head").keys() - heads}
    # An array of any shape, and a head of two others: no system takes them.
    assert left_out == {"LinearHead", "PolicyValueHead"}
    assert heads["stoix_like.networks.heads.DistributionalContinuousQNetwork"].endswith(".critic_head")
