import pytest

from stoix_like.cli.listings import lines
from stoix_like.composition import compose_config, group_choices
from stoix_like.config import parse_config
from stoix_like.envs.spaces import Discrete
from stoix_like.errors import ConfigError
from stoix_like.networks.utils import build_networks
from stoix_like.run.setup import set_up
from stoix_like.run.suggestions import fitting_systems


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
