import re

import pytest

from stoix_like.errors import ConfigError
from support import toys
from support.keeper import RUN
from support.set_ups import setup_of


@pytest.mark.parametrize(("system", "noted"), [("mpo/ff_mpo", True), ("sac/ff_sac", False)])
def test_dropout_without_effect_is_noted(system, noted):
    notes = setup_of(f"system={system}", "env=gymnax/pendulum", "network=mlp_droq").plan.notes
    assert any(note.startswith("network.q_network.pre_torso.dropout_rate=0.01 has") for note in notes) == noted


def test_observations_of_another_shape_than_declared_are_noted():
    notes = setup_of("env=own", "env._target_=support.custom_envs.GymnaxNarrow").plan.notes
    assert any("returns observations of shape [1], but its observation_space has" in note for note in notes)


@pytest.mark.slow
def test_a_custom_system_that_does_not_average_over_devices_is_refused():
    """The rewards of this probe equal random observations, which differ between shards."""

    def try_out(num_devices, **values):
        given = ["env=probe/observed_value", f"arch.num_devices={num_devices}", *toys.overrides(**values)]
        return setup_of(*given).plan.notes

    try_out(1, forget_mean=True)
    try_out(2)
    # Only the programs themselves show whether it works.
    assert any("spec.axes.mean, could not be checked: " in note for note in try_out(2, calls_host=True))
    with pytest.raises(ConfigError, match=r"differs between the shards .* by spec\.axes\.mean"):
        try_out(2, forget_mean=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env=gymnax", "env.scenario.name=CartPole-v1"], "steps environments on the host, and gymnax/CartPole"),
        (["arch.population.size=2"], "arch.population.size=2 does not fit arch=sebulba"),
        (["arch.actor.actor_per_device=3"], "arch.total_num_envs=4 must be a multiple of 3, 3 actor.*: use 3 or 6"),
        (["arch.actor.device_ids=[1,1]"], r"arch.actor.device_ids=\[1, 1\] must name .* none twice"),
        (["arch.actor.device_ids=[0,7]"], r"arch.actor.device_ids=\[0, 7\] needs more devices than there are: use"),
        (["arch.architecture_name=sebulbo"], "arch.architecture_name=sebulbo is not known: did you mean 'sebulba'"),
        (["+arch.num_devices=2"], "unknown key 'arch.num_devices'"),
        (toys.overrides(module="support.keeper", rollout_length=5, warmup_steps=5), "arch=sebulba has no warm-up"),
    ],
)
def test_what_does_not_fit_sebulba_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        setup_of(*RUN, *overrides)


TRIALS = ["arch.population.size=8", "arch.population.hyperparams={actor_lr: {log_uniform: [1e-4, 1e-2]}}"]
PBT = [*TRIALS, "arch.population.pbt.every_evals=2"]
BOUNDS, VARY = "arch.population.pbt.bounds", "arch.population.hyperparams"
WAGES = ["env=own", "env._target_=support.games.Wages"]
GAMES = [*WAGES, "system=ppo/ff_ppo"]
SEEN = ["env._target_=support.privileged.Privileged", "+observations=privileged"]
CRITIC, ACTOR = "network.critic_network.critic_head", "network.actor_network"
SAC, DQN = ["system=sac/ff_sac", "env=gymnax/pendulum"], ["system=q_learning/ff_dqn", "env=gymnax/cartpole"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # 8 environments make 8 gradient steps per update.
        ([*DQN, "system.reset_every=8"], "system.reset_every=8 would reset in each update of 8 gradient step(s)"),
        (
            ["system.desired_kl=0.01", "system.decay_learning_rates=false", "system.actor_lr=1e-6"],
            "system.actor_lr=1e-06",
        ),
        # Population-based training.
        ([*PBT, "arch.population.size=1"], "needs several members"),
        ([*PBT[:1], PBT[2], f"{VARY}={{gamma: {{choice: [0.9, 0.99]}}}}"], "gamma to {uniform: [low, high]}"),
        ([*PBT, f"{BOUNDS}={{gamma: {{uniform: [0.9, 1.0]}}}}"], "bounds.gamma does not vary"),
        ([*PBT, f"{BOUNDS}={{actor_lr: {{uniform: [-1, 1]}}}}"], "system.actor_lr=-1.0"),
        ([*TRIALS, f"{BOUNDS}={{gamma: {{uniform: [0, 1]}}}}"], "set arch.population.pbt.every_evals=1"),
        ([*PBT, "arch.population.pbt.fraction=0.6"], "arch.population.pbt.fraction=0.6"),
        # Games of several agents.
        (["network.share=false"], "network.share=false has no effect: gymnax/CartPole-v1 has one agent"),
        ([*WAGES, "system=ppo/rec_ppo", "network.share=false"], "system=ppo/rec_ppo has the same networks for all"),
        ([*WAGES, "system=search/ff_az"], "plans the actions of one agent"),
        (["env.team_reward=true"], "env.team_reward=true has no effect: gymnax/CartPole-v1 has one agent"),
        ([*GAMES, "system.num_minibatches=5"], "system.num_minibatches=5 must divide"),
        ([*GAMES, "network.share=false", "system.intrinsic=rnd"], "intrinsic=rnd has one network for all agents"),
        ([*WAGES, "system=q_learning/ff_pqn_vdn", "system.normalize_rewards=true"], "set env.team_reward=true"),
        ([*WAGES, "+observations=centralised"], "games of several agents have it with +env.kwargs.world=true"),
        # Entries of their own for actors and critics.
        ([*SEEN, "network.observations.critic=agent_view.privileged"], "name=agent_view.privileged is not part"),
        ([*SEEN, "+network.observations.critics=agent_view"], "network.observations.critics is not a role: "),
        ([*SEEN, "network=mlp_shared"], "network.critic_network shares its torso"),
        ([*SEEN, "network.critic_network=null"], "there is no network.critic_network or network.q_network"),
        # Sizes that no machine has; `test_bounds` has those beyond the range of a key.
        ([*DQN, "system.total_buffer_size=1e12"], "system.total_buffer_size=1000000000000 is too large for"),
        (["system=q_learning/ff_rainbow", "system.total_buffer_size=2e9"], "total_buffer_size=2000000000 is too large"),
        (
            ["system=ddpg/ff_td3", SAC[1], "system.decay_learning_rates=true", "arch.total_timesteps=4e9"],
            "decay_learning_rates=True: 3,999,998,976 gradient steps are more",
        ),
        # Networks.
        (["network.actor_network=null"], "network."),
        # Pictures.
        (["env=probe/value", "logger.video.every_evals=3"], "every_evals=3: env.scenario.name=value has no drawing: "),
        ([*SAC, "system.normalize_rewards=true", "system.reward_scale=0.1"], "system.reward_scale=0.1 has no effect"),
        (["network=mlp_hl_gauss", f"{CRITIC}.vmin=20"], "critic_head.vmin=20 must be less than vmax=10"),
        (["network=mlp_hl_gauss", f"{CRITIC}.num_atoms=1"], "num_atoms=1 is out of range: it must be at least 2"),
        (["system=q_learning/ff_pqn", f"{ACTOR}.pre_torso.layer_sizes=[]"], "pre_torso has no layers"),
        (["system=sac/ff_crossq", "env=gymnax/pendulum", "system.total_batch_size=1"], "one sample each"),
        (["system=sac/ff_xqc", "env=gymnax/pendulum", "system.total_batch_size=1"], "one sample each"),
        ([*TRIALS, "arch.population.pbt.every_evals=20"], "pbt.every_evals=20 selects at none of 20 evaluation(s)"),
        (
            [
                *("system=q_learning/ff_c51", "env=gymnax/cartpole", "arch.population.size=2"),
                *(f"{VARY}={{vmin: [-10, -10], vmax: [10, 10]}}", "arch.population.pbt.every_evals=1"),
                f"{BOUNDS}={{vmin: {{uniform: [-50, 50]}}, vmax: {{uniform: [-50, 50]}}}}",
            ],
            "an end of arch.population.pbt.bounds.vmin does not fit: system.vmin=-50.0 must be less",
        ),
        (["system=dreamer/dreamer_v3", "system.train_ratio=1"], "total_batch_size=2 system.online_sequences=2"),
    ],
)
def test_values_that_would_train_wrongly_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        setup_of(*overrides, "arch.num_devices=1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*SAC, "system.ent_coef=0.01"], "system.ent_coef=0.01 has no effect with system.autotune=true"),
        ([*DQN, "system.target_update_period=10000000"], "system.target_update_period=10,000,000 of"),
        ([*DQN, "system.reset_every=10000000"], "system.reset_every=10,000,000 of"),
        ([*SAC, "system.policy_frequency=10000000"], "system.policy_frequency=10,000,000 of"),
        pytest.param(
            ["env=gymnasium", "env.scenario.name=PongNoFrameskip-v4", "network=cnn_large_shared"],
            "env.scenario.name=PongNoFrameskip-v4 is the raw game: env=ALE/Pong-v5 has",
            marks=pytest.mark.slow,
        ),
        (
            ["system=search/ff_az", "env=memory/t_maze", "env.observation_flicker=0.1"],
            "env.observation_flicker=0.1, env=memory/t_maze: the search of system=search/ff_az starts from the state",
        ),
    ],
)
def test_what_is_accepted_with_a_doubt_is_noted(overrides, message):
    notes = setup_of(*overrides, "arch.num_devices=1").plan.notes
    assert any(note.startswith(message) for note in notes), notes
