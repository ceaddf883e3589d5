"""Runs that are refused before they are compiled."""

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
def test_systems_of_one_seat_refuse_self_play():
    overrides = ["env=pgx/tic_tac_toe", "+env.kwargs.opponent=self", "system=ppo/ff_ppo"]
    with pytest.raises(
        ConfigError, match=r"env.kwargs.opponent=self: system=ppo/ff_ppo learns from one seat of pgx/tic"
    ):
        set_up(parse_config(compose_config(overrides)))


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
