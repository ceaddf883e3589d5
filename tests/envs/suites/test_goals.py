import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs.environment import Environment, restart, transition
from stoix_like.envs.factory import make, make_eval
from stoix_like.envs.spaces import Box
from stoix_like.envs.suites import SUITES, goals
from support.conformance import env_config, rollout
from support.lazily import Lazy

gymnasium = Lazy("gymnasium")
BITS = 6


def play(env, choose):
    """Play an episode; return rewards, and the last time step."""
    state, timestep = env.reset(jax.random.key(1))
    rewards, step = [], jax.jit(env.step)
    while not (timestep.terminated | timestep.truncated):
        state, timestep = step(jax.random.key(0), state, choose(timestep.observation.agent_view))
        rewards.append(float(timestep.reward))
    return rewards, timestep


def test_results_record_the_simulator_of_the_arm_and_the_ant():
    assert {*SUITES["mjx"].engines} <= {*SUITES["goals"].distributions}


def test_every_flip_costs_one_but_the_last_and_the_limit_is_the_number_of_bits():
    env = goals.BitFlip(float(BITS))
    view = env.reset(jax.random.key(1))[1].observation.agent_view
    distance = int(jnp.sum(view["achieved_goal"] != view["desired_goal"]))
    rewards, last = play(env, lambda view: jnp.argmax(view["achieved_goal"] != view["desired_goal"]))
    assert rewards == [-1.0] * (distance - 1) + [0.0]
    assert (bool(last.terminated), float(last.episode.measures["success_rate"])) == (True, 1.0)
    right = int(jnp.argmax(view["achieved_goal"] == view["desired_goal"]))
    rewards, last = play(env, lambda view: jnp.int32(right))
    assert (rewards, bool(last.truncated)) == ([-1.0] * BITS, True)


def test_a_point_stops_at_walls_and_at_the_border():
    """The wall of the u is in rows [1, 2), columns [0, 2). A step of 1 would end in it, or outside of the maze."""
    move = goals.PointMaze("u", speed=1.0).move
    steps = [([0.5, 0.5], [1, 1], [0.5, 1.5]), ([0.5, 2.5], [1, -1], [1.5, 2.5]), ([2.5, 0.25], [1, -1], [2.5, 0.25])]
    for place, action, after in steps:
        np.testing.assert_allclose(move(jnp.array(place), jnp.array(action, jnp.float32)), after)


@pytest.mark.parametrize(
    ("changes", "reward"),
    [
        ({}, -1.0),
        ({"reward_scale": 3.0, "reward_clip": 2.0, "time_limit": 4, "step_count": True}, -2.0),
        *(({"action_repeat": 2}, None), ({"observation_delay": 1}, None), ({"observation_flicker": 0.5}, None)),
        *(({"observe_last_reward": True}, None), ({"flatten_observation": True}, None)),
    ],
)
def test_the_reward_of_goals_follows_wrappers_that_keep_goals(changes, reward):
    goal_reward = make(env_config("goals", "bit_flip", **changes)).goal_reward
    assert (goal_reward is None) == (reward is None)
    if reward is not None:
        assert float(goal_reward(jnp.zeros(8), jnp.ones(8))[0]) == reward
        assert float(goal_reward(jnp.ones(8), jnp.ones(8))[0]) == 0.0


class Diverging(Environment):
    """A simulation with a state of NaN after its first step, which it terminates with a finite view."""

    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, key):
        return jnp.ones(3), restart(Observation(jnp.ones(3)))

    def step(self, key, state, action):
        return state * jnp.nan, transition(Observation(jnp.ones(3)), 0.0, True, truncated=False)


def test_goals_of_a_diverged_simulation_stay_finite():
    goal = goals.MjxGoal("", 1.0, lambda state: state, lambda state: state[:2], lambda key, state: jnp.zeros(2))
    env = goals.MjxGoalTask(Diverging(), goal, 1.0)
    state, _ = env.reset(jax.random.key(0))
    _, timestep = env.step(jax.random.key(0), state, jnp.zeros(1))
    view = timestep.observation.agent_view
    np.testing.assert_array_equal(view["observation"], np.ones(3))
    np.testing.assert_array_equal(view["achieved_goal"], np.ones(2))
    assert (bool(timestep.terminated), float(timestep.reward)) == (True, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "radius"), [("reacher", 0.1), ("ant", 12.0)])
def test_tasks_of_mjx_pay_for_each_step_at_the_goal(name, radius):
    """Goals of the ant are 10 m from the start, of which it is within 1 m; the arm meets a tenth of its circle."""
    env = make_eval(env_config("goals", name, kwargs={"radius": radius}))
    _, _, steps = rollout(env, 50)
    view = steps.next_observation.agent_view
    distance = np.linalg.norm(view["achieved_goal"] - view["desired_goal"], axis=-1)
    np.testing.assert_array_equal(steps.reward, distance < radius)
    assert steps.reward.sum() > 0
    success = np.maximum.accumulate(steps.reward)
    np.testing.assert_array_equal(steps.episode.measures["success_rate"] >= success, True)
    if name == "ant":
        np.testing.assert_allclose(np.linalg.norm(view["desired_goal"], axis=-1), 10.0, rtol=1e-5)
    else:
        native = gymnasium.make("Reacher-v5").unwrapped
        native.reset(seed=0)
        angles = np.arctan2(view["observation"][3, 0, 2:4], view["observation"][3, 0, :2])
        native.set_state(np.concatenate([angles, view["desired_goal"][3, 0]]), native.init_qvel)
        np.testing.assert_allclose(view["achieved_goal"][3, 0], native.get_body_com("fingertip")[:2], atol=1e-4)
