import pytest

from stoix_like.cli.listings import lines
from stoix_like.composition import group_choices


@pytest.mark.parametrize(
    ("group", "choice", "about"),
    [
        ("system", "sac/ff_sac", "Soft actor-critic, twin critics, continuous actions."),
        ("network", "mlp_ddpg", "A deterministic policy and critics of observation and action, for DDPG and TD3."),
        # A comment of two lines.
        (
            "network",
            "mlp_simba",
            "A squashed normal policy and critics with residual blocks (SimBa), for soft ",
        ),
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
