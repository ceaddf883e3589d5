"""Tests of the adapter of POPGym Arcade against its own code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make, make_eval
from stoix_like.errors import ConfigError
from support.conformance import check, check_time_limit, env_config
from support.lazily import Lazy

pytestmark = pytest.mark.slow

environments = Lazy("popgym_arcade.environments")
NOTHING = 0


@pytest.mark.parametrize(
    "name",
    [
        "CartPoleEasy",
        "SkittlesEasy",
        "MineSweeperEasy",
    ],
)
def test_conformance(name):
    check("popgym_arcade", name)


@pytest.mark.parametrize(
    "name",
    [
        "BreakoutEasy",
        "TetrisEasy",
        "AutoEncodeEasy",
        "CountRecallEasy",
        "BattleShipEasy",
    ],
)
def test_games_that_report_ends_in_other_ways_conform(name):
    check("popgym_arcade", name, 300, params={"max_steps_in_episode": 60})


@pytest.mark.parametrize("name", ["CartPoleEasy", "BreakoutEasy", "TetrisEasy", "MineSweeperEasy", "AutoEncodeEasy"])
def test_time_limit_is_a_truncation(name):
    limit = 4

    def wait(timestep):
        return jnp.full(timestep.reward.shape, NOTHING)

    check_time_limit("popgym_arcade", name, limit, wait, num_envs=1, params={"max_steps_in_episode": limit})


@pytest.mark.parametrize("name", ["CartPoleEasy", "SkittlesEasy"])
def test_an_episode_equals_one_of_the_suite(name):
    num_steps = 60
    env, bare = make_eval(env_config("popgym_arcade", name)), getattr(environments, name)()
    bare.is_terminated = bare.is_terminal
    params = bare.default_params

    def both(key):
        reset_key, *keys = jax.random.split(key, num_steps + 1)
        state, first = env.reset(reset_key[None])
        view, inner = bare.reset_env(reset_key, params)

        def step(carry, key):
            state, inner = carry
            action = jax.random.randint(key, (), 0, 5)
            state, ours = env.step(key[None], state, action[None])
            inner_view, inner, reward, end, _ = bare.step_env(key, inner, action, params)
            inner = jax.tree.map(lambda leaf, old: jnp.asarray(leaf, old.dtype), inner, carry[1])
            return (state, inner), (ours, (inner_view, reward, end))

        inner = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), inner)
        return first, view, jax.lax.scan(step, (state, inner), jnp.stack(keys))[1]

    with jax.numpy_rank_promotion("allow"):
        first, view, (ours, (views, rewards, ends)) = jax.jit(both)(jax.random.key(0))
    end = int(np.argmax(ends)) + 1
    assert 1 < end < num_steps
    np.testing.assert_array_equal(first.observation.agent_view[0], view)
    np.testing.assert_array_equal(ours.next_observation.agent_view[:end, 0], views[:end])
    np.testing.assert_allclose(ours.reward[:end, 0], rewards[:end], rtol=1e-6)
    np.testing.assert_array_equal(ours.terminated[:end, 0], ends[:end])
    assert not ours.truncated[:end].any()
    np.testing.assert_allclose(ours.episode.episode_return[end - 1, 0], rewards[:end].sum(), rtol=1e-5)


def test_rewards_are_scaled_by_the_time_limit():
    scales = {}
    for limit in (50, 100):
        env = make_eval(env_config("popgym_arcade", "SkittlesEasy", params={"max_steps_in_episode": limit}))
        scales[limit] = env.unwrapped.env._env.reward_scale
    assert scales == {50: 0.02, 100: 0.01}
    # The scale of others depends on something else.
    recall = make_eval(env_config("popgym_arcade", "CountRecallEasy", params={"max_steps_in_episode": 50}))
    assert recall.unwrapped.env._env.reward_scale == 1.0 / recall.unwrapped.env._env.num_cards


def test_pixels_are_bytes_of_the_chosen_size():
    for name, kwargs, size in [("BreakoutEasy", {}, 128), ("NavigatorEasy", {"obs_size": 256}, 256)]:
        space = make_eval(env_config("popgym_arcade", name, kwargs=kwargs)).observation_space
        assert (space.shape, space.dtype, space.high) == ((size, size, 3), np.uint8, 255)


def test_partial_observations_hide_the_pole():
    def view(kwargs):
        env = make_eval(env_config("popgym_arcade", "CartPoleEasy", kwargs=kwargs))
        keys = jax.random.split(jax.random.key(0), 1)
        return jax.jit(lambda: env.step(keys, env.reset(keys)[0], jnp.zeros(1, int))[1].observation.agent_view)()

    assert (view({"partial_obs": True}) != view({})).any()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("CartpoleEasy", {}, "env.scenario.name='CartpoleEasy' is not a scenario of popgym_arcade: .*'CartPoleEasy'"),
        ("CartPoleEasy", {"kwargs": {"size": 3}}, "env.kwargs.size=3 is not a parameter of CartPoleEasy"),
        ("CartPoleEasy", {"kwargs": {"obs_size": 64}}, "env.kwargs.obs_size=64 is invalid .*use 128 or 256"),
        ("CartPoleEasy", {"kwargs": {"partial_obs": 1}}, "env.kwargs.partial_obs=1 is invalid .*use true or false"),
        ("CartPoleEasy", {"params": {"max_steps": 3}}, "env.params.max_steps=3 .*'max_steps_in_episode'"),
        ("CartPoleEasy", {"params": {"max_steps_in_episode": 0}}, "max_steps_in_episode=0 must be at least 1"),
    ],
)
def test_invalid_settings_raise(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(env_config("popgym_arcade", name, **changes))
