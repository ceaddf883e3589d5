import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.suites.probes import PROBES, ProbeState, RepeatState, make
from support.compiled import run

GAMMA = 0.9

# Optimal actions, `view [D] -> action`; the other probes are independent of the action.
OPTIMAL_ACTIONS = {
    "action": lambda view: jnp.asarray(1),
    "policy": lambda view: jnp.where(view[0] > 0, 1, 0),
    "mixed_actions": lambda view: {"choice": jnp.asarray(view[0] > 0, jnp.int32), "push": 0.5 * view},
    "multi_discrete": lambda view: jnp.where(view > 0, jnp.asarray((1, 2)), jnp.asarray((0, 0))),
    "continuous_action": lambda view: jnp.full((1,), 0.5),
    "continuous_policy": lambda view: view,
}


def play(name, key, steps=5):
    """Play one optimal episode; return the probe, the views and rewards of all steps, and the last time step."""
    probe = make(name, {}, {}).env
    optimal_action = OPTIMAL_ACTIONS.get(name, lambda view: jnp.asarray(0))
    step = jax.jit(lambda key, state, view: probe.step(key, state, optimal_action(view)))
    state, timestep = run(probe.reset, key)
    views, rewards = [], []
    for _ in range(steps):
        views.append(timestep.observation.agent_view)
        state, timestep = step(key, state, views[-1])
        rewards.append(float(timestep.reward))
        if timestep.terminated or timestep.truncated:
            return probe, views, rewards, timestep
    raise AssertionError("the episode did not end")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBES)
def test_optimal_values_satisfy_the_bellman_equation(name):
    # Backwards through the episode, with a bootstrap value of zero at termination.
    for seed in range(3):
        probe, views, rewards, last = play(name, jax.random.key(seed))
        bootstrap = probe.optimal_value(last.next_observation.agent_view, GAMMA)
        value = 0.0 if last.terminated else float(bootstrap)
        for view, reward in zip(reversed(views), reversed(rewards), strict=True):
            value = reward + GAMMA * value
            np.testing.assert_allclose(probe.optimal_value(view, GAMMA), value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", PROBES)
def test_optimal_actions_earn_the_optimal_return(name):
    returns = [sum(play(name, jax.random.key(seed))[2]) for seed in range(4)]
    if name == "observed_value":
        assert set(returns) <= {-1.0, 1.0}
        assert PROBES[name].optimal_return == 0.0
    else:
        np.testing.assert_allclose(returns, make(name, {}, {}).env.optimal_return, atol=1e-6)


def test_optimal_values_match_hand_computed_values():
    one = jnp.ones((2, 1))
    np.testing.assert_allclose(make("time_limit", {}, {}).env.optimal_value(one, 0.9), [10.0, 10.0], rtol=1e-6)
    # 1 + 0.9 + 0.81 = 2.71 with three steps left, 1 + 0.9 = 1.9 with two, 1 with one.
    terminating = make("termination", {"limit": 3}, {}).env
    np.testing.assert_allclose(terminating.optimal_value(jnp.eye(3), 0.9), [2.71, 1.9, 1.0], rtol=1e-6)
    np.testing.assert_allclose(make("discount", {}, {}).env.optimal_value(jnp.array([[-1.0], [1.0]]), 0.9), [0.9, 1.0])


@pytest.mark.parametrize(
    ("name", "view", "action", "reward"),
    [
        ("action", [1.0], 0, 0.0),
        ("policy", [-1.0], 1, 0.0),
        ("policy", [-1.0], 0, 1.0),
        ("multi_discrete", [1.0], [1, 1], 0.5),
        ("multi_discrete", [-1.0], [1, 2], 0.0),
        ("mixed_actions", [-1.0], {"choice": 1, "push": [0.0]}, -0.25),
        ("continuous_action", [1.0], [-0.5], -1.0),
        ("continuous_policy", [0.5], [0.0], -0.25),
    ],
)
def test_rewards_of_suboptimal_actions(name, view, action, reward):
    probe = make(name, {}, {}).env
    action = jax.tree.map(np.asarray, action, is_leaf=lambda part: isinstance(part, list))
    state, action = jax.device_put((ProbeState(np.array(view), np.array(0)), action))
    _, timestep = run(probe.step, jax.random.key(0), state, action)
    np.testing.assert_allclose(timestep.reward, reward)


@pytest.mark.parametrize(
    ("cue", "action", "steps", "found", "terminated"),
    [(1, 0.41, 0, 1.0, True), (-1, -0.59, 3, 1.0, True), (1, -0.5, 0, 0.0, False), (1, 0.61, 3, 0.0, True)],
)
def test_two_goals_end_where_the_hidden_one_is_found_or_after_four_attempts(cue, action, steps, found, terminated):
    probe = make("two_goals", {}, {}).env
    state = RepeatState(np.float32(cue), np.int32(steps))
    _, timestep = run(probe.step, jax.random.key(0), jax.device_put(state), np.array([action], np.float32))
    assert (float(timestep.reward), bool(timestep.terminated)) == (found, terminated)
    assert probe.optimal_return == 1 - 1 / 16


def test_time_limit_truncates_and_termination_terminates():
    *_, at_limit = play("time_limit", jax.random.key(0))
    *_, at_end = play("termination", jax.random.key(0))
    assert (bool(at_limit.terminated), bool(at_limit.truncated)) == (False, True)
    assert (bool(at_end.terminated), bool(at_end.truncated)) == (True, False)
