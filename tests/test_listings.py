import re
from pathlib import Path

import pytest

from stoix_like.config import compose_config, group_choices, parse_config
from stoix_like.envs.spaces import Discrete
from stoix_like.errors import ConfigError
from stoix_like.listings import experiments, lines, tuned_experiment
from stoix_like.networks.utils import build_networks
from stoix_like.run.setup import set_up
from stoix_like.run.suggestions import fitting_systems

README = Path(__file__).parent.parent / "README.md"


def test_the_listed_returns_of_experiments_are_those_of_the_readme():
    measured = {}
    for line in README.read_text().splitlines():
        if named := re.search(r"\+experiment=(\w+) arch\.", line) if line.startswith("| `") else None:
            _, _, _, seeds, steps, _, final, *_ = (cell.strip() for cell in line.split("|"))
            measured[named[1]] = f"return {final} after {steps} env steps, seeds {seeds}"
    assert len(measured) >= 17
    for experiment in experiments():
        if experiment.name in measured or " env steps, seeds " in experiment.about:
            assert experiment.about.endswith(f": {measured[experiment.name]}"), "update the comment in the YAML file"


def test_the_listed_systems_and_environments_of_experiments_are_those_that_they_compose_to():
    for experiment in experiments()[::4]:
        choices = compose_config([f"+experiment={experiment.name}"], return_hydra_config=True).hydra.runtime.choices
        assert (choices.system, choices.env) == (experiment.system, experiment.env)


@pytest.mark.parametrize(
    ("system", "scenario", "expected"),
    [
        ("sac/ff_sac", "Pendulum-v1", "sac_pendulum"),
        ("ppo/ff_ppo", "Pendulum-v1", "ppo_pendulum"),
        ("ppo/ff_ppo", "Breakout-MinAtar", "ppo_breakout"),
        # Its experiment sets the budget alone.
        ("ppo/ff_ppo", "CartPole-v1", None),
        ("q_learning/ff_dqn", "Pendulum-v1", None),
        ("ppo/rec_ppo", "CartPole-v1", None),
        ("ppo/rec_ppo", "CartPole-v1-no-velocity", "rec_ppo_cartpole_no_velocity"),
    ],
)
def test_a_tuned_experiment_is_found_by_system_and_environment(system, scenario, expected):
    assert tuned_experiment(system, scenario) == expected


@pytest.mark.slow
def test_networks_are_listed_with_the_systems_that_they_fit():
    listed = lines("networks")
    assert listed[listed.index("network=mlp_ddpg") + 1] == "  fits ddpg/ff_ddpg, ddpg/ff_td3"
    stochastic = [
        "awr/ff_awr",
        "impala/ff_impala",
        "mpo/ff_vmpo",
        "ppo/ff_dpo",
        "ppo/ff_ppo",
        "ppo/ff_ppo_penalty",
        "vpg/ff_a2c",
        "vpg/ff_reinforce",
    ]
    assert fitting_systems("cnn") == fitting_systems("mlp_continuous") == stochastic
    assert {system for network in group_choices("network") for system in fitting_systems(network)} == set(
        group_choices("system")
    )


def takes_discrete_actions(network):
    try:
        build_networks(network, Discrete(2))
    except ConfigError:
        return False
    return True


@pytest.mark.slow
def test_every_listed_network_can_be_set_up_with_its_systems():
    for network in group_choices("network"):
        for system in fitting_systems(network):
            config = compose_config(choice := [f"system={system}", f"network={network}"])
            spaces = getattr(type(parse_config(config).system), "action_spaces", (Discrete,))
            discrete = Discrete in spaces and takes_discrete_actions(config.network)
            vectors, images = (
                ("env=gymnax/cartpole", "env=gymnax/breakout")
                if discrete
                else ("env=gymnax/pendulum", "env._target_=own_envs.Spot")
            )
            env = "env=navix/empty_5x5" if network == "grid" else vectors
            env = images if network.startswith(("cnn", "resnet")) else env
            set_up(parse_config(compose_config([*choice, env])))
