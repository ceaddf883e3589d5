import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Box, Dict
from stoix_like.errors import ConfigError
from stoix_like.utils.replay import PrioritisedReplayConfig, ReplayConfig, make_replay, with_clipped_rewards
from stoix_like.utils.replay.data import Data
from stoix_like.utils.replay.relabel import geometric_steps
from support.replayed import NUM_ENVS, SIZES, empty, first, spec, steps

NAMES = ("observation", "achieved_goal", "desired_goal")
GOALS = {"observation_space": Dict(dict.fromkeys(NAMES, Box(0, 200, (1,))))}


def reached(achieved, desired):
    equal = jnp.all(achieved == desired)
    return equal - 1.0, equal


def goals(observation, desired):
    number = observation.agent_view
    return Observation(dict(zip(NAMES, (number, number, np.broadcast_to(desired, number.shape)), strict=True)))


def rollout(start, num_steps=4):
    """Steps whose successor achieves the number of the step plus 1/2, in episodes that end with steps 5 and 9.

    Step 5 is truncated. Step 9 terminates: in the first environment at the desired 9.5, in the second one, with numbers
    larger by 100, for another reason.
    """
    numbers = np.arange(start, start + num_steps)
    trajectory = jax.device_get(steps(numbers, [-1] * num_steps, numbers == 9, numbers == 5))
    desired = np.full((num_steps, NUM_ENVS, 1), 99.0, np.float32)
    desired[:, 0] = np.where((numbers > 5) & (numbers < 10), 9.5, 99.0)[:, None]
    transitions = trajectory.transitions
    reward = np.where(transitions.next_observation.agent_view == desired, 0.0, -1.0)[..., 0].astype(np.float32)
    ends = {name: goals(getattr(transitions, name), desired) for name in ("observation", "next_observation")}
    return trajectory._replace(transitions=transitions._replace(reward=reward, **ends))


def sample(schema=ReplayConfig, batch=1024, scale=1.0, **values):
    """Sample from rows of 8 steps after 12: 4 to 11 are stored, in the order 8 to 11, 4 to 7."""
    config = schema(**{**SIZES, "total_buffer_size": 16, "total_batch_size": batch, **values})
    replay = make_replay(config, with_clipped_rewards(spec(goal_reward=reached)._replace(**GOALS), 10.0), 0.5, scale)
    state = replay.init(first(jax.tree.map(lambda x: x[0, 0], rollout(0).transitions.observation)))
    for start in (0, 4, 8):
        state = jax.jit(replay.add)(state, rollout(start))
    found = jax.jit(replay.sample)(state, jax.random.key(0))
    np.testing.assert_array_equal(
        found.observation.agent_view["desired_goal"], found.next_observation.agent_view["desired_goal"]
    )
    np.testing.assert_array_equal(found.next_observation.agent_view["achieved_goal"] % 1, 0.5)
    views = found.observation.agent_view["observation"], found.observation.agent_view["desired_goal"]
    columns = (np.ravel(column).tolist() for column in (*views, found.reward, found.discount, found.weight))
    return set(zip(*columns, strict=True))


def outcomes(strategy):
    """The goals of each step of the first environment."""
    begin = {4: 4, 5: 4, 6: 6, 7: 6, 8: 6, 9: 6, 10: 10, 11: 10}
    end = {4: 5, 5: 5, 6: 9, 7: 9, 8: 9, 9: 9, 10: 11, 11: 11}
    later = {step: step for step in end}
    firsts = {"final": end, "future": later, "geometric": later, "episode": begin}[strategy]
    return {(step, goal) for step in end for goal in range(firsts[step], end[step] + 1)}


@pytest.mark.parametrize("schema", [ReplayConfig, pytest.param(PrioritisedReplayConfig, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", ["final", "future", "geometric", "episode"])
def test_goals_are_of_the_stored_episode_and_decide_reward_and_end(schema, strategy):
    """A step costs 1 and continues, unless its successor is the goal. Step 9 of the second environment terminates."""
    expected = set()
    for step, goal in outcomes(strategy):
        outcome = (0.0, 0.0) if step == goal else (-1.0, 0.5)
        expected.add((step, goal + 0.5, *outcome, 1.0))
        expected.add((step + 100, goal + 100.5, outcome[0], 0.0 if step == 9 else outcome[1], 1.0))
    changes = {"prioritised": True} if schema is PrioritisedReplayConfig else {}
    assert sample(schema, relabel=strategy, relabel_fraction=1.0, **changes) == expected


@pytest.mark.parametrize(
    ("gamma", "odds"), [(0.5, [4, 2, 1]), (0.9, [1.0, 0.9, 0.81]), (1.0, [1, 1, 1]), (0.0, [1, 0, 0])]
)
def test_geometric_steps_end_with_the_episode(gamma, odds):
    """Of three steps until an episode was truncated, the k-th has gamma^k of 1 + gamma + gamma^2; 5 standard errors."""
    draw = jax.jit(lambda gamma: geometric_steps(jax.random.key(0), jnp.full(40_000, 3), gamma))
    found = np.bincount(draw(gamma), minlength=3) / 40_000
    np.testing.assert_allclose(found, np.array(odds) / sum(odds), atol=5 * 0.5 / 200)


def test_goals_come_from_the_whole_buffer():
    found = sample(relabel="random", relabel_fraction=1.0, batch=4096)
    stored = {offset + step for offset in (0, 100) for step in range(4, 12)}
    assert {(step, goal - 0.5) for step, goal, *_ in found} == {(step, goal) for step in stored for goal in stored}


def test_windows_of_several_steps_have_one_goal():
    """Goals are 5.5, 9.5 and 11.5, and windows of three end with them, at the latest. -1.75 = -1 - 1/2 - 1/4."""
    found = {key[0]: key[1:] for key in sample(relabel="final", relabel_fraction=1.0, n_step=3)}
    shorter = {8: (9.5, -1.0, 0.0, 1.0), 9: (9.5, 0.0, 0.0, 1.0)}
    longer = {6: (9.5, -1.75, 0.125, 1.0), 7: (9.5, -1.5, 0.0, 1.0)}
    first_episode = {4: (5.5, -1.0, 0.0, 1.0), 5: (5.5, 0.0, 0.0, 1.0)}
    assert {step: found[step] for step in range(4, 10)} == first_episode | shorter | longer
    # Truncated without its goal, a window bootstraps from the true successor: 1/2 after one step.
    assert (5, 4.5, -1.0, 0.5, 1.0) in sample(relabel="episode", relabel_fraction=1.0, n_step=3)


def test_a_share_is_relabelled_with_scaled_and_clipped_rewards():
    own = {(step, 9.5 if 5 < step < 10 else 99.0, 0.0 if step == 9 else -1.0) for step in range(4, 12)}
    own |= {(step, 99.0, -1.0) for step in range(104, 112)}
    stored = {(*each, 0.0 if each[0] % 100 == 9 else 0.5, 1.0) for each in own}
    assert sample(relabel="final", relabel_fraction=0.0) == stored
    half = sample(relabel="final", relabel_fraction=0.5, scale=4.0)
    assert {(8, 9.5, -4.0, 0.5, 1.0), (4, 99.0, -4.0, 0.5, 1.0), (4, 5.5, -4.0, 0.5, 1.0)} <= half


@pytest.mark.parametrize("strategy", ["final", "future", "geometric", "episode", "random"])
def test_recorded_steps_have_goals_of_their_episode(strategy):
    """Steps 4 and 5, 6 to 9, 10 and 11 achieve their number plus 1; step 9 reached its goal, others are truncated."""
    row, number = np.arange(11), np.array([4, 5, 6, 6, 7, 8, 9, 10, 10, 11, 12], np.float32)
    view = goals(Observation(number[:, None]), np.where((row > 2) & (row < 8), 10.0, 99.0)[:, None])
    is_step = np.isin(row, [2, 7, 10], invert=True)
    flags = row == 6, np.isin(row, [1, 9]), is_step
    reward, places = np.where(row == 6, 0.0, -1.0).astype(np.float32), np.flatnonzero(is_step).astype(np.int32)
    recorded = Data(view, np.zeros(11, np.int32), reward, *flags, places)
    options = {**SIZES, "total_batch_size": 4096, "data": "data.npz", "data_fraction": 1.0, "relabel_fraction": 1.0}
    config = ReplayConfig(**options, relabel=strategy)
    replay = make_replay(config, spec(goal_reward=reached)._replace(**GOALS, data=recorded), 0.5)
    found = jax.jit(replay.sample)((), jax.random.key(0))
    views = (found.observation.agent_view[name] for name in ("observation", "desired_goal"))
    columns = (np.ravel(column).tolist() for column in (*views, found.reward, found.discount))
    pairs = outcomes(strategy) if strategy != "random" else {*itertools.product(range(4, 12), repeat=2)}
    expected = {(step, goal + 1.0, *((0.0, 0.0) if step == goal else (-1.0, 0.5))) for step, goal in pairs}
    assert set(zip(*columns, strict=True)) == expected


def test_environments_without_goals_are_refused():
    replay = make_replay(ReplayConfig(**SIZES, relabel="final"), spec(), 0.5)
    with pytest.raises(ConfigError, match=r"system.relabel=final needs environments with a `goal_reward`"):
        replay.sample(empty(replay), jax.random.key(0))
