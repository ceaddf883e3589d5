import jax.numpy as jnp
import numpy as np

from stoix_like.envs.spaces import Box, Discrete, Mixed, MultiDiscrete, Tuple
from stoix_like.systems.parts.action_vectors import action_vector, as_vector, clip_to_bounds, from_unit_vector
from support.compiled import run


def test_actions_are_vectors_with_one_hot_choices():
    one_hot = as_vector(Discrete(3), jnp.asarray([2, 0]))
    np.testing.assert_array_equal(one_hot, [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(run(as_vector, MultiDiscrete((2, 3)), jnp.asarray([[1, 0]])), [[0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(as_vector(Box(-1, 1, (1,)), jnp.asarray([[0.5]])), [[0.5]])


def test_all_parts_of_an_action_enter_the_model():
    """By hand: the choice 2 of 3 is one-hot, and 1 of [-2, 2] half of its bound; choices of parts are one-hot, too."""
    space = Mixed(Tuple([Discrete(3), MultiDiscrete((2, 2)), Box(-2.0, 2.0, (1,))]))
    vector = run(action_vector, space, jnp.array([[2.0, 1.0, 0.0, 1.0]]))
    np.testing.assert_array_equal(vector, [[0, 0, 1, 0, 1, 1, 0, 0.5]])
    np.testing.assert_array_equal(run(action_vector, Box(-2.0, 2.0, (2, 1)), jnp.ones((3, 2, 1))), np.full((3, 2), 0.5))
    # Relative to the centre 2: otherwise all actions above it would be equal once they are limited to [-1, 1].
    np.testing.assert_array_equal(run(action_vector, Box(0.0, 4.0, (1,)), jnp.array([[3.0]])), [[0.5]])


def test_vectors_are_actions_of_their_space_again():
    """By hand: half of the range above the centre 2 of [0, 4] is 3; rounding leaves no bound."""
    np.testing.assert_array_equal(from_unit_vector(Box(0.0, 4.0, (1,)), jnp.array([[0.5]])), [[3.0]])
    assert run(from_unit_vector, Box(-0.3, 0.3, (2, 1)), jnp.full((3, 2), 1.0)).shape == (3, 2, 1)


def test_actions_beyond_the_bounds_are_those_that_are_executed():
    bounded = Box(np.array([-2.0, 0.0]), 2.0, (2,))
    np.testing.assert_array_equal(
        clip_to_bounds(bounded, jnp.array([[[3.0, -1.0]], [[-1.0, 1.0]]])), [[[2, 0]], [[-1, 1]]]
    )
    mixed = Mixed(Tuple([Discrete(3), Box(-1.0, 1.0, (1,))]))
    np.testing.assert_array_equal(clip_to_bounds(mixed, jnp.array([2.0, 5.0])), [2, 1])
    np.testing.assert_array_equal(clip_to_bounds(Discrete(3), jnp.array([2])), [2])
