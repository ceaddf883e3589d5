import pytest

from support.selections import select
from support.set_ups import setup_of, trained

PRESETS = {
    "cnn": "ppo/ff_ppo",
    "cnn_c51": "q_learning/ff_c51",
    "cnn_ddpg": "ddpg/ff_td3",
    "cnn_dqn": "q_learning/ff_dqn",
    "cnn_iqn": "q_learning/ff_iqn",
    "cnn_large_dqn": "q_learning/ff_dqn",
    "cnn_large_shared": "ppo/ff_ppo",
    "cnn_muzero": "search/ff_mz",
    "cnn_pqn": "q_learning/ff_pqn",
    "cnn_qr_dqn": "q_learning/ff_qr_dqn",
    "cnn_rainbow": "q_learning/ff_rainbow",
    "cnn_rnn": "ppo/rec_ppo",
    "cnn_rnn_dqn": "q_learning/rec_r2d2",
    "cnn_rnn_pqn": "q_learning/rec_pqn",
    "cnn_rnn_shared": "ppo/rec_ppo",
    "cnn_sac": "sac/ff_sac",
    "cnn_sac_discrete": "sac/ff_sac_discrete",
    "cnn_shared": "ppo/ff_ppo",
    "resnet": "ppo/ff_ppo",
    "resnet_dqn": "q_learning/ff_mdqn",
}
CONTINUOUS = ("cnn_ddpg", "cnn_sac")


@pytest.mark.slow
@pytest.mark.parametrize("network", select(PRESETS, quick=("cnn_ddpg", "cnn_rnn")))
def test_a_preset_for_images_fits_its_system(network):
    env = "env._target_=support.custom_envs.Spot" if network in CONTINUOUS else "env=gymnax/breakout"
    networks = setup_of(env, f"system={PRESETS[network]}", f"network={network}", "logger=silent").spec.networks
    first = getattr(networks, "representation_network", networks.actor_network)
    assert 3 in first.pre_torso.view_dims


@pytest.mark.learn
@pytest.mark.optimized
def test_continuous_actions_are_learned_from_images():
    """Columns are uniform on -1, -0.6, … 1, with variance 7/15: no policy that ignores the image exceeds -0.46."""
    convolutions = ("actor_network.pre_torso", "q_network.input_layer.input_layer.pre_torso")
    overrides = [
        *("system=sac/ff_sac", "env._target_=support.custom_envs.Spot", "network=cnn_sac"),
        *(f"network.{torso}.channel_sizes=[4,8]" for torso in convolutions),
        *(f"network.{torso}.hidden_sizes=[32]" for torso in convolutions),
        *("network.q_network.pre_torso.layer_sizes=[32]", "arch.total_timesteps=2000", "arch.num_evaluation=1"),
        *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_devices=1"),
        *("system.q_lr=3e-3", "system.actor_lr=3e-3", "system.epochs=8", "system.rollout_length=8"),
        *("system.warmup_steps=64", "system.total_buffer_size=4096", "system.total_batch_size=64"),
    ]
    assert trained(*overrides).history[-1]["eval/episode_return_mean"] > -0.2
