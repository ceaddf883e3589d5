import dataclasses

import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.data.dataset import DataHeader, DataSet, from_steps, parts_of, paths
from support.recorded_data import make_data


def flags(*numbers):
    return np.array(numbers, bool)


# Observations 0 … 5; step 2 terminates, step 4 is truncated, and nothing marks step 5.
STEPS = (
    Observation(np.arange(6, dtype=np.float32)[:, None]),
    np.arange(6, dtype=np.int32),
    np.array([1, 2, 4, 8, 16, 32]),
    flags(0, 0, 1, 0, 0, 0),
    flags(0, 0, 1, 0, 1, 0),
)


def numbers(data):
    return data.observation.agent_view[:, 0].tolist()


def test_a_row_with_the_successor_follows_each_end():
    last = Observation(np.array([[2.5], [4.5], [5.5]], np.float32))
    data = from_steps(DataHeader(), *STEPS, last)
    assert numbers(data) == [0, 1, 2, 2.5, 3, 4, 4.5, 5, 5.5]
    assert data.action.tolist() == [0, 1, 2, 0, 3, 4, 0, 5, 0]
    assert data.reward.tolist() == [1, 2, 4, 0, 8, 16, 0, 32, 0]
    assert data.reward.dtype == np.float32
    # With both flags, a step terminated; the last step is truncated where it did not terminate.
    assert np.flatnonzero(data.terminated).tolist() == [2]
    assert np.flatnonzero(data.truncated).tolist() == [5, 7]
    assert np.flatnonzero(~data.valid).tolist() == [3, 6, 8]
    assert data.episode_lengths.tolist() == [3, 2, 1]
    assert data.episode_returns.tolist() == [7, 24, 32]
    assert (data.header.steps, data.header.episodes) == (6, 3)
    assert (data.header.return_mean, data.header.return_min, data.header.return_max) == (21, 7, 32)


def test_without_successors_truncated_steps_are_left_out():
    """Observation 4 follows step 3, which is truncated in place of step 4; step 5 was the only one of its episode."""
    data = from_steps(DataHeader(), *STEPS)
    assert numbers(data) == [0, 1, 2, 2, 3, 4]
    assert data.reward.tolist() == [1, 2, 4, 0, 8, 0]
    assert np.flatnonzero(data.terminated).tolist() == [2]
    assert np.flatnonzero(data.truncated).tolist() == [4]
    assert np.flatnonzero(~data.valid).tolist() == [3, 5]
    assert "left out" in data.header.notes[0]


def test_no_steps_are_no_episodes():
    empty = [x[:0] for x in (STEPS[0].agent_view, *STEPS[1:])]
    data = from_steps(DataHeader(), Observation(empty[0]), *empty[1:])
    assert data.episode_returns.tolist() == []
    assert (data.header.steps, data.header.episodes, data.header.return_mean) == (0, 0, None)


def test_arrays_have_the_paths_of_nested_observations():
    data = make_data()
    arrays = data.arrays()
    assert list(arrays)[:2] == ["observations/joint/pos", "observations/touch"]
    assert "step_count" not in arrays
    again = DataSet.from_arrays(data.header, arrays)
    assert again.observation.agent_view["joint"]["pos"] is data.observation.agent_view["joint"]["pos"]
    with pytest.raises(KeyError, match="observations"):
        DataSet.from_arrays(data.header, {"valids": data.valid})


def test_names_may_have_slashes():
    nest = {"arm/~pos": np.zeros((2, 3)), "arm": {"pos": np.ones(2)}}
    found = paths(nest, "observations")
    assert list(found) == ["observations/arm/pos", "observations/arm~1~0pos"]
    assert [parts_of(path) for path in found] == [["observations", "arm", "pos"], ["observations", "arm/~pos"]]


def test_headers_are_read_as_they_were_written():
    header = dataclasses.replace(make_data().header, arguments={"time_limit": 5}, notes=("a note",), path="here")
    assert DataHeader.from_json(header.to_json(), "here") == header
    data = make_data()
    data.reward[0] = np.nan
    assert data.with_statistics().header.return_mean is None
    with pytest.raises(ValueError, match="steps is 'many'"):
        DataHeader.from_json(header.to_json().replace(f'"steps": {header.steps}', '"steps": "many"'))
