"""Presets of networks build and fit their systems on images."""

import pytest

from stoix_like.config import compose_config, parse_config
from stoix_like.run.setup import set_up

PRESETS = {
    "cnn": "ppo/ff_ppo",
    "cnn_c51": "q_learning/ff_c51",
    "cnn_dqn": "q_learning/ff_dqn",
    "cnn_iqn": "q_learning/ff_iqn",
    "cnn_pqn": "q_learning/ff_pqn",
    "cnn_qr_dqn": "q_learning/ff_qr_dqn",
    "cnn_rainbow": "q_learning/ff_rainbow",
    "cnn_rnn": "ppo/rec_ppo",
    "cnn_sac_discrete": "sac/ff_sac_discrete",
    "resnet": "ppo/ff_ppo",
}


@pytest.mark.parametrize("network", PRESETS)
def test_a_preset_for_images_fits_its_system(network):
    """Setting up a run traces the initialisation of the networks and their first actions."""
    overrides = ["env=gymnax/breakout", f"system={PRESETS[network]}", f"network={network}", "logger=silent"]
    networks = set_up(parse_config(compose_config(overrides))).networks
    assert 3 in networks.actor_network.pre_torso.view_dims
