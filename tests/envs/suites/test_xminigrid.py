import jax
import numpy as np
import pytest
import xminigrid

from stoix_like.envs import make, make_eval
from stoix_like.envs.suites.xminigrid import scenarios
from support.conformance import check_elements, check_episode, env_config, walk

pytestmark = pytest.mark.slow

EMPTY = "MiniGrid-Empty-5x5"
FORWARD, RIGHT = 0, 1


@pytest.mark.parametrize("name", scenarios())
def test_first_observations_are_elements_of_the_space(name):
    env = make_eval(env_config("xminigrid", name))
    _, first = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 4))
    check_elements(env.observation_space, np.asarray(first.observation.agent_view), 1)
    # Bytes would be pixels.
    assert env.observation_space.dtype == np.int16


def test_an_episode_equals_one_of_xminigrid():
    name = "MiniGrid-EmptyRandom-5x5"
    env, (bare, params) = make_eval(env_config("xminigrid", name)), xminigrid.make(name)

    def reset(key):
        timestep = bare.reset(params, key)
        return timestep.observation, timestep

    def step(key, timestep, action):
        timestep = bare.step(params, timestep, action)
        return (timestep.observation, timestep.reward, timestep.last(), timestep.discount == 0), timestep

    assert check_episode(env, reset, step, 3, 100, seed=3).reward.sum() > 0


@pytest.mark.parametrize("limit", [5, 6])
def test_reaching_the_goal_is_a_termination(limit):
    """Two steps east, a turn, and two steps south lead to the goal; at the time limit, too."""
    env = make(env_config("xminigrid", EMPTY, params={"max_steps": limit}))
    first, timestep = walk(env, FORWARD, FORWARD, RIGHT, FORWARD, FORWARD)
    assert (timestep.terminated, timestep.truncated) == (True, False)
    np.testing.assert_allclose(timestep.reward, 1 - 0.9 * 5 / limit, rtol=1e-6)
    assert (timestep.next_observation.agent_view != first.observation.agent_view).any()
    np.testing.assert_array_equal(timestep.observation.agent_view, first.observation.agent_view)


def test_the_size_of_the_view_is_a_parameter():
    assert make_eval(env_config("xminigrid", EMPTY, params={"view_size": 5})).observation_space.shape == (5, 5, 2)
