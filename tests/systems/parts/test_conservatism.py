from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.systems.parts.conservatism import Conservatism, SampledConservatism, conservative, make_sampled_penalty
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.compiled import run
from support.off_policy_runs import timestep
from support.selections import first
from support.set_ups import setup_of

BATCH, NUMBER = 4, 3
SPACE = Box(np.float32([-2.0, 0.0]), np.float32([2.0, 3.0]), (2,))


class Policy:
    """A policy that draws what it is told to."""

    def __init__(self, action, log_prob):
        self._drawn = jnp.asarray(action, jnp.float32), jnp.asarray(log_prob, jnp.float32)

    def sample_and_log_prob(self, *, seed, sample_shape):
        assert sample_shape == (NUMBER,)
        return self._drawn


def test_the_penalty_of_discrete_actions_is_a_soft_maximum():
    """2 (log(e^1 + e^2) - 1) and 2 (log(e^0 + e^3) - 3), each added to its own loss, which may have a weight."""
    losses, q, actions = jax.device_put((np.array([5.0, 7.0]), np.array([[1.0, 2.0], [0.0, 3.0]]), np.array([0, 1])))
    found, _ = run(conservative, Conservatism(cql_coef=2.0), losses, q, actions)
    first, second = 2 * (np.log(np.exp(1) + np.exp(2)) - 1), 2 * (np.log(1 + np.exp(3)) - 3)
    np.testing.assert_allclose(found, [5 + first, 7 + second], rtol=1e-6)


def losses_and_values(algorithm, key):
    """Return the losses and values of the actions 0 and 1 in one state, before training."""
    observation, zeros = Observation(jnp.ones((2, 4))), jnp.zeros(2)
    batch = Batch(observation, jnp.asarray([0, 1]), zeros, zeros, observation, zeros + 1.0, None, None)
    step = timestep([0, 0], [False, False])._replace(observation=observation)
    params = algorithm.init(key, step).shared.params
    return algorithm.losses(params, batch, key)[0], algorithm.q(params.online, observation, key)[0]


@pytest.mark.parametrize("system", first(1, ["ff_dqn", "ff_ddqn"]))
def test_the_weight_of_the_penalty_has_its_effect_on_discrete_actions(system):
    """Losses with the weight 2 are those with the weight 1, and the penalty, log sum exp - q, once more."""
    losses, q = [], None
    for coef in ("null", "1", "2"):
        overrides = [f"system=q_learning/{system}", "env=gymnax/cartpole", f"system.cql_coef={coef}"]
        found, q = jax.device_get(run(losses_and_values, make_algorithm(setup_of(*overrides)), jax.random.key(0)))
        losses.append(found)
    penalty = np.log(np.exp(q).sum(-1)) - np.diag(q)
    np.testing.assert_allclose(losses[1] - losses[0], penalty, rtol=1e-4)
    np.testing.assert_allclose(losses[2] - losses[0], 2.0 * penalty, rtol=1e-4)


def test_uniform_actions_need_bounds():
    with pytest.raises(ConfigError, match=r"system.cql_coef draws uniform actions, which needs an action space with b"):
        make_sampled_penalty(SampledConservatism(cql_coef=1.0), Box(-np.inf, np.inf, (1,)))


def test_the_penalty_of_continuous_actions_weighs_samples_by_their_densities():
    """Critics are a + b and its double; uniform actions have the density 1/12, those of the policy their own."""
    rng = np.random.default_rng(0)
    action, log_prob = rng.uniform([-2, 0], [2, 3], (2, NUMBER, BATCH, 2)), rng.normal(size=(2, NUMBER, BATCH))
    q_tm1 = rng.normal(size=(BATCH, 2)).astype(np.float32)
    key = jax.random.key(1)
    penalty = make_sampled_penalty(SampledConservatism(cql_coef=0.5, cql_actions=NUMBER), SPACE)
    sac = SimpleNamespace(
        q_values=lambda params, observation, action, key: action.sum(-1, keepdims=True) * jnp.asarray([[1.0, 2.0]]),
        pi=lambda params, observation: Policy(action[observation], log_prob[observation]),
    )
    batch = SimpleNamespace(observation=0, next_observation=1)
    found = run(penalty, sac, jnp.asarray(3.0), None, None, batch, jnp.asarray(q_tm1), key)
    uniform_key = jax.random.split(jax.random.fold_in(key, 3))[0]
    uniform = [-2, 0] + [4, 3] * np.asarray(jax.random.uniform(uniform_key, (NUMBER, BATCH, 2)))
    total = 0.0
    for critic in range(2):
        policy = np.exp((critic + 1) * action.sum(-1) - log_prob)  # here, and at the successor
        weights = np.concatenate([12 * np.exp((critic + 1) * uniform.sum(-1)), *policy])
        total += np.mean(np.log(weights.mean(axis=0)) - q_tm1[:, critic])
    np.testing.assert_allclose(found, 3.0 + 0.5 * total, rtol=1e-5)
