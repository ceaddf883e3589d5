import pytest

from support.set_ups import trained


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
