"""Bounds on divergences, and the log-probabilities that MPO remembers."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from off_policy_runs import algorithm, timestep

from stoix_like.base_types import Agent, RolloutState, Trajectory, Transition
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError
from stoix_like.networks.distributions import Categorical, Independent
from stoix_like.systems.mpo.actions import as_vector, check_bounded, excess, proposals
from stoix_like.systems.mpo.duals import constrained_policy_loss, init_duals, positive

SMALL = ["system.rollout_length=4", "system.n_step=2", "system.total_batch_size=8"]


def normal(loc, scale):
    return Independent(distrax.Normal(jnp.asarray(loc), jnp.asarray(scale)), 1)


def test_initial_duals_are_the_configured_ones():
    config = algorithm("mpo/ff_mpo", *SMALL, "system.init_temperature=0.01", "system.init_alpha_stddev=1000").config
    duals = init_duals(config, normal([[0.0, 0.0]], [[1.0, 1.0]]))
    assert float(positive(duals.temperature)) == pytest.approx(0.01, rel=1e-5)
    np.testing.assert_allclose(positive(duals.alphas["mean"]), [config.init_alpha_mean] * 2, rtol=1e-5)
    np.testing.assert_allclose(positive(duals.alphas["stddev"]), [1000.0] * 2, rtol=1e-5)
    assert init_duals(config, Categorical(logits=jnp.zeros((1, 3)))).alphas["policy"].shape == (1,)


def test_a_multiplier_grows_where_its_bound_is_exceeded():
    """With unit deviations, a mean moved by d has a divergence of d^2 / 2: 0.5 above and 0 below the bound of 0.01.

    The penalty is alpha times the divergence. The gradient of the dual loss alpha (epsilon - KL) by alpha is
    epsilon - KL, and that of softplus multiplies it.
    """
    config = algorithm("mpo/ff_mpo", *SMALL, "system.epsilon_mean=0.01", "system.init_alpha_mean=3").config
    b_pi, pi = normal([[0.0, 0.0]], [[1.0, 1.0]]), normal([[1.0, 0.0]], [[1.0, 1.0]])
    duals = init_duals(config, b_pi)

    def loss(duals, pi):
        return constrained_policy_loss(config, duals, pi, b_pi, lambda part: jnp.zeros(()))

    value, metrics = loss(duals, pi)
    dual = 3.0 * (0.01 - 0.5) + 3.0 * 0.01 + 2 * config.init_alpha_stddev * config.epsilon_stddev
    assert float(value) == pytest.approx(3.0 * 0.5 + dual, rel=1e-4)
    assert float(metrics["kl_mean"]) == pytest.approx(0.25)
    gradient = jax.grad(lambda duals: loss(duals, pi)[0])(duals).alphas["mean"]
    slope = 1.0 - np.exp(-3.0)
    np.testing.assert_allclose(gradient, [slope * (0.01 - 0.5), slope * 0.01], rtol=1e-3)


def test_random_actions_of_the_warmup_end_the_trace():
    """The policy's own action keeps its log-probability; another action has an unknown, and so an infinite one."""
    mpo = algorithm("mpo/ff_mpo", *SMALL, "arch.total_num_envs=2")
    step = timestep([0, 0], [False, False])
    agent = jax.jit(mpo.init)(jax.random.key(0), step)
    keys = jax.random.split(jax.random.key(2), 2)
    _, action, extras = jax.jit(mpo.act)(agent.shared, RolloutState((), step, keys), jax.random.key(1))
    taken = action.at[1].add(0.5)
    flags = step.terminated
    steps = Transition(step.observation, taken, step.reward, flags, flags, step.observation, flags, extras)
    agent = jax.jit(mpo.observe)(Agent(*agent), Trajectory(jax.tree.map(lambda x: x[None], steps), ()))
    stored = np.asarray(agent.local.experience.extras)[:, 0]
    np.testing.assert_allclose(stored[0], extras[1][0])
    assert stored[1] == np.inf


def test_actions_are_vectors_with_one_hot_choices():
    one_hot = as_vector(Discrete(3), jnp.asarray([2, 0]))
    np.testing.assert_array_equal(one_hot, [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(as_vector(MultiDiscrete((2, 3)), jnp.asarray([[1, 0]])), [[0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(as_vector(Box(-1, 1, (1,)), jnp.asarray([[0.5]])), [[0.5]])


def test_all_discrete_actions_stand_for_a_policy_by_their_probabilities():
    probs = jnp.asarray([[0.2, 0.8], [1.0, 0.0]])
    action, log_prior = proposals(Discrete(2), Categorical(probs=probs), 16, jax.random.key(0))
    np.testing.assert_array_equal(action, [[0, 0], [1, 1]])
    np.testing.assert_allclose(jax.nn.softmax(log_prior, axis=0), probs.T, rtol=1e-6)


def test_the_penalty_is_the_distance_from_the_bounds_in_units_of_half_the_range():
    """In [-2, 2], (4, 0) is one half-width beyond; in (3, 4) of half-widths, the distance is 5."""
    space = Box(-2.0, 2.0, (2,))
    np.testing.assert_allclose(excess(space, jnp.asarray([[1.0, -2.0], [4.0, 0.0], [-8.0, 10.0]])), [0.0, 1.0, 5.0])
    with pytest.raises(ConfigError, match="system.action_penalty=true needs continuous actions with bounds"):
        check_bounded(Discrete(2), "system.action_penalty")
    with pytest.raises(ConfigError, match="use false"):
        check_bounded(Box(-np.inf, np.inf, (2,)), "system.action_penalty")


def test_penalised_actions_lose_weight():
    """Four actions of equal value, one of them out of bounds: it has the least weight, and each objective sums to 1."""
    mpo = algorithm("mpo/ff_mpo", *SMALL, "system.action_penalty=true", "system.init_temperature=0.1")
    duals = jax.jit(mpo.init)(jax.random.key(0), timestep([0], [False])).shared.params.duals
    action = jnp.asarray([0.1, -0.5, 0.9, 1.2])[:, None, None]
    loss, weights = mpo.weigh(duals, action, jnp.zeros((4, 1)), jnp.zeros((4, 1)))
    np.testing.assert_allclose(weights.sum(), 2.0, rtol=1e-5)
    # exp(-0.2 / 0.1) for the excess of 0.2.
    inside = 1.0 / (3.0 + np.exp(-2.0))
    np.testing.assert_allclose(weights[:, 0], 0.25 + inside * np.array([1.0, 1.0, 1.0, np.exp(-2.0)]), rtol=1e-4)
    assert np.isfinite(loss)
