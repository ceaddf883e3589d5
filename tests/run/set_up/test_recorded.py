import dataclasses

import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.config import parse_config
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import read_data, write_data
from stoix_like.errors import ConfigError
from stoix_like.run.set_up.setup import set_up
from support.composed import compose_config
from support.offline_runs import SMALL, setup_of, write_cartpole


def test_recorded_rewards_are_scaled_and_clipped_as_those_of_training(tmp_path):
    words = ["system=q_learning/ff_dqn", *SMALL, write_cartpole(tmp_path / "data.npz")]
    data = setup_of(*words, "env.reward_scale=0.1").spec.data
    np.testing.assert_allclose(np.unique(data.reward), [0.0, 0.1], rtol=1e-6)
    data = setup_of(*words, "env.reward_scale=3", "env.reward_clip=0.5").spec.data
    np.testing.assert_array_equal(np.unique(data.reward), [0.0, 0.5])


def test_a_task_has_the_data_of_its_scenario(tmp_path, monkeypatch):
    """CartPole without velocities has a name of its own, and data of CartPole-v1; `~` is the home directory."""
    write_cartpole(tmp_path / "data.npz")
    data = read_data(tmp_path / "data.npz")
    write_data(tmp_path / "seen.npz", data._replace(observation=Observation(data.observation.agent_view[:, ::2])))
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["env=gymnax/cartpole_no_velocity", "system.data='~/seen.npz'"]
    setup = setup_of("system=q_learning/ff_dqn", *SMALL, *words)
    assert setup.config.environment_name == "gymnax/CartPole-v1-no-velocity"
    assert setup.spec.data.observation.agent_view.shape == (220, 2)
    # The file may also have the name of the task, as those of others do.
    header = dataclasses.replace(data.header, environment="CartPole-v1-no-velocity")
    write_data(tmp_path / "named.npz", read_data(tmp_path / "seen.npz")._replace(header=header))
    words = [*words[:1], f"system.data={tmp_path / 'named.npz'}"]
    assert setup_of("system=q_learning/ff_dqn", *SMALL, *words).spec.data is not None


def test_data_of_environments_that_were_set_up_in_another_way(tmp_path):
    write_cartpole(tmp_path / "data.npz")
    data = read_data(tmp_path / "data.npz")

    def rewrite(name, **arguments):
        header = dataclasses.replace(data.header, run="0" * 64, arguments=arguments)
        write_data(tmp_path / name, data._replace(header=header))
        return setup_of(
            "system=q_learning/ff_dqn", *SMALL, f"system.data={tmp_path / name}", "env.time_limit=20"
        ).plan.notes

    notes = rewrite("sticky.npz", sticky_actions=0.25, reward_scale=0.5, time_limit=20)
    assert [note for note in notes if "recorded with" in note] == [
        "the data were recorded with env.sticky_actions=0.25, and the run has 0.0"
    ]
    with pytest.raises(ConfigError, match=r"env.action_repeat=4, and the run has 1: use env.action_repeat=4"):
        rewrite("repeated.npz", action_repeat=4)


def test_sizes_of_the_data_are_compared_with_those_of_the_run(tmp_path):
    data = write_cartpole(tmp_path / "data.npz", episodes=1)
    short = "10 steps are fewer than the 11 of a sequence, system.burn_in_length=3 and system.sequence_length=8: record"
    sizes = ["system.sequence_length=8", "system.burn_in_length=3"]
    with pytest.raises(ConfigError, match=short):
        setup_of("system=offline/rec_bc", "arch=offline", "env=gymnax/cartpole", data, *sizes)
    with pytest.raises(ConfigError, match=r"needs .* on every device, but only 0.000191 MiB is available"):
        set_up(parse_config(compose_config(["system=offline/bc", *SMALL, data])), device_memory=200)
    with pytest.raises(ConfigError, match=r"the data have no step_count, which the run observes"):
        setup_of("system=offline/bc", "arch=offline", "env=gymnax/cartpole", data, "env.step_count=true")


def test_a_varied_share_of_data_has_no_effect_offline(tmp_path):
    words = ["system=q_learning/ff_dqn", *SMALL, write_cartpole(tmp_path / "data.npz")]
    with pytest.raises(ConfigError, match=r"hyperparams.data_fraction has 1, with which a single run has no"):
        setup_of(*words, "arch=anakin", "arch.population.hyperparams={data_fraction:[0.5,1]}")
    with pytest.raises(ConfigError, match=r"arch.population.hyperparams.data_fraction has no effect with arch=offline"):
        setup_of(*words, "arch.population.hyperparams={data_fraction:[0.1,0.2]}")


def test_actions_of_the_data_are_those_that_the_agent_learns(tmp_path):
    """Torques are rescaled."""
    rows, header = np.arange(7), DataHeader(environment="gymnax/Pendulum-v1")
    view, action = Observation(np.zeros((7, 3), np.float32)), np.array([2, -1, 0, 0, 1, -2, 0], np.float32)[:, None]
    reward = np.array([1, 2, 4, 0, 8, 16, 0], np.float32)
    data = DataSet(header, view, action, reward, rows == 2, rows == 5, ~np.isin(rows, (3, 6)))
    write_data(tmp_path / "data.npz", data.with_statistics())
    words = ["arch=offline", "arch.num_devices=1", "env=gymnax/pendulum", "system=sac/ff_sac", "system.gamma=0.5"]
    found = setup_of(*words, f"system.data={tmp_path}/data.npz").spec.data
    np.testing.assert_array_equal(found.action[:, 0], [1, -0.5, 0, 0, 0.5, -1, 0])
