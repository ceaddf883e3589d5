import jax
import jax.numpy as jnp
import navix
import numpy as np
import pytest

from stoix_like.envs import make, make_eval
from stoix_like.envs.suites.navix import scenarios
from support.conformance import check_elements, check_episode, env_config, walk

pytestmark = pytest.mark.slow

EMPTY, OBSTACLES = "Navix-Empty-5x5-v0", "Navix-Dynamic-Obstacles-5x5-v0"
LEFT, RIGHT, FORWARD = 0, 1, 2


@pytest.mark.parametrize(("observation", "dtype"), [("symbolic", "int16"), ("rgb", "uint8")])
def test_only_pixels_are_bytes(observation, dtype):
    env = make_eval(env_config("navix", EMPTY, kwargs={"observation_fn": observation}))
    assert env.observation_space.dtype == dtype


def test_an_opened_door_is_a_symbol_beside_the_others():
    """navix observes it as the byte 254; nothing else of the view changes."""
    env = make_eval(env_config("navix", "Navix-KeyCorridorS3R1-v0"))
    assert (env.observation_space.low, env.observation_space.high) == (0, 11)
    view = np.uint8([[[3, 254, 5]]])
    found = env.unwrapped.env.observe(view).agent_view
    np.testing.assert_array_equal(found, [[[3, 11, 5]]])


@pytest.mark.parametrize("name", scenarios())
def test_first_observations_are_elements_of_the_space(name):
    env = make_eval(env_config("navix", name))
    state, first = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 4))
    _, timestep = jax.jit(env.step)(jax.random.split(jax.random.key(1), 4), state, jnp.full(4, FORWARD))
    for each in (first, timestep):
        check_elements(env.observation_space, np.asarray(each.observation.agent_view), 1)


def test_an_episode_equals_one_of_navix():
    """The balls move at random, so keys, states and the end of the episode must agree."""
    env, bare = make_eval(env_config("navix", OBSTACLES)), navix.make(OBSTACLES)

    def reset(key):
        timestep = bare.reset(key)
        return timestep.observation, timestep

    def step(key, timestep, action):
        timestep = bare._step(timestep.replace(state=timestep.state.replace(key=key)), action)
        kind = timestep.step_type
        return (timestep.observation, timestep.reward, kind > 0, kind == navix.StepType.TERMINATION), timestep

    check_episode(env, reset, step, 3, 40, seed=3)


@pytest.mark.parametrize("limit", [5, 6])
def test_reaching_the_goal_is_a_termination(limit):
    """Two steps east, a turn, and two steps south lead to the goal; at the time limit, too."""
    env = make(env_config("navix", EMPTY, params={"max_steps": limit}))
    first, timestep = walk(env, FORWARD, FORWARD, RIGHT, FORWARD, FORWARD)
    assert (timestep.reward, timestep.terminated, timestep.truncated) == (1.0, True, False)
    # The agent stands on the goal in the true successor, and in its corner in the next episode.
    assert timestep.next_observation.agent_view[0, 3, 3, 0] in (8, 10)
    assert timestep.next_observation.agent_view[0, 1, 1, 0] != 10
    np.testing.assert_array_equal(timestep.observation.agent_view, first.observation.agent_view)


def test_states_of_symbolic_views_have_no_tiles():
    def size(kwargs):
        env = make_eval(env_config("navix", EMPTY, kwargs=kwargs))
        state, _ = jax.eval_shape(env.reset, jax.random.split(jax.random.key(0), 1))
        return sum(leaf.size for leaf in jax.tree.leaves(state))

    assert size({}) < 0.1 * size({"observation_fn": "rgb"})
