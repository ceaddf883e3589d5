import pytest

from support import disco
from support.resumed import assert_resumed_equals_whole
from support.set_ups import loop_of
from support.small_tdmpc import NETWORK as TDMPC2_NETWORK
from support.small_tdmpc import PLANS
from support.tiny_dreamer import NETWORK

pytestmark = pytest.mark.optimized
REPLAYS = {
    "awr/ff_awr": ["env=gymnax/cartpole", "system.n_step=2"],
    "disco_rl/ff_disco103": [
        *("env=gymnax/cartpole", "system.sequence_length=4", "system.sequence_period=4", *disco.overrides()),
        *("network.actor_network.action_head.lstm_size=8", "network.actor_network.action_head.layer_sizes=[8]"),
    ],
    "dreamer/dreamer_v3": [
        *("env=gymnax/pendulum", *NETWORK, "system.train_ratio=8", "system.sequence_length=8"),
        *("system.latent_period=4", "system.imagination_length=3"),
    ],
    "mpo/ff_mpo": ["env=gymnax/pendulum", "system.n_step=3", "system.noise_correlation=0.9"],
    "q_learning/ff_rainbow": ["env=gymnax/cartpole", "network.actor_network.action_head.layer_sizes=[8]"],
    "q_learning/rec_r2d2": [
        *("env=gymnax/cartpole", "network.actor_network.rnn_layer.hidden_state_dim=8", "system.sequence_period=4"),
        *("system.burn_in_length=2", "system.sequence_length=6", "network.actor_network.rnn_layer.cell_type=lru"),
    ],
    "q_learning/ff_iqn": ["env=gymnax/cartpole", "system.prioritised=true", "system.target_update_period=5"],
    "search/ff_az": [
        *("env=pgx/tic_tac_toe", "+env.kwargs.opponent=self", "system.num_simulations=4", "system.n_step=2"),
        *("system.sequence_length=4", "system.sequence_period=4", "system.prioritised=true"),
    ],
    "search/ff_sampled_az": [
        *("env=gymnax/pendulum", "system.num_simulations=4", "system.n_step=2", "system.num_samples=4"),
        *("system.sequence_length=4", "system.sequence_period=2", "system.normalize_observations=true"),
    ],
    "search/ff_mz": [
        *("env=gymnax/cartpole", "system.num_simulations=4", "system.unroll_steps=2", "system.n_step=2"),
        *("system.prioritised=true", "system.total_reanalyse_size=8", "system.normalize_observations=true"),
    ],
    "search/ff_sampled_mz": [
        *("env=gymnax/pendulum", "system.num_simulations=4", "system.unroll_steps=2", "system.n_step=2"),
        *("system.num_samples=4", "system.sequence_period=2"),
    ],
    "spo/ff_spo": [
        *("env=gymnax/pendulum", "system.sequence_length=4", "system.sequence_period=2", "system.num_particles=4"),
        *("system.evaluation_particles=4", "network.critic_network.pre_torso.layer_sizes=[8]"),
        "system.normalize_observations=true",
    ],
    "tdmpc/td_mpc2": ["env=gymnax/pendulum", *TDMPC2_NETWORK, *PLANS, "system.normalize_observations=true"],
    "sac/ff_sac": ["env=gymnax/pendulum", "system.n_step=3", "system.noise_correlation=0.9"],
    "sac/rec_sac": [
        *("env=gymnax/pendulum_no_velocity", "network.q_network.rnn_layer.hidden_state_dim=8"),
        *("system.sequence_period=4", "system.burn_in_length=2", "system.sequence_length=6"),
        *("system.normalize_observations=true", "system.normalize_rewards=true", "env.observation_noise=0.1"),
        *("env.observation_delay=1", "env.observation_flicker=0.2"),
        *("env.observe_last_action=true", "env.observe_last_reward=true"),
    ],
    "ddpg/rec_td3": [
        *("env=gymnax/pendulum_no_velocity", "network.actor_network.rnn_layer.cell_type=lstm"),
        *("system.sequence_period=4", "system.burn_in_length=2", "system.sequence_length=5"),
        "system.store_next_observation=false",
    ],
    "ddpg/ff_td3_c51": ["env=gymnax/pendulum", "system.max_exploration_noise=0.8", "system.n_step=3"],
    "sac/ff_crossq": ["env=gymnax/pendulum", "system.policy_frequency=2", "system.normalize_observations=true"],
}


@pytest.mark.slow
@pytest.mark.parametrize("system", REPLAYS)
def test_resumed_run_with_replay_is_bit_identical(tmp_path, system):
    """Includes priorities, windows across the end of the ring buffer, hard updates, stored states, correlated noise."""
    sizes = ["system.rollout_length=4", "system.warmup_steps=16", "system.total_buffer_size=256"]
    budget = ["arch.total_num_envs=4", "arch.total_timesteps=832", "arch.num_evaluation=4", "arch.num_eval_episodes=2"]
    small = ["system.total_batch_size=16", "network.actor_network.pre_torso.layer_sizes=[8]"]
    small += [] if system == "dreamer/dreamer_v3" else ["system.epochs=2"]
    overrides = [f"system={system}", *REPLAYS[system], *sizes, *budget, *small, "arch.compile_cache=false"]

    def training_loop(writer):
        return loop_of(*overrides, writer=writer)

    def check(resumed):
        # Half of the run, after more steps than the replay buffer holds.
        assert not resumed.missing
        assert 256 < resumed.env_steps < 500

    assert_resumed_equals_whole(training_loop, tmp_path, check)
