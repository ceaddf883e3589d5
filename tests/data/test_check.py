import dataclasses

import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.data.check import check_data, with_dtypes
from stoix_like.data.dataset import DataHeader
from stoix_like.data.files import open_data, read_data, write_data
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from stoix_like.errors import ConfigError
from support.recorded_data import ACTIONS, ENV, OBSERVATIONS, make_data


def test_data_of_the_run_are_taken():
    data = make_data()
    check_data(data, OBSERVATIONS, ACTIONS, ENV)
    check_data(data.header, OBSERVATIONS, ACTIONS, ENV)
    # An id of gymnasium without a suite.
    other = dataclasses.replace(data.header, environment="Arm-v0")
    check_data(data._replace(header=other), OBSERVATIONS, ACTIONS, ENV)
    # Rounding of rescaled actions.
    data.action[0] = np.float32(-2.000001)
    check_data(data, OBSERVATIONS, ACTIONS, ENV)


@pytest.mark.parametrize(
    ("recorded", "space", "taken"),
    [
        (np.uint8([[0, 1], [1, 1]]), Box(0, 1, (2,), np.int16), True),  # flags, which were bytes in older runs
        (np.uint8([[0, 1], [1, 1]]), Box(0, 1, (2,)), True),
        (np.int32([[0, 1], [1, 2]]), Box(0, 1, (2,)), False),
        (np.uint8([[[0], [255]]]), Box(-np.inf, np.inf, (2, 1)), False),  # pixels, which may be scaled in the run
        (np.int32([[[0], [255]]]), Box(0, 255, (2, 1), np.uint8), True),
        (np.float32([[0.0, 1.0]]), Box(0, 1, (2,), np.int16), False),
    ],
)
def test_whole_numbers_take_the_dtype_of_the_run(recorded, space, taken):
    data = make_data()._replace(observation=Observation({"inner": {"view": recorded}}))
    spaces = Dict({"inner": Dict({"view": space})})
    found = with_dtypes(data, spaces).observation.agent_view["inner"]["view"]
    np.testing.assert_array_equal(found, recorded)
    assert found.dtype == (space.dtype if taken else recorded.dtype)


def test_the_finite_side_of_half_bounded_actions_is_checked():
    data, space = make_data(), Box(-2.0, np.inf, (1,))
    data.action[0] = 1e6
    check_data(data, OBSERVATIONS, space, ENV)
    data.action[3] = -5.0
    with pytest.raises(ConfigError, match=r"the action \[-5.\] in row 3 is not between -2. and inf"):
        check_data(data, OBSERVATIONS, space, ENV)


def test_actions_of_several_parts_are_vectors():
    data = make_data()
    action = np.concatenate([data.action, np.ones_like(data.action)], axis=1)
    space = Dict({"force": ACTIONS, "grip": Discrete(2)})
    check_data(data._replace(action=action), OBSERVATIONS, space, ENV)
    action[3, 1] = 2.0
    with pytest.raises(ConfigError, match=r"the action \[-?0\.? *2\.?\] in row 3 is not between \[-2\. +0\.\]"):
        check_data(data._replace(action=action), OBSERVATIONS, space, ENV)
    check_data(data._replace(action=data.action * 0), OBSERVATIONS, Tuple([ACTIONS]), ENV)


def edit(name, row, value):
    def change(data):
        getattr(data, name)[row] = value
        return data

    return change


def with_view(**entries):
    def change(data):
        view = {name: each for name, each in {**data.observation.agent_view, **entries}.items() if each is not None}
        return data._replace(observation=Observation(view))

    return change


ROW = np.arange(7)
WRONG = [
    (
        lambda data: data._replace(header=dataclasses.replace(data.header, environment="suite/Leg-v0")),
        "the data are of suite/Leg-v0, not of suite/Arm-v0",
    ),
    (with_view(touch=None), "the data have no observations.touch, which the run observes"),
    (with_view(sound=ROW), "the data have observations.sound, which the run does not observe"),
    (
        with_view(joint={"pos": np.zeros((7, 3), np.float32)}),
        r"observations.joint.pos has the shape \(3,\) per row, and in the run it is \(2,\)",
    ),
    (with_view(touch=ROW.astype(np.float32)), "observations.touch has the dtype float32, .* it is int32"),
    (
        lambda data: data._replace(action=np.zeros((7, 2), np.float32)),
        r"actions has the shape \(2,\) per row, and in the run it is \(1,\)",
    ),
    (lambda data: data._replace(action=data.action.astype(np.int64)), "actions has the dtype int32"),
    (edit("action", 4, 2.1), r"the action \[2.1\] in row 4 is not between -2. and 2.: use the environ"),
    (edit("reward", 3, np.nan), "rewards is not finite in row 3: leave its episode out"),
    (
        with_view(joint={"pos": np.where(ROW[:, None] == 5, np.inf, np.zeros((7, 2), np.float32)).astype(np.float32)}),
        "observations.joint.pos is not finite in row 5",
    ),
    (edit("truncated", 1, True), "row 1 is terminated and truncated: set one of the flags"),
    (edit("truncated", 5, False), "the episode that ends in row 5 neither terminated nor was truncated"),
    (edit("valid", 6, True), "the last episode does not end: add a row with its last observation"),
    (edit("truncated", 4, True), "row 4 has a flag, and is not the last step of its episode"),
    (edit("valid", slice(None), False), "the data have no valid step: record some"),
    (
        lambda data: edit("valid", 0, False)(data)._replace(terminated=ROW == 1),
        "row 0 follows no step, and valids is False: leave it out",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), WRONG)
def test_wrong_data_are_refused(spoil, message, tmp_path):
    write_data(tmp_path / "wrong.npz", spoil(make_data()))
    with pytest.raises(ConfigError, match=rf"^system\.data=.*wrong\.npz: {message}") as error:
        check_data(read_data(tmp_path / "wrong.npz"), OBSERVATIONS, ACTIONS, ENV)
    assert "\n" not in str(error.value)


def test_of_the_last_row_of_an_episode_the_observation_alone_counts(tmp_path):
    data = make_data()
    last = int(np.flatnonzero(~data.valid)[0])
    write_data(tmp_path / "data.npz", edit("reward", last, np.nan)(data))
    check_data(read_data(tmp_path / "data.npz"), OBSERVATIONS, ACTIONS, ENV)


def test_a_header_alone_tells_the_environment_and_that_there_are_steps(tmp_path):
    write_data(tmp_path / "data.npz", make_data())
    with pytest.raises(ConfigError, match="^teacher=.*data.npz: the data are of suite/Arm-v0, not of suite/Leg-v0"):
        check_data(open_data(tmp_path / "data.npz").header, OBSERVATIONS, ACTIONS, "suite/Leg-v0", "teacher")
    with pytest.raises(ConfigError, match="no valid step"):
        check_data(DataHeader(), OBSERVATIONS, ACTIONS, ENV)


def test_actions_that_their_mask_forbids_are_refused():
    """In rows 2 and 6, which belong to no step, anything goes; and everywhere where no option is legal, as in row 4."""
    mask = np.ones((7, 5), bool)
    mask[[0, 2, 6], 4] = False
    mask[4, 2:] = False
    data = make_data()
    data = data._replace(
        action=np.array([[0, 1], [1, 2], [0, 2], [0, 0], [1, 2], [1, 1], [0, 2]], np.int32),
        observation=data.observation._replace(action_mask=mask),
    )
    space = MultiDiscrete((2, 3))
    check_data(data, OBSERVATIONS, space, ENV)
    mask[5, 1] = False
    message = r"the action \[1 1\] in row 5 is not legal there, see action_mask: leave its episode out"
    with pytest.raises(ConfigError, match=message):
        check_data(data, OBSERVATIONS, space, ENV)
    mixed = np.concatenate([np.full((7, 1), 0.5), data.action], axis=1).astype(np.float32)
    with pytest.raises(ConfigError, match=r"the action \[0.5 1. *1. *\] in row 5 is not legal there"):
        check_data(data._replace(action=mixed), OBSERVATIONS, Tuple([ACTIONS, space]), ENV)


def test_choices_are_checked_against_their_number():
    data = make_data()
    data = data._replace(action=np.array([[0, 2]] * 7, np.int32))
    check_data(data, OBSERVATIONS, MultiDiscrete((1, 3)), ENV)
    with pytest.raises(ConfigError, match=r"the action \[0 2\] in row 0 is not between \[0. 0.\] and \[0. 1.\]"):
        check_data(data, OBSERVATIONS, MultiDiscrete((1, 2)), ENV)
    data = data._replace(
        action=np.zeros(7, np.int32), observation=data.observation._replace(action_mask=np.ones((7, 2)))
    )
    with pytest.raises(ConfigError, match="action_mask has the dtype float64"):
        check_data(data, OBSERVATIONS, Discrete(2), ENV)
    with pytest.raises(ConfigError, match=r"action_mask has the shape \(2,\) per row, and in the run it is \(0,\)"):
        check_data(data._replace(action=make_data().action), OBSERVATIONS, Box(-2.0, 2.0, (1,)), ENV)
