from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, OnlineAndTarget
from stoix_like.systems.off_policy.actor_critic import OffPolicyShared
from stoix_like.systems.offline.anakin.ff_iql import IQLOptStates, IQLParams
from stoix_like.utils.replay import Batch
from support.algorithms import with_methods
from support.compiled import run
from support.off_policy_runs import algorithm

OVERRIDES = ["system.expectile=0.8", "system.beta=0.5", "system.weight_max=3.0"]
BATCH = Batch(
    observation=Observation(jnp.asarray([[1.0], [2.0]])),
    action=jnp.asarray([[0.5], [-0.5]]),
    reward=jnp.asarray([1.0, -1.0]),
    discount=jnp.asarray([0.9, 0.0]),
    next_observation=Observation(jnp.asarray([[3.0], [4.0]])),
    weight=jnp.asarray([1.0, 0.5]),
    indices=None,
)


class LogProb:
    def __init__(self, value):
        self._value = value

    def log_prob(self, action):
        return self._value * action[:, 0]


@pytest.fixture
def iql():
    """Values are `params` times the observation; the critics have the values q and 2 q."""
    found = algorithm("offline/ff_iql", *OVERRIDES)
    apply = SimpleNamespace(apply=lambda params, observation: params * observation.agent_view[:, 0])
    critics = SimpleNamespace(
        apply=lambda params, observation, inputs: (
            params * (observation.agent_view + inputs["action"]) * jnp.asarray([[1.0, 2.0]])
        )
    )
    actor = SimpleNamespace(apply=lambda params, observation: LogProb(params))
    return replace(found, values=apply, critics=critics, actor=actor)


def test_values_are_expectiles_of_those_of_the_data(iql):
    """Errors 3 - 2 = 1 and 3 - 4 = -1."""
    loss, _ = run(iql.value_loss, jnp.asarray(2.0), BATCH, jnp.asarray([3.0, 3.0]))
    np.testing.assert_allclose(loss, (0.8 + 0.5 * 0.2) / 2, rtol=1e-6)


def test_critics_learn_from_the_value_of_the_successor(iql):
    """Targets 1 + 0.9 x 6 and -1; critics 1.5 and 3, and for the second step 1.5 and 3."""
    loss, metrics = run(iql.critic_loss, jnp.asarray(1.0), jnp.asarray(2.0), BATCH)
    errors = np.array([[6.4 - 1.5, 6.4 - 3.0], [-1.0 - 1.5, -1.0 - 3.0]])
    np.testing.assert_allclose(loss, np.mean(np.array([1.0, 0.5]) * 0.5 * np.sum(errors**2, axis=1)), rtol=1e-6)
    np.testing.assert_allclose(metrics["q_value"], 2.25)


def test_the_policy_imitates_actions_by_their_advantages(iql):
    """Weights exp(0.5 / 0.5) and, for an advantage of 2, the largest one, 3; log-probabilities 2 and -2."""
    loss, _ = run(iql.actor_loss, jnp.asarray(4.0), BATCH, jnp.asarray([0.5, 2.0]))
    np.testing.assert_allclose(loss, -(np.exp(1.0) * 2.0 + 3.0 * 0.5 * -2.0) / 2, rtol=1e-6)


def test_values_and_policies_learn_from_the_smallest_target_critic(iql):
    """Critics 2 (x + a) and twice as much: 3 for both steps; the state values are 1 and 2."""
    seen = []

    def value_loss(self, params, batch, q):
        seen.append(q)
        return 0.0 * params, {}

    def actor_loss(self, params, batch, advantage):
        seen.append(advantage)
        return 0.0 * params, {}

    found = with_methods(iql, value_loss=value_loss, actor_loss=actor_loss)
    one, two = jnp.asarray(1.0), jnp.asarray(2.0)
    opt_states = IQLOptStates(*(optim.init(one) for optim in (iql.actor_optim, iql.q_optim, iql.value_optim)))
    shared = OffPolicyShared(IQLParams(one, OnlineAndTarget(one, two), one), opt_states, jnp.zeros((), jnp.int32))
    found.sgd_step(shared, BATCH, None)
    np.testing.assert_allclose(seen, [[3.0, 3.0], [2.0, 1.0]])
