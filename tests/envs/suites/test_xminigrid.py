"""Tests of the adapter of xminigrid against xminigrid itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xminigrid

from stoix_like.envs import make, make_eval
from stoix_like.envs.suites.xminigrid import scenarios
from stoix_like.errors import ConfigError
from support.conformance import check, check_elements, check_time_limit, env_config

pytestmark = pytest.mark.slow

EMPTY = "MiniGrid-Empty-5x5"
FORWARD, RIGHT = 0, 1


@pytest.mark.parametrize("name", [EMPTY, "MiniGrid-DoorKey-5x5", "MiniGrid-Playground"])
def test_conformance(name):
    check("xminigrid", name)


@pytest.mark.parametrize("name", scenarios())
def test_first_observations_are_elements_of_the_space(name):
    env = make_eval(env_config("xminigrid", name))
    _, first = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 4))
    check_elements(env.observation_space, np.asarray(first.observation.agent_view), 1)
    # Bytes would be pixels.
    assert env.observation_space.dtype == np.int16


@pytest.mark.parametrize("name", [EMPTY, "MiniGrid-MemoryS8"])
def test_time_limit_is_a_truncation(name):
    check_time_limit("xminigrid", name, 4, params={"max_steps": 4})


def test_an_episode_equals_one_of_xminigrid():
    name, num_steps = "MiniGrid-EmptyRandom-5x5", 100
    env, (bare, params) = make_eval(env_config("xminigrid", name)), xminigrid.make(name)

    def both(key):
        reset_key, *keys = jax.random.split(key, num_steps + 1)
        state, first = env.reset(reset_key[None])
        timestep = bare.reset(params, reset_key)

        def step(carry, key):
            state, timestep = carry
            action = jax.random.randint(key, (), 0, 3)
            state, ours = env.step(key[None], state, action[None])
            timestep = bare.step(params, timestep, action)
            theirs = (timestep.observation, timestep.reward, timestep.discount, timestep.last())
            return (state, timestep), (ours, theirs)

        return first, timestep.observation, jax.lax.scan(step, (state, timestep), jnp.stack(keys))[1]

    with jax.numpy_rank_promotion("allow"):
        first, view, (ours, (views, rewards, discounts, ends)) = jax.jit(both)(jax.random.key(3))
    end = int(np.argmax(ends)) + 1
    np.testing.assert_array_equal(first.observation.agent_view[0], view)
    np.testing.assert_array_equal(ours.next_observation.agent_view[:end, 0], views[:end])
    np.testing.assert_array_equal(ours.reward[:end, 0], rewards[:end])
    np.testing.assert_array_equal(ours.terminated[:end, 0], discounts[:end] == 0)
    np.testing.assert_array_equal(ours.terminated[:end, 0] | ours.truncated[:end, 0], ends[:end])
    assert rewards[:end].sum() > 0
    np.testing.assert_allclose(ours.episode.episode_return[end - 1, 0], rewards[:end].sum())


@pytest.mark.parametrize("limit", [5, 6])
def test_reaching_the_goal_is_a_termination(limit):
    """Two steps east, a turn, and two steps south lead to the goal; at the time limit, too."""
    env = make(env_config("xminigrid", EMPTY, params={"max_steps": limit}))
    keys = jax.random.split(jax.random.key(0), 1)
    state, first = jax.jit(env.reset)(keys)
    step = jax.jit(env.step)
    for action in (FORWARD, FORWARD, RIGHT, FORWARD, FORWARD):
        state, timestep = step(keys, state, jnp.full((1,), action))
    assert (timestep.terminated, timestep.truncated) == (True, False)
    np.testing.assert_allclose(timestep.reward, 1 - 0.9 * 5 / limit, rtol=1e-6)
    assert (timestep.next_observation.agent_view != first.observation.agent_view).any()
    np.testing.assert_array_equal(timestep.observation.agent_view, first.observation.agent_view)


def test_the_size_of_the_view_is_a_parameter():
    assert make_eval(env_config("xminigrid", EMPTY, params={"view_size": 5})).observation_space.shape == (5, 5, 2)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("MiniGrid-Empty-5x6", {}, "env.scenario.name='MiniGrid-Empty-5x6' is not a scenario .*'MiniGrid-Empty-5x5'"),
        ("XLand-MiniGrid-R1-9x9", {}, "env.scenario.name='XLand-MiniGrid-R1-9x9' is not supported: .*download"),
        (EMPTY, {"kwargs": {"size": 3}}, "env.kwargs.size=3 is not a parameter of MiniGrid-Empty-5x5: it has none"),
        (EMPTY, {"params": {"max_step": 3}}, "env.params.max_step=3 is not a parameter .*'max_steps'"),
        (EMPTY, {"params": {"max_steps": 0}}, "env.params.max_steps=0 must be at least 1"),
        (EMPTY, {"params": {"view_size": 4}}, "env.params.view_size=4 must be odd and at least 3"),
    ],
)
def test_invalid_settings_raise(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(env_config("xminigrid", name, **changes))
