import pytest

from stoix_like.errors import ConfigError
from support.set_ups import setup_of

BOX = "env=probe/continuous_policy"
MIRROR = "system.symmetry=stoix_like.envs.symmetries.cartpole"
KL = "system.desired_kl=0.01 system.decay_learning_rates=false"
SEQUENCES = "arch.total_num_envs=4 arch.num_devices=1 system.rollout_length=8"
UNROLLED = "env=gymnax/cartpole system.unroll_steps=3 system.n_step=2 system.total_batch_size=8 arch.total_num_envs=8"
WIDE = " ".join(f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("representation", "reward"))
REFUSED = [
    ("awr/ff_awr", "+system.vtrace=true", "vtrace=true: this system learns from a replay buffer: use false"),
    ("ddpg/ff_d4pg", f"{BOX} system.vmin=3 system.vmax=2", "vmin=3.0 must be less than system.vmax=2.0"),
    ("ddpg/ff_d4pg", f"{BOX} arch.population.hyperparams={{vmin:[-100,1]}} system.vmax=0", "member 1: .*vmin=1.0 must"),
    ("ddpg/ff_ddpg", "env=probe/policy", "system=ddpg/ff_ddpg does not fit the 2 discrete actions of probe"),
    ("ddpg/ff_td3", f"{BOX} system.chunk=5 system.max_exploration_noise=1", "max_exploration_noise=1.0 .*null"),
    ("sac/ff_sac", f"{BOX} system.chunk=5 system.n_step=3", "n_step=3 does not fit system.chunk=5, .* use 1"),
    ("ddpg/ff_td3", f"{BOX} system.critic_bc_coef=1", "critic_bc_coef=1.0 needs the action after every step"),
    ("offline/bc", "", "use arch=offline system.data=FILE, or system.teacher=RUN_DIR"),
    ("ppo/ff_ppo", "system.intrinsic=gail", "set both, or neither"),
    ("ppo/ff_ppo", "system.data=some.npz", "set both, or neither"),
    ("ppo/ff_ppo", "network=mlp_hl_gauss system.clip_value=true", "clip_value=true clips a value, .* use false"),
    ("ppo/ff_ppo", f"{KL} system.decay_learning_rates=true", "desired_kl=0.01 .* use .*decay_learning_rates=false"),
    ("ppo/ff_ppo", f"{KL} system.target_kl=0.02", "system.desired_kl and system.target_kl .* set one of them to null"),
    ("ppo/ff_ppo", f"{KL} system.min_lr=0.1", "min_lr=0.1 must not exceed system.max_lr=0.01"),
    ("ppo/ff_ppo_penalty", KL, "system.adapt_kl_coef=true and system.desired_kl .* use system.adapt_kl_coef=false"),
    ("ppo/ff_ppo", f"{MIRROR} system.target_kl=0.02", "target_kl=0.02 would count .* use system.desired_kl"),
    ("ppo/rec_ppo", f"{SEQUENCES} +{MIRROR}", "symmetry=.*: states of recurrent networks have no known mirror image"),
    ("ppo/rec_ppo", f"{SEQUENCES} system.sequence_length=3", "sequence_length=3 must divide .*=8: .* null"),
    ("ppo/rec_ppo", f"{SEQUENCES} system.num_minibatches=8", "num_minibatches=8 must divide the 4 .* a divisor of 4"),
    ("q_learning/ff_c51", "network=mlp_dqn", "DiscreteQNetworkHead has no num_atoms"),
    ("q_learning/ff_pqn", "system.num_minibatches=7", "num_minibatches=7 must divide the per-shard batch of 256"),
    ("q_learning/rec_pqn", "system.num_minibatches=16", "num_minibatches=16 must divide the 8 environments of a shard"),
    ("q_learning/rec_r2d2", "system.sequence_period=12", "=40 must be a multiple of .*=12: use 36 or 48"),
    (
        "q_learning/rec_r2d2",
        "system.sequence_length=16 system.burn_in_length=8",
        "sequence_period=40, .*exceeds the 16 steps .*sequence_length=16",
    ),
    (
        "q_learning/rec_r2d2",
        "system.total_buffer_size=512 system.sequence_length=100",
        "=512 holds 40 step.*160 step.*burn_in_length=40 .*least 1280",
    ),
    ("q_learning/rec_r2d2", "system.warmup_steps=80 system.total_batch_size=48", "finds 120 step.*use at least 280"),
    ("sac/ff_sac", f"{BOX} system.warmup_steps=0", "warmup_steps=0: the first update finds"),
    ("sac/ff_sac", f"{BOX} system.num_target_critics=3", "num_target_critics=3 .*num_critics=2: use at most 2"),
    # On [-1, 1], the uniform policy has the maximum entropy, log 2 = 0.69 nats.
    ("sac/ff_sac", f"{BOX} system.target_entropy_scale=-1", r"target_entropy_scale=-1.0 .*more than -0\.69"),
    ("sac/ff_sac_discrete", "system.target_entropy_scale=1", r"target_entropy_scale=1.0 .*in \[0\.0, 1\.0\)"),
    ("sac/ff_tqc", f"{BOX} system.num_quantiles=4 system.num_dropped_quantiles=4", "_quantiles=4: use at most 3"),
    ("sac/rec_sac", f"{BOX} +system.n_step=3", r"system\.n_step=3 has no effect here"),
    ("search/ff_az", "+system.store_next_observation=true", "store_next_observation=True has no effect"),
    ("search/ff_az", "env=gymnasium/cartpole", "steps the environment inside its search, and .* host"),
    (
        "search/ff_az",
        "system.num_simulations=4 system.evaluation_simulations=3 system.max_depth=5",
        "max_depth=5 is deeper than 4 simulations can reach .* at most 4",
    ),
    ("search/ff_mz", f"{UNROLLED} system.total_reanalyse_size=16", "total_reanalyse_size=16 exceeds .*batch_size=8"),
    (
        "search/ff_mz",
        f"{UNROLLED} {WIDE} network.dynamics_network.pre_torso.layer_sizes=[8,16]",
        "dynamics_network.pre_torso returns 16 units, and network.representation_network.pre_torso 8",
    ),
    ("search/ff_mz", "network=mlp", "network.representation_network.* choose network=mlp_muzero"),
    ("search/ff_mz", f"{UNROLLED} system.total_buffer_size=32", "=32 .* 5 step.*unroll_steps=3 and .*n_step=2 in"),
    ("tdmpc/td_mpc2", "env=gymnax/cartpole", "system=tdmpc/td_mpc2 does not fit the 2 discrete actions of gymnax"),
    ("tdmpc/td_mpc2", f"{BOX} system.num_elites=600", "num_elites=600 must not exceed .*num_samples=512: use at most"),
    ("tdmpc/td_mpc2", f"{BOX} system.min_std=3", "min_std=3.0 must not exceed system.max_std=2.0: use at most 2.0"),
    (
        "tdmpc/td_mpc2",
        f"{BOX} system.rollout_length=2 system.sequence_period=2 system.horizon=1",
        "exceeds the 1 steps",
    ),
    (
        "tdmpc/td_mpc2",
        f"{BOX} network.dynamics_network.pre_torso.layer_sizes=[8]",
        "dynamics_network.pre_torso returns 8 units, and network.representation_network.pre_torso 512",
    ),
    ("spo/ff_spo", "env=pgx/tic_tac_toe +env.kwargs.opponent=self", "=self: system=spo/ff_spo learns from one seat"),
]


@pytest.mark.parametrize(("system", "overrides", "words"), REFUSED)
def test_what_does_not_fit_a_system_is_refused(system, overrides, words):
    with pytest.raises(ConfigError, match=words):
        setup_of(f"system={system}", *overrides.split()).build_system()
