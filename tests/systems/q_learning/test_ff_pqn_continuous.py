"""Tests of continuous PQN; `test_time_limits` tests the values that it learns."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from off_policy_runs import timestep

from stoix_like.base_types import Axes, Observation, RolloutState, Trajectory, Transition
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.run.setup import set_up
from stoix_like.systems.q_learning.anakin.ff_pqn_continuous import ContinuousPQNShared


def set_up_small(*overrides):
    return set_up(
        parse_config(compose_config(["system=q_learning/ff_pqn_continuous", "env=gymnax/pendulum", *overrides]))
    )


def constant(*overrides):
    """Return the algorithm with a policy of torque 0.5, and a critic q(s, a) = s + a."""
    pqn = dataclasses.replace(set_up_small(*overrides).build_system().init.__self__, axes=Axes())
    policy = SimpleNamespace(mode=lambda: jnp.full((2, 1), 0.5))
    critic = SimpleNamespace(apply=lambda params, view, kwargs: view.agent_view + kwargs["action"][..., 0])
    return dataclasses.replace(pqn, actor=SimpleNamespace(apply=lambda params, view: policy), critic=critic)


def test_targets_are_lambda_returns_that_the_action_of_the_policy_bootstraps():
    """Two environments, one step each: the first terminates, the second is truncated where its successor is 3.

    Rewards are halved: 0.5 * 2 = 1, and 0.5 * 2 + 0.9 * (3 + 0.5) = 4.15.
    """
    pqn = constant("system.gamma=0.9", "system.reward_scale=0.5")
    policy = SimpleNamespace(mode=lambda: jnp.full((1, 2, 1), 0.5))
    pqn = dataclasses.replace(pqn, actor=SimpleNamespace(apply=lambda params, view: policy))
    rows = jnp.full((1, 2), 2.0)
    flags = [jnp.asarray([[True, False]]), jnp.asarray([[False, True]])]
    view, successor = Observation(jnp.zeros((1, 2))), Observation(jnp.asarray([[7.0, 3.0]]))
    steps = Transition(view, rows[..., None], rows, *flags, successor, rows > 0, ())
    batch = pqn.evaluate(ContinuousPQNShared((), (), (), ()), Trajectory(steps, ()))
    np.testing.assert_allclose(batch.target, [[1.0, 4.15]], rtol=1e-6)
    loss, _ = pqn.critic_loss((), batch)
    # Values of the actions taken: 0 + 2.
    assert float(loss) == pytest.approx(0.5 * (1.0 + 2.15**2) / 2)


def test_the_policy_explores_within_the_bounds_and_evaluates_without_noise():
    pqn = constant("system.exploration_noise=100.0", "env.rescale_actions=false")
    state = RolloutState((), timestep([0, 0], [False, False]), pqn.init_carry(2))
    shared = ContinuousPQNShared((), (), (), ())
    _, action, _ = pqn.act(shared, state, jax.random.key(0))
    assert jnp.abs(action).tolist() == [[2.0], [2.0]]
    _, action, _ = pqn.act(shared, state, None, greedy=True)
    assert action.tolist() == [[0.5], [0.5]]


def test_a_largest_noise_below_the_smallest_raises():
    with pytest.raises(ConfigError, match=r"system.max_exploration_noise=0.05 must not be below"):
        set_up_small("system.max_exploration_noise=0.05")
