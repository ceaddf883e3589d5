import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.systems.parts.conservatism import (
    Conservatism,
    SampledConservatism,
    check_actions,
    make_penalty,
    make_sampled_penalty,
)
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.off_policy_runs import timestep
from support.set_ups import setup_of

BATCH, NUMBER = 4, 3
SPACE = Box(-2.0, 2.0, (1,))


class Policy:
    """A policy that draws what it is told to."""

    def __init__(self, action, log_prob):
        self._drawn = jnp.asarray(action, jnp.float32), jnp.asarray(log_prob, jnp.float32)

    def sample_and_log_prob(self, *, seed, sample_shape):
        assert sample_shape == (NUMBER,)
        return self._drawn


def test_the_penalty_of_discrete_actions_is_a_soft_maximum():
    """2 (log(e^1 + e^2) - 1) and 2 (log(e^0 + e^3) - 3), each added to its own loss, which may have a weight."""
    penalty = make_penalty(Conservatism(cql_coef=2.0))
    found = penalty(jnp.asarray([5.0, 7.0]), jnp.asarray([[1.0, 2.0], [0.0, 3.0]]), jnp.asarray([0, 1]))
    first, second = 2 * (np.log(np.exp(1) + np.exp(2)) - 1), 2 * (np.log(1 + np.exp(3)) - 3)
    np.testing.assert_allclose(found, [5 + first, 7 + second], rtol=1e-6)


@pytest.mark.parametrize("system", ["ff_dqn", "ff_ddqn"])
def test_the_weight_of_the_penalty_has_its_effect_on_discrete_actions(system):
    """Losses with the weight 2 are those with the weight 1, and the penalty, log sum exp - q, once more."""
    losses, q = [], None
    for coef in ("null", "1", "2"):
        overrides = [f"system=q_learning/{system}", "env=gymnax/cartpole", f"system.cql_coef={coef}"]
        algorithm = make_algorithm(setup_of(*overrides))
        observation = Observation(jnp.ones((2, 4)))
        zeros = jnp.zeros(2)
        batch = Batch(observation, jnp.asarray([0, 1]), zeros, zeros, observation, zeros + 1.0, None, None)
        step = timestep([0, 0], [False, False])._replace(observation=observation)
        params = algorithm.init(jax.random.key(0), step).shared.params
        losses.append(algorithm.losses(params, batch, jax.random.key(1))[0])
        q = algorithm.q(params.online, observation, jax.random.key(2))[0]
    penalty = jax.nn.logsumexp(q, axis=-1) - q[jnp.arange(2), jnp.asarray([0, 1])]
    np.testing.assert_allclose(losses[1] - losses[0], penalty, rtol=1e-4)
    np.testing.assert_allclose(losses[2] - losses[0], 2.0 * penalty, rtol=1e-4)


def test_uniform_actions_need_bounds():
    config = SampledConservatism(cql_coef=1.0)
    check_actions(config, SPACE)
    check_actions(SampledConservatism(), Box(-np.inf, np.inf, (1,)))
    with pytest.raises(ConfigError, match=r"system.cql_coef draws uniform actions, which needs an action space with b"):
        check_actions(config, Box(-np.inf, np.inf, (1,)))


@pytest.mark.parametrize("returns", [None, [-np.inf, 0.0, 9.0, 1.0]])
def test_the_penalty_of_continuous_actions_weighs_samples_by_their_densities(returns):
    """Critics are a and 2a; uniform actions have the density 1/4, those of the policy their own."""
    rng = np.random.default_rng(0)
    action, log_prob = rng.uniform(-2, 2, (NUMBER, BATCH, 1)), rng.normal(size=(NUMBER, BATCH))
    q_tm1 = rng.normal(size=(BATCH, 2)).astype(np.float32)
    key = jax.random.key(1)
    penalty = make_sampled_penalty(SampledConservatism(cql_coef=0.5, cql_actions=NUMBER), SPACE)
    bounds = None if returns is None else jnp.asarray(returns, jnp.float32)
    found = penalty(
        jnp.asarray(3.0),
        key,
        lambda action: action * jnp.asarray([[1.0, 2.0]]),
        lambda: [Policy(action, log_prob)],
        jnp.asarray(q_tm1),
        bounds,
    )
    uniform = -2 + 4 * np.asarray(jax.random.uniform(jax.random.split(key)[0], (NUMBER, BATCH, 1)))
    total = 0.0
    for critic in range(2):
        drawn = (critic + 1) * action[..., 0]
        if returns is not None:
            drawn = np.maximum(drawn, np.asarray(returns)[None])
        weights = np.concatenate([np.exp((critic + 1) * uniform[..., 0]) / 0.25, np.exp(drawn - log_prob)])
        total += np.mean(np.log(weights.mean(axis=0)) - q_tm1[:, critic])
    np.testing.assert_allclose(found, 3.0 + 0.5 * total, rtol=1e-5)
