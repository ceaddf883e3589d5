import numpy as np
import pytest

from stoix_like.envs import make_eval
from support.conformance import check_episode, env_config
from support.lazily import Lazy

pytestmark = pytest.mark.slow

environments = Lazy("popgym_arcade.environments")


@pytest.mark.parametrize("name", ["CartPoleEasy", "SkittlesEasy"])
def test_an_episode_equals_one_of_the_suite(name):
    env, bare = make_eval(env_config("popgym_arcade", name)), getattr(environments, name)()
    bare.is_terminated = bare.is_terminal
    params = bare.default_params

    def step(key, state, action):
        view, state, reward, end, _ = bare.step_env(key, state, action, params)
        return (view, reward, end, end), state

    reset = lambda key: bare.reset_env(key, params)  # noqa: E731
    check_episode(env, reset, step, 5, 60, reward_rtol=1e-6, return_rtol=1e-5)


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
