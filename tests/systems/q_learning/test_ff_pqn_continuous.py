import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import ActorCriticParams, Axes, Observation, RolloutState, Trajectory, Transition
from stoix_like.systems.on_policy.actor_critic import OnPolicyShared
from stoix_like.systems.q_learning.anakin.ff_pqn_continuous import ContinuousPQNTransition
from support.algorithms import make_algorithm
from support.compiled import run
from support.off_policy_runs import timestep
from support.set_ups import setup_of

SHARED = OnPolicyShared(ActorCriticParams((), ()), (), (), updates=jnp.zeros((), jnp.int32))


@pytest.fixture(scope="module")
def algorithm():
    overrides = ["system=q_learning/ff_pqn_continuous", "env=gymnax/pendulum", "env.rescale_actions=false"]
    return make_algorithm(setup_of(*overrides, "system.normalize_observations=false"), axes=Axes())


def constant(algorithm, **hyperparams):
    """Return the algorithm with a policy of torque 0.5, and two critics s + a and s + a + 2, of mean s + a + 1.

    Actions lie in [-2, 2].
    """

    def policy(params, view):
        return SimpleNamespace(mode=lambda: jnp.full((*view.agent_view.shape, 1), 0.5))

    def critics(params, view, kwargs):
        value = view.agent_view + kwargs["action"][..., 0]
        return jnp.stack([value, value + 2.0], axis=-1)

    networks = {"actor": SimpleNamespace(apply=policy), "critics": SimpleNamespace(apply=critics)}
    return dataclasses.replace(algorithm, config=dataclasses.replace(algorithm.config, **hyperparams), **networks)


def at_zero(num_envs):
    """Return environments in the state 0."""
    first = timestep([0] * num_envs, [False] * num_envs)
    return RolloutState((), first._replace(observation=Observation(jnp.zeros(num_envs))), ())


def test_steps_bootstrap_from_the_action_that_followed(algorithm):
    """Three steps of three environments, with rewards of 2, scaled to 1, in state 0; gamma = 0.9, lambda = 0.5.

    Followed by the action -1: v = 0 - 1 + 1 = 0. At the end of the rollout, and where the episode is truncated, in the
    state 3 without noise: v = 3 + 0.5 + 1 = 4.5, so that 1 + 0.9 * 4.5 = 5.05.
    Second step: 1 + 0.9 * (0.5 * 0 + 0.5 * 5.05) = 3.2725; 5.05 if truncated; 1 if terminated.
    First step: 1 + 0.9 * (0.5 * 0 + 0.5 * second) = 2.472625, 3.2725, 1.45.
    """
    no_noise = {"exploration_noise": 0.0, "final_exploration_noise": None}
    pqn = constant(algorithm, gamma=0.9, q_lambda=0.5, reward_scale=0.5, **no_noise)
    rows, place = np.full((3, 3), 2.0), np.arange(9).reshape(3, 3)
    truncated, terminated = place == 4, place == 5
    view, successor = Observation(np.zeros((3, 3))), Observation(np.full((3, 3), 3.0))
    action = np.full((3, 3, 1), -1.0)
    steps = Transition(view, action, rows, terminated, truncated, successor, rows > 0, action + 5.0)
    batch = run(pqn.evaluate, SHARED, *jax.device_put((Trajectory(steps, ()), jax.random.key(0))))
    expected = [[2.472625, 3.2725, 1.45], [3.2725, 5.05, 1.0], [5.05, 5.05, 5.05]]
    np.testing.assert_allclose(batch.target, expected, rtol=1e-6)
    np.testing.assert_array_equal(batch.policy_action, 4.0)


def test_critics_learn_by_huber_losses(algorithm):
    """Values 0 and 2 of the first step, 1 and 3 of the second, and targets of 0.5: errors 0.5, 1.5; 0.5, 2.5."""
    view, action = Observation(jnp.asarray([0.0, 1.0])), jnp.zeros((2, 1))
    batch = ContinuousPQNTransition(view, action, action, jnp.full(2, 0.5))
    loss, metrics = run(constant(algorithm).critic_loss, (), batch)
    assert float(loss) == pytest.approx((0.125 + 0.125) / 2 + (1.0 + 2.0) / 2)
    assert float(metrics["q_value"]) == 1.5


def test_the_policy_is_penalised_beyond_its_trust_region(algorithm):
    """In units of half the range, 2: the actions 0.5 changed from 0.3 by 0.1, which is free, and from -0.5 by 0.5.

    The values are 0.5 + 1, and the penalty is 10 * 0.5^2 / 2.
    """
    view, old = Observation(jnp.zeros(2)), jnp.asarray([[0.3], [-0.5]])
    batch = ContinuousPQNTransition(view, old, old, jnp.zeros(2))
    loss, metrics = run(constant(algorithm, change_penalty=10.0).actor_loss, (), (), batch)
    assert float(loss) == pytest.approx(-1.5 + 10.0 * 0.125 / 2)
    assert float(metrics["penalised"]) == 0.5
    assert float(metrics["action_change"]) == pytest.approx(0.3)


def test_the_noise_is_annealed_and_evaluation_has_none(algorithm):
    pqn = constant(algorithm, exploration_noise=0.2, final_exploration_noise=0.1)
    state = at_zero(4096)
    for fraction, scale in ((0.0, 0.2), (0.5, 0.15), (1.0, 0.1)):
        shared = SHARED._replace(updates=jnp.float32(fraction * pqn.num_updates))
        _, action, policy_action = jax.jit(pqn.act)(shared, state, jax.random.key(0))
        # In units of half the range, 2; 4,096 samples.
        assert float(jnp.std(action - policy_action)) == pytest.approx(2.0 * scale, rel=0.05)
    _, action, _ = run(pqn.act, SHARED, state, None, greedy=True)
    np.testing.assert_array_equal(action, 0.5)


def test_actions_with_noise_stay_within_the_bounds(algorithm):
    _, action, _ = run(constant(algorithm, exploration_noise=100.0).act, SHARED, at_zero(2), jax.random.key(0))
    assert np.abs(action).tolist() == [[2.0], [2.0]]
