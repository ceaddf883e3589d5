import numpy as np
import pytest

from stoix_like.envs.padding import check_views, common_actions, own_actions, stack
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError


def box(low, high):
    return Box(np.asarray(low), np.asarray(high), np.shape(low))


def test_vectors_are_padded_with_zeros_and_images_stay():
    np.testing.assert_array_equal(stack(np.array([7.0]), np.array([1.0, 2.0, 3.0])), [[7, 0, 0], [1, 2, 3]])
    images = np.arange(8.0).reshape(2, 2, 2)
    np.testing.assert_array_equal(stack(*images), images)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ({"a": np.zeros((3, 3)), "b": np.zeros((2, 3))}, r"Tag: a observes \(3, 3\) and b \(2, 3\): only vectors"),
        ({"a": np.zeros(2), "b": np.zeros((2, 1))}, r"a observes \(2,\) and b \(2, 1\)"),
        ({"a": {"own": np.zeros(2)}, "b": np.zeros(2)}, r"a observes {'own': \(2,\)} and b \(2,\)"),
    ],
)
def test_observations_that_cannot_be_stacked_are_refused(views, message):
    with pytest.raises(ConfigError, match=message):
        check_views(views, "Tag")
    check_views(
        {"a": {"own": np.zeros(2), "map": np.zeros((2, 2))}, "b": {"own": np.zeros(5), "map": np.zeros((2, 2))}}, "Tag"
    )


def test_the_largest_action_space_has_the_actions_of_all():
    assert common_actions({"a": Discrete(2), "b": Discrete(5), "c": Discrete(3)}, "Tag") == Discrete(5)
    longest = box([-1.0, 0.0], [1.0, 2.0])
    assert common_actions({"a": box([-1.0], [1.0]), "b": longest}, "Tag") is longest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Discrete(2), box([-1.0], [1.0])),
        (Discrete(2), MultiDiscrete((2, 2))),
        # The lower bounds of the first entry differ.
        (box([-2.0], [1.0]), box([-1.0, -2.0], [1.0, 1.0])),
        # Rows of two numbers are no part of rows of three.
        (box(np.zeros((1, 2)), np.ones((1, 2))), box(np.zeros((2, 3)), np.ones((2, 3)))),
    ],
)
def test_actions_that_the_largest_space_lacks_are_refused(one, other):
    with pytest.raises(ConfigError, match=r"^Tag: . acts in .* and . .*: only Discrete spaces, and boxes with equal"):
        common_actions({"a": one, "b": other}, "Tag")


def test_each_agent_takes_its_part_of_a_padded_action():
    spaces = [box([-1.0], [1.0]), box([-1.0, -1.0], [1.0, 1.0])]
    cut = own_actions(np.array([[1.0, 2.0], [3.0, 4.0]]), spaces)
    assert [action.tolist() for action in cut] == [[1.0], [3.0, 4.0]]
    # One agent has no axis of agents, and an integer has nothing to cut.
    assert own_actions(np.array([5.0, 6.0]), spaces[1:])[0].tolist() == [5.0, 6.0]
    assert own_actions(np.array([1, 4]), [Discrete(2), Discrete(5)]) == [1, 4]
