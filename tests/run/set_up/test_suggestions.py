import collections
import functools
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like import composition
from stoix_like.base_types import Observation
from stoix_like.composition import config_dir, group_choices
from stoix_like.config import import_build, parse_config, schema_of
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import write_data
from stoix_like.envs.spaces import Box, Discrete, fits
from stoix_like.errors import ConfigError
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.networks.requirements import check_networks
from stoix_like.run.set_up.suggestions import experiments, tuned_experiment
from support import disco
from support.composed import compose_config
from support.selections import first
from support.set_ups import setup_of
from support.systems import needs_examples

DOCS = Path(__file__).parents[3] / "docs"
RESULTS = (DOCS / "results.md").read_text().splitlines()
MEMORY, GOALS = ((DOCS / f"guides/{name}.md").read_text().splitlines() for name in ("memory", "goals"))
DQN, SAC = ("system=q_learning/ff_dqn",), ("system=sac/ff_sac",)
PQN = ("system=q_learning/ff_pqn",)
IMAGES, VECTORS, CONTINUOUS = ("env=gymnax/breakout",), ("env=gymnax/cartpole",), ("env=gymnax/pendulum",)


# One refusal of each kind; below, those of other families of systems.
KINDS = [
    ((*DQN, *IMAGES, "network=cnn"), "choose network=cnn_dqn"),
    ((*DQN, *VECTORS, "network=mlp_c51"), "has num_atoms, vmin, vmax, .* choose network=mlp_dqn"),
    ((*PQN, *IMAGES, "network=cnn_dqn"), r"use_layer_norm=false, but .* choose network=cnn_pqn"),
    ((*SAC, *CONTINUOUS, "network=mlp"), "choose network=mlp_sac"),
    ((*SAC, *CONTINUOUS, "network=mlp_crossq"), "normalises batches, but .* does not: choose network=mlp_sac"),
    (("system=sac/ff_crossq", *CONTINUOUS, "network=mlp_sac"), "needs it: choose network=mlp_crossq"),
    ((*VECTORS, "network=rnn"), r"rnn_layer is set, but .* is not recurrent: choose network=mlp"),
    (("system=ppo/rec_ppo", *VECTORS, "network=mlp"), "rnn_layer is not set, .* choose network=rnn"),
    ((*VECTORS, "network=cnn"), "choose network=mlp"),
    ((*VECTORS, "network.critic_network=null"), r"network\.critic_network is not set.*choose network=mlp"),
]
OTHERS = [
    (("system=q_learning/ff_rainbow", *IMAGES, "network=cnn"), "choose network=cnn_rainbow"),
    (("system=reppo/ff_reppo", *CONTINUOUS, "network=mlp_sac"), "choose network=mlp_reppo"),
    (("system=ddpg/ff_d4pg", *CONTINUOUS, "network=mlp_ddpg"), "choose network=mlp_d4pg"),
    (("system=dreamer/dreamer_v3", *IMAGES, "network=cnn"), "choose network=dreamer_xs"),
    (("system=ppo/rec_ppo", *IMAGES, "network=cnn"), "choose network=cnn_rnn"),
    (("system=q_learning/rec_r2d2", *VECTORS, "network=mlp_dqn"), "choose network=rnn_dqn"),
    (("system=ddpg/rec_td3", *CONTINUOUS, "network=rnn_sac"), "choose network=rnn_ddpg"),
]


def refusal(*overrides):
    with pytest.raises(ConfigError) as caught:
        setup_of("logger=silent", *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("overrides", "advice"), first(len(KINDS), [*KINDS, *OTHERS]))
def test_a_network_that_does_not_fit_names_the_nearest_one_that_does(overrides, advice):
    message = refusal(*overrides)
    assert message.startswith("network.")
    assert re.search(advice + "$", message), message


@pytest.mark.parametrize(
    ("overrides", "systems"),
    [
        ((*SAC, *VECTORS), "sac/ff_sac_discrete"),
        (
            ("system=sac/ff_sac_discrete", *CONTINUOUS),
            "sac/ff_crossq, sac/ff_flow, sac/ff_sac, sac/ff_sac_c51, sac/ff_tqc, sac/ff_xqc or sac/rec_sac",
        ),
        ((*DQN, *CONTINUOUS), "q_learning/ff_pqn_continuous"),
        # No other discovered rule acts continuously: those of the default family.
        (
            ("system=disco_rl/ff_disco103", *CONTINUOUS, *disco.overrides()),
            "ppo/ff_dpo, ppo/ff_ppo, ppo/ff_ppo_penalty or ppo/rec_ppo",
        ),
    ],
)
def test_a_system_that_does_not_fit_names_those_that_do(overrides, systems):
    assert refusal(*overrides).endswith(f": choose system={systems}")


def test_the_listed_returns_of_experiments_are_those_of_the_results():
    measured, adapted = collections.defaultdict(list), collections.defaultdict(list)
    for line in RESULTS:
        if named := re.search(r"\+experiment=(\w+) ", line) if line.startswith("| `") else None:
            _, _, _, seeds, steps, _, final, *_ = (cell.strip() for cell in line.split("|"))
            said = f" return {final} after {steps} env steps, seeds {seeds}"
            is_own = f"{named[0]}arch." in line  # no other settings
            (measured if is_own else adapted)[named[1]].append(f":{said}" if is_own else f",{said}")
    # Commands of another form: the return is in the row that starts so.
    others = {
        "crl_point_maze": (RESULTS, "| `goals/ff_crl` | point_maze |"),
        "her_bit_flip": (GOALS, "| 200,000 |"),
        "rec_ppo_t_maze": (MEMORY, "| `gru` |"),
        "rlpd_hopper": (RESULTS, "| RLPD on Hopper-v5,"),
        "rlpd_pendulum": (RESULTS, "| RLPD on Pendulum,"),
        "sac_her_point_maze": (RESULTS, "| `sac/ff_sac` | point_maze |"),
    }
    assert len(measured) >= 17
    for experiment in experiments():
        name, about = experiment.name, experiment.about
        if name in others:
            lines, start = others[name]
            (row,) = (line for line in lines if line.startswith(start))
            assert re.search(r"return (.*) after", about)[1] in row
        elif name in measured or " env steps, seeds " in about:
            rows = tuple(measured[name] or adapted[name])
            assert about.endswith(rows), "update the comment in the YAML file"
            assert name in measured or ": not measured" in about
        else:
            assert ": not measured" in about


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "environment", "width", "bound"),
    [("rlpd_pendulum", "gymnax/Pendulum-v1", 3, 2.0), ("rlpd_hopper", "gymnasium/Hopper-v5", 11, 1.0)],
)
def test_experiments_on_data_need_a_file_of_the_user(experiment, environment, width, bound, tmp_path):
    given = f"+experiment={experiment}"
    assert re.match(r"system\.data=FILE: there is no such file: use an \.npz file", refusal(given))
    row, size = np.arange(400), 1 if width == 3 else 3
    view, action = np.zeros((400, width), np.float32), np.full((400, size), bound / 2, np.float32)
    header, reward = DataHeader(environment=environment), np.ones(400, np.float32)
    data = DataSet(header, Observation(view), action, reward, row < 0, row == 398, row < 399)
    write_data(tmp_path / "data.npz", data.with_statistics())
    words = [given, f"system.data={tmp_path}/data.npz", "logger=silent", "system.total_buffer_size=8192"]
    assert setup_of(*words).spec.data is not None


@pytest.mark.slow
def test_the_listed_systems_and_environments_of_experiments_are_those_that_they_compose_to():
    for experiment in experiments():
        composed = composition.compose_config([f"+experiment={experiment.name}"], return_hydra_config=True)
        choices = composed.hydra.runtime.choices
        assert (choices.system, choices.env) == (experiment.system, experiment.env)


@pytest.mark.parametrize(
    ("system", "suite", "scenario", "expected"),
    [
        ("sac/ff_sac", "gymnax", "Pendulum-v1", "sac_pendulum"),
        ("ppo/ff_ppo", "gymnax", "Pendulum-v1", "ppo_pendulum"),
        # Its experiment sets the budget alone.
        ("ppo/ff_ppo", "gymnax", "CartPole-v1", None),
        ("q_learning/ff_dqn", "gymnax", "Pendulum-v1", None),
        ("ppo/rec_ppo", "gymnax", "CartPole-v1", None),
        ("ppo/rec_ppo", "gymnax", "CartPole-v1-no-velocity", "rec_ppo_cartpole_no_velocity"),
        # Before it in the alphabet are others whose returns nobody has measured.
        ("sac/ff_sac", "gymnasium", "Hopper-v5", "sac_hopper"),
        # The only return is one with smaller critics.
        ("sac/ff_crossq", "gymnasium", "HalfCheetah-v5", None),
        ("ppo/rec_ppo", "memory", "t_maze", "rec_ppo_t_maze"),
        ("ppo/ff_ppo", "jaxtari", "pong", "ppo_jaxtari_pong"),
        ("ppo/ff_ppo", "octax", "pong", None),
    ],
)
def test_a_tuned_experiment_is_found_by_system_and_environment(system, suite, scenario, expected):
    assert tuned_experiment(system, suite, scenario) == expected


@functools.cache
def fitting_systems(network):
    config = OmegaConf.to_container(compose_config([f"network={network}"]).network, resolve=True)

    def fit(system, space):
        module = OmegaConf.load(config_dir() / "system" / f"{system}.yaml").module
        schema = schema_of(import_build(module))
        try:
            check_networks(build_networks(config, space), schema, system)
        except ConfigError:
            return False
        return fits(schema, space)

    spaces = (Discrete(2), Box(-1.0, 1.0, (1,)))
    return [system for system in group_choices("system") if any(fit(system, space) for space in spaces)]


@pytest.mark.slow
def test_every_system_has_a_network_that_fits():
    # All discrete actions are searched, or sampled ones of any kind.
    assert {*fitting_systems("cnn")} == {*fitting_systems("mlp_continuous"), "search/ff_az"}
    fitted = {system for network in group_choices("network") for system in fitting_systems(network)}
    assert fitted == set(group_choices("system"))


def takes_discrete_actions(network):
    try:
        build_networks(network, Discrete(2))
    except ConfigError:
        return False
    return True


@pytest.mark.slow
def test_every_network_can_be_set_up_with_the_systems_that_it_fits():
    for network in group_choices("network"):
        # Those that imitate need data of each environment.
        for system in itertools.filterfalse(needs_examples, fitting_systems(network)):
            if network == "mlp_tdmpc2" and system != "tdmpc/td_mpc2":
                continue  # its critics take latents and actions
            config = compose_config(choice := [f"system={system}", f"network={network}", *disco.overrides(system)])
            spaces = getattr(type(parse_config(config).system), "action_spaces", (Discrete,))
            discrete = Discrete in spaces and takes_discrete_actions(config.network)
            env = "env=gymnax/cartpole" if discrete else "env=gymnax/pendulum"
            env = "env=navix/empty_5x5" if network == "grid" else env
            env = "env=goals/point_maze" if network.endswith("crl") else env
            if network.startswith(("cnn", "resnet")):
                env = "env=gymnax/breakout" if discrete else "env._target_=support.custom_envs.Spot"
            setup_of(*choice, env)
