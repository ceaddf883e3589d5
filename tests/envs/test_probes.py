"""The probes give what their tables promise, which the tests of systems rely on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.suites.probes import PROBES, ProbeState, make

GAMMA = 0.9

# The best action for what the agent sees, `[D] -> action`; any will do where a probe is about values alone.
BEST = {
    "action": lambda view: jnp.asarray(1),
    "policy": lambda view: jnp.where(view[0] > 0, 1, 0),
    "multi_discrete": lambda view: jnp.where(view > 0, jnp.asarray((1, 2)), jnp.asarray((0, 0))),
    "continuous_action": lambda view: jnp.full((1,), 0.5),
    "continuous_policy": lambda view: view,
}


def play(name, key, steps=5):
    """One episode of best actions: the views and rewards of its steps, the last flags and the last successor."""
    probe = make(name, {}, {}).env
    best = BEST.get(name, lambda view: jnp.asarray(0))
    step = jax.jit(probe.step)
    state, timestep = probe.reset(key)
    views, rewards = [], []
    for _ in range(steps):
        views.append(timestep.observation.agent_view)
        state, timestep = step(key, state, best(views[-1]))
        rewards.append(float(timestep.reward))
        if timestep.terminated or timestep.truncated:
            return probe, views, rewards, timestep
    raise AssertionError("the episode did not end")


@pytest.mark.parametrize("name", PROBES)
def test_values_are_those_of_the_rewards(name):
    # Backwards through the episode, from zero beyond an end and from the promised value beyond a limit.
    for seed in range(3):
        probe, views, rewards, last = play(name, jax.random.key(seed))
        beyond = probe.optimal_value(last.next_observation.agent_view, GAMMA)
        value = 0.0 if last.terminated else float(beyond)
        for view, reward in zip(reversed(views), reversed(rewards), strict=True):
            value = reward + GAMMA * value
            np.testing.assert_allclose(probe.optimal_value(view, GAMMA), value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", PROBES)
def test_best_return(name):
    returns = [sum(play(name, jax.random.key(seed))[2]) for seed in range(4)]
    if name == "observed_value":
        assert set(returns) <= {-1.0, 1.0}
        assert PROBES[name].optimal_return == 0.0
    else:
        np.testing.assert_allclose(returns, make(name, {}, {}).env.optimal_return, atol=1e-6)


def test_values_by_hand():
    one = jnp.ones((2, 1))
    np.testing.assert_allclose(make("time_limit", {}, {}).env.optimal_value(one, 0.9), [10.0, 10.0], rtol=1e-6)
    # 1 + 0.9 + 0.81 with three steps left, 1 with one.
    ending = make("termination", {"limit": 3}, {}).env
    np.testing.assert_allclose(ending.optimal_value(jnp.eye(3), 0.9), [2.71, 1.9, 1.0], rtol=1e-6)
    np.testing.assert_allclose(make("discount", {}, {}).env.optimal_value(jnp.array([[-1.0], [1.0]]), 0.9), [0.9, 1.0])


@pytest.mark.parametrize(
    ("name", "view", "action", "reward"),
    [
        ("action", [1.0], 0, 0.0),
        ("policy", [-1.0], 1, 0.0),
        ("policy", [-1.0], 0, 1.0),
        ("multi_discrete", [1.0], [1, 1], 0.5),
        ("multi_discrete", [-1.0], [1, 2], 0.0),
        ("continuous_action", [1.0], [-0.5], -1.0),
        ("continuous_policy", [0.5], [0.0], -0.25),
    ],
)
def test_rewards_by_hand(name, view, action, reward):
    probe = make(name, {}, {}).env
    state = ProbeState(jnp.asarray(view), jnp.asarray(0))
    _, timestep = probe.step(jax.random.key(0), state, jnp.asarray(action))
    np.testing.assert_allclose(timestep.reward, reward)


def test_limits_are_truncations_and_ends_are_not():
    *_, cut = play("time_limit", jax.random.key(0))
    *_, ended = play("termination", jax.random.key(0))
    assert (bool(cut.terminated), bool(cut.truncated)) == (False, True)
    assert (bool(ended.terminated), bool(ended.truncated)) == (True, False)
