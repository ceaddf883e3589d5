import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import EnvConfig, ScenarioConfig, make
from stoix_like.envs.suites.gymnax import scenarios
from support.selections import select

N, T, LIMIT = 2, 22, 6

# These never terminate within 6 steps, so that every episode is truncated at the limit.
NEVER_TERMINATE = {
    "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Freeway-MinAtar", "DeepSea-bsuite",
    "PointRobot-misc", "BernoulliBandit-misc", "GaussianBandit-misc", "Reacher-misc", "Swimmer-misc", "Catch-bsuite",
}  # fmt: skip


def config(name, **changes):
    return EnvConfig("gymnax", ScenarioConfig(name), **changes)


def roll(env, reference, params):
    """Take random steps with automatic resets, and the same steps (state, key and action) with gymnax."""

    def step(state, keys):
        action = jax.vmap(env.action_space.sample)(keys[0])
        inner = state.env_state.env_state
        with jax.numpy_rank_promotion("allow"):
            view, after, reward, ended, _ = jax.vmap(reference.step_env, (0, 0, 0, None))(
                keys[1], inner, action, params
            )
            at_limit = jax.vmap(reference.is_truncated, (0, None))(after, params)
        state, timestep = env.step(keys[1], state, action)
        return state, (timestep, (view, reward, ended, at_limit))

    keys = jax.random.split(jax.random.key(1), (2, T, N))
    state, first = env.reset(jax.random.split(jax.random.key(0), N))
    return first, jax.lax.scan(step, state, (keys[0], keys[1]))[1]


@pytest.mark.parametrize("name", select(scenarios(), quick=("CartPole-v1", "Pendulum-v1")))
def test_steps_equal_those_of_gymnax(name):
    # Without action wrappers, so that both environments receive the same actions.
    env = make(config(name, params={"max_steps_in_episode": LIMIT}, rescale_actions=False, clip_actions=False))
    reference, params = gymnax.make(name)
    first, (timesteps, (view, reward, ended, at_limit)) = jax.jit(
        lambda: roll(env, reference, params.replace(max_steps_in_episode=LIMIT))
    )()

    space, views = env.observation_space, np.asarray(timesteps.next_observation.agent_view)
    assert views.shape == (T, N, *space.shape)
    assert views.dtype == np.float32 == space.dtype
    assert first.observation.agent_view.shape == (N, *space.shape)
    assert np.all(views >= np.asarray(space.low) - 1e-5)
    assert np.all(views <= np.asarray(space.high) + 1e-5)
    assert timesteps.reward.dtype == jnp.float32

    if name == "FrozenLake-misc":
        view = np.eye(16)[np.asarray(view)]
    if name == "DiscountingChain-bsuite":
        ended = at_limit
    np.testing.assert_allclose(views, view, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(timesteps.reward, reward, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(timesteps.terminated, ended)
    np.testing.assert_array_equal(timesteps.truncated, at_limit & ~ended)
    if name in NEVER_TERMINATE:
        np.testing.assert_array_equal(np.flatnonzero(timesteps.truncated[:, 0]), np.arange(LIMIT - 1, T, LIMIT))
    assert (timesteps.terminated | timesteps.truncated).any()


def test_constructor_arguments_and_array_parameters():
    assert make(config("DeepSea-bsuite", kwargs={"size": 5})).observation_space.shape == (5, 5)
    make(config("DiscountingChain-bsuite", params={"reward_timestep": [1, 2, 3, 4, 5]}))


def test_parameters_that_follow_from_others_change_with_them():
    params = make(config("CartPole-v1", params={"masscart": 5.0, "length": 1.0})).unwrapped.env.params
    assert (params.total_mass, params.polemass_length) == (5.1, 0.1)
    params = make(config("CartPole-v1", params={"masspole": 0.2, "total_mass": 3.0})).unwrapped.env.params
    assert (params.total_mass, params.polemass_length) == (3.0, 0.1)
    assert make(config("CartPole-v1")).unwrapped.env.params == gymnax.make("CartPole-v1")[1]


def test_limits_are_whole_numbers_of_steps():
    """gymnax declares the limit of its bandits as 100.0; numbers of truncations are derived from it."""
    limits = [make(config(name)).truncates_after for name in ("BernoulliBandit-misc", "CartPole-v1")]
    assert (limits, [type(limit) for limit in limits]) == ([100, 500], [int, int])
