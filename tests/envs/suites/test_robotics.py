import jax
import numpy as np
import pytest

from stoix_like.envs import make
from stoix_like.errors import ConfigError
from support.conformance import env_config, rollout

pytest.importorskip("gymnasium_robotics")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("FetchReach-v4", {}),
        ("FetchReach-v4", {"kwargs": {"reward_type": "dense"}}),
        ("FetchReach-v4", {"vectorization": "async"}),
        ("HandReach-v3", {"reward_scale": 2.0}),
        ("PointMaze_UMaze-v3", {"kwargs": {"continuing_task": False}}),
        ("PointMaze_UMazeDense-v3", {}),
    ],
)
def test_rewards_and_ends_of_steps_are_those_of_their_goals(name, changes):
    env = make(env_config("robotics", name, **changes))
    _, _, steps = rollout(env, 120, num_envs=2)
    env.check()
    env.close()
    view = steps.next_observation.agent_view
    reward, terminated = jax.vmap(jax.vmap(env.goal_reward))(view["achieved_goal"], view["desired_goal"])
    np.testing.assert_allclose(reward, steps.reward, atol=1e-4)
    np.testing.assert_array_equal(terminated, steps.terminated)
    if name.startswith("Fetch"):
        np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0]), [49, 99])


def test_rewards_of_rotations_are_unknown_and_typing_errors_are_refused():
    env = make(env_config("robotics", "HandManipulateBlock-v1"))
    assert env.goal_reward is None
    env.close()
    with pytest.raises(ConfigError, match=r"'FetchReach-v9' is not a scenario of robotics: did you mean 'FetchReach-v"):
        make(env_config("robotics", "FetchReach-v9"))
    with pytest.raises(ConfigError, match=r"env.kwargs=.*reward.* is invalid for FetchReach-v4"):
        make(env_config("robotics", "FetchReach-v4", kwargs={"reward": "dense"}))
