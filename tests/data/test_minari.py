import dataclasses

import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.data.files import read_data
from stoix_like.data.minari import check_minari, write_minari
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from stoix_like.errors import ConfigError
from support.recorded_data import ACTIONS, OBSERVATIONS, make_data


@pytest.fixture
def minari(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari")


@pytest.mark.slow
def test_minari_loads_what_was_written(tmp_path, minari):
    data = make_data()
    observation = Observation(data.observation.agent_view, step_count=np.array([0, 1, 2, 0, 1, 2, 3], np.int32))
    data = data._replace(observation=observation, header=dataclasses.replace(data.header, notes=("a note",)))
    write_minari(tmp_path / "arm-v0", data, OBSERVATIONS, ACTIONS)
    loaded = minari.load_dataset("arm-v0")
    assert (loaded.total_episodes, loaded.total_steps) == (2, 5)
    assert loaded.action_space.contains(np.array([-2.0], np.float32))
    first, second = loaded
    np.testing.assert_array_equal(first.observations["joint"]["pos"], observation.agent_view["joint"]["pos"][:3])
    assert loaded.observation_space["touch"].n == 3
    np.testing.assert_array_equal(second.actions, data.action[3:6])
    assert (first.terminations.tolist(), first.truncations.tolist()) == ([False, True], [False, False])
    assert (second.rewards.tolist(), second.truncations.tolist()) == ([-1, -1, -1], [False, False, True])
    assert second.infos["step_count"].tolist() == [0, 1, 2, 3]
    again = read_data(tmp_path / "arm-v0")
    assert again.header == dataclasses.replace(data.header, path=str(tmp_path / "arm-v0"))
    valid = data.valid
    for name, array in data.arrays().items():
        kept = slice(None) if name.startswith(("obs", "step", "valids")) else valid
        np.testing.assert_array_equal(again.arrays()[name][kept], array[kept])


@pytest.mark.slow
def test_parts_of_actions_are_spaces_of_their_own(tmp_path, minari):
    data = make_data()
    data = data._replace(action=np.concatenate([data.action * 0 + 1, data.action, data.action * 0 + 2], axis=1))
    space = Dict({"grip": Discrete(2), "move": Tuple([ACTIONS, MultiDiscrete((3,))])})
    write_minari(tmp_path / "arm-v0", data, OBSERVATIONS, space)
    episode = minari.load_dataset("arm-v0")[0]
    assert episode.actions["grip"].tolist() == [1, 1]
    np.testing.assert_array_equal(episode.actions["move"][0], data.action[:2, 1:2])
    assert episode.actions["move"][1].tolist() == [[2], [2]]
    np.testing.assert_array_equal(read_data(tmp_path / "arm-v0").action[data.valid], data.action[data.valid])


def test_a_directory_is_complete_or_missing(tmp_path):
    pytest.importorskip("h5py")
    with pytest.raises(AttributeError):
        write_minari(tmp_path / "arm-v0", make_data(), object(), Box(-2.0, 2.0, (1,)))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "arm-v0").mkdir()
    with pytest.raises(ConfigError, match="exists, and data sets are never overwritten"):
        write_minari(tmp_path / "arm-v0", make_data(), OBSERVATIONS, ACTIONS)
    with pytest.raises(ConfigError, match=r"names of Minari end with a version: use .*arm-v0$"):
        check_minari(tmp_path / "arm.npz")
