"""Runs that are refused before they are compiled."""

import re

import pytest

from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.run.set_up.setup import set_up
from support import toys
from support.composed import compose_config
from support.tiny_dreamer import TINY

KERNELS = ["network.actor_network.pre_torso.kernel_sizes=[3]"]


def test_unsuitable_networks_are_refused_before_compiling():
    no_units = [*TINY, "env=gymnax/cartpole", "network.world_model.encoder.units=0"]
    for overrides in (["network.actor_network=null"], ["network=cnn", "env=gymnax/breakout", *KERNELS], no_units):
        with pytest.raises(ConfigError, match="network"):
            set_up(parse_config(compose_config(overrides)))


@pytest.mark.parametrize(("system", "noted"), [("mpo/ff_mpo", True), ("sac/ff_sac", False)])
def test_dropout_without_effect_is_noted(system, noted):
    setup = set_up(parse_config(compose_config([f"system={system}", "env=gymnax/pendulum", "network=mlp_droq"])))
    assert (
        any(note.startswith("network.q_network.pre_torso.dropout_rate=0.01 has") for note in setup.plan.notes) == noted
    )


def test_observations_of_another_shape_than_declared_are_noted():
    setup = set_up(parse_config(compose_config(["env=own", "env._target_=support.custom_envs.GymnaxNarrow"])))
    assert any("returns observations of shape [1], but its observation_space has" in note for note in setup.plan.notes)


@pytest.mark.slow
def test_a_raw_atari_game_is_noted():
    overrides = ["env=gymnasium", "env.scenario.name=PongNoFrameskip-v4", "network=cnn_large_shared"]
    notes = set_up(parse_config(compose_config(overrides))).plan.notes
    expected = (
        "env.scenario.name=PongNoFrameskip-v4 is the raw game: env=ALE/Pong-v5 has the usual preprocessing of Atari"
    )
    assert [note for note in notes if "raw game" in note] == [expected]


@pytest.mark.slow
def test_systems_of_one_seat_refuse_self_play():
    overrides = ["env=pgx/tic_tac_toe", "+env.kwargs.opponent=self", "system=ppo/ff_ppo"]
    with pytest.raises(
        ConfigError, match=r"env.kwargs.opponent=self: system=ppo/ff_ppo learns from one seat of pgx/tic"
    ):
        set_up(parse_config(compose_config(overrides)))


@pytest.mark.slow
def test_a_custom_system_that_does_not_average_over_devices_is_refused():
    """The rewards of this probe equal random observations, which differ between shards."""

    def try_out(num_devices, **values):
        system = toys.overrides(**values)
        overrides = ["env=probe/observed_value", f"arch.num_devices={num_devices}", *system]
        return set_up(parse_config(compose_config(overrides))).plan.notes

    try_out(1, forget_mean=True)
    try_out(2)
    # Only the programs themselves show whether it works.
    assert any("spec.axes.mean, could not be checked: " in note for note in try_out(2, calls_host=True))
    with pytest.raises(ConfigError, match=r"differs between the shards .* by spec\.axes\.mean"):
        try_out(2, forget_mean=True)


LENGTH, ENVS = 5, 4
RUN = [
    *("arch=sebulba", "env=gymnasium", "env.scenario.name=support.scripted:Scripted-v0", f"arch.total_num_envs={ENVS}"),
    *("arch.num_eval_episodes=2", "arch.absolute_metric=false", "arch.compile_cache=false", "logger=silent"),
]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["env=gymnax", "env.scenario.name=CartPole-v1"],
            "arch=sebulba steps environments on the host, and gymnax/CartPole-v1 runs on",
        ),
        (["arch.population.size=2"], "arch.population.size=2 does not fit arch=sebulba"),
        (["arch.actor.actor_per_device=3"], "arch.total_num_envs=4 must be a multiple of 3, 3 actor.*: use 3 or 6"),
        (["arch.learner.device_ids=[]"], r"arch.learner.device_ids=\[\] must name at least one device"),
        (["arch.actor.device_ids=[1,1]"], r"arch.actor.device_ids=\[1, 1\] must name .* none twice"),
        (["arch.actor.device_ids=[0,7]"], r"arch.actor.device_ids=\[0, 7\] needs more devices than there are: use"),
        (["arch.pipeline_queue_size=-1"], "arch.pipeline_queue_size=-1 is out of range"),
        (["arch.architecture_name=sebulbo"], "arch.architecture_name=sebulbo is not known: did you mean 'sebulba'"),
        (["+arch.num_devices=2"], "unknown key 'arch.num_devices'"),
        (["system.warmup_steps=5"], "system.warmup_steps=5: arch=sebulba has no warm-up"),
    ],
)
def test_what_does_not_fit_sebulba_is_refused(overrides, message):
    if overrides == ["system.warmup_steps=5"]:
        overrides = toys.overrides(module="support.keeper", rollout_length=LENGTH, warmup_steps=5)
    with pytest.raises(ConfigError, match=message):
        set_up(parse_config(compose_config([*RUN, *overrides])))


TRIALS = ["arch.population.size=8", "arch.population.hyperparams={actor_lr: {log_uniform: [1e-4, 1e-2]}}"]
CRITIC, ACTOR = "network.critic_network.critic_head", "network.actor_network"
LRU = ["system=ppo/rec_ppo", "network=rnn", f"{ACTOR}.rnn_layer.cell_type=lru"]
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
        ([*SAC, "system.tau=0"], "system.tau=0.0 is out of range: it must be in (0.0, 1.0]"),
        ([*SAC, "system.normalize_rewards=true", "system.reward_scale=0.1"], "system.reward_scale=0.1 has no effect"),
        ([*SAC, f"{ACTOR}.action_head.min_scale=-1"], "action_head.min_scale=-1.0 is out of range"),
        (["network=mlp_hl_gauss", f"{CRITIC}.vmin=20"], "critic_head.vmin=20 must be less than vmax=10"),
        (["network=mlp_hl_gauss", f"{CRITIC}.num_atoms=1"], "num_atoms=1 is out of range: use integers of at least 2"),
        (["network=mlp_symexp", f"+{CRITIC}.limit=100"], "limit=100.0 must be in (0, 80]"),
        ([*LRU, f"{ACTOR}.rnn_layer.cell_kwargs={{max_radius: 1.5}}"], "max_radius=1.5 is out of range"),
        ([*DQN, f"+{ACTOR}.action_head.action_dim=3"], "action_dim=3 does not fit 2 discrete actions: leave it out"),
        (["system=q_learning/ff_pqn", f"{ACTOR}.pre_torso.layer_sizes=[]"], "pre_torso has no layers"),
        (
            ["system=sac/ff_crossq", "env=gymnax/pendulum", "system.total_batch_size=1", "arch.num_devices=1"],
            "one sample each",
        ),
        ([*TRIALS, "arch.population.pbt.every_evals=20"], "pbt.every_evals=20 selects at none of 20 evaluation(s)"),
        (
            [*TRIALS, "arch.population.halving.rounds=4", "arch.total_timesteps=4096"],
            "set arch.total_timesteps for 9 updates",
        ),
        (
            [
                *("system=q_learning/ff_c51", "env=gymnax/cartpole", "arch.population.size=2"),
                *(
                    "arch.population.hyperparams={vmin: [-10, -10], vmax: [10, 10]}",
                    "arch.population.pbt.every_evals=1",
                ),
                "arch.population.pbt.bounds={vmin: {uniform: [-50, 50]}, vmax: {uniform: [-50, 50]}}",
            ],
            "an end of arch.population.pbt.bounds.vmin does not fit: system.vmin=-50.0 must be less",
        ),
        (
            ["system=dreamer/dreamer_v3", "system.train_ratio=1"],
            "use system.total_batch_size=2 system.online_sequences=2",
        ),
        (["env=gymnasium/cartpole", "env.timeout=1e7"], "env.timeout=10000000.0 is out of range"),
    ],
)
def test_values_that_would_train_wrongly_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        set_up(parse_config(compose_config([*overrides, "arch.num_devices=1"])))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*SAC, "system.ent_coef=0.01"], "system.ent_coef=0.01 has no effect with system.autotune=true"),
        ([*DQN, "system.target_update_period=10000000"], "system.target_update_period=10,000,000 of"),
        ([*DQN, "system.reset_every=10000000"], "system.reset_every=10,000,000 of"),
        ([*SAC, "system.policy_frequency=10000000"], "system.policy_frequency=10,000,000 of"),
        (
            ["system=search/ff_az", "env=memory/t_maze", "env.observation_flicker=0.1"],
            "env.observation_flicker=0.1, env=memory/t_maze: the search of system=search/ff_az starts from the state",
        ),
    ],
)
def test_what_is_accepted_with_a_doubt_is_noted(overrides, message):
    notes = set_up(parse_config(compose_config([*overrides, "arch.num_devices=1"]))).plan.notes
    assert any(note.startswith(message) for note in notes), notes
