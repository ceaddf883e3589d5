from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, OnlineAndTarget
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.systems.offline.anakin.ff_fql import FlowParams, FQLParams
from stoix_like.systems.parts.flows import Flow
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.compiled import run
from support.off_policy_runs import algorithm, set_up_small

OBSERVATION = Observation(jnp.zeros((3, 1)))


def outputs(function):
    return SimpleNamespace(apply=lambda params, observation, inputs: function(params, inputs["action"]))


@pytest.fixture
def fql():
    """The velocity is `params` plus the time, the policy's action half of the noise, and both critics the action."""
    found = algorithm("offline/ff_fql", "system.distillation_coef=3.0")
    return replace(
        found,
        flow=Flow(outputs(lambda params, place: params + place[:, 1:]), 4),
        actor=outputs(lambda params, noise: 0.5 * noise),
        critics=outputs(lambda params, action: action * jnp.ones((1, 2))),
    )


def test_a_flow_is_followed_by_eulers_method_within_the_bounds(fql):
    """Four steps of (c + t) / 4 at t = 0, 1/4, 1/2, 3/4: c + 3/8 in all."""
    noise = jnp.asarray([[0.0], [-1.0], [0.9]])
    np.testing.assert_allclose(
        run(fql.flow.follow, jnp.asarray(0.25), OBSERVATION, noise), [[0.625], [-0.375], [1.0]], rtol=1e-6
    )


def test_critics_learn_the_mean_of_the_target_critics(fql):
    """The successors have the values 2 (0.4, 1.2), on average 1.6: targets 1 + 1.6 / 2, and errors 1.6 and 1.2."""
    critics = outputs(lambda params, action: params * action * jnp.asarray([[1.0, 3.0]]))
    fql = replace(fql, critics=critics, actor=outputs(lambda params, noise: jnp.full_like(noise, 0.4)))
    ones = jnp.ones(3)
    batch = Batch(OBSERVATION, jnp.full((3, 1), 0.2), ones, 0.5 * ones, OBSERVATION, ones, None)
    params = FQLParams(FlowParams(None, None), OnlineAndTarget(1.0, 2.0))
    np.testing.assert_allclose(run(fql.critic_loss, 1.0, params, batch, jax.random.key(0))[0], 4.0, rtol=1e-5)


def test_losses_of_flow_and_policy(fql):
    """With the keys of the loss, computed again from its noise."""
    action = jnp.asarray([[0.2], [-0.4], [0.6]])
    weight = jnp.asarray([1.0, 0.0, 2.0])
    batch = Batch(OBSERVATION, action, jnp.zeros(3), jnp.zeros(3), OBSERVATION, weight, None)
    key, flow = jax.random.key(3), jnp.asarray(0.5)
    loss, metrics = run(fql.actor_loss, FlowParams(flow, None), None, batch, key)
    keys = jax.random.split(key, 3)
    start, time = np.asarray(jax.random.normal(keys[0], (3, 1))), np.asarray(jax.random.uniform(keys[1], (3,)))
    errors = (0.5 + time[:, None]) - (np.asarray(action) - start)
    flow_loss = np.mean(np.asarray(weight)[:, None] * errors**2)
    noise = np.asarray(jax.random.normal(keys[2], (3, 1)))
    end = np.clip(noise + 0.875, -1, 1)
    distillation = np.mean(np.asarray(weight) * (0.5 * noise - end)[:, 0] ** 2)
    q = np.clip(0.5 * noise, -1, 1)[:, 0]
    np.testing.assert_allclose(metrics["flow_loss"], flow_loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["distillation_loss"], distillation, rtol=1e-5)
    value = np.mean(np.asarray(weight) * q) / np.mean(np.abs(q))
    np.testing.assert_allclose(loss, flow_loss + 3.0 * distillation - value, rtol=1e-5)


def test_actions_are_drawn_in_the_units_of_the_environment():
    fql = algorithm("offline/ff_fql", "env=gymnax/pendulum", "env.rescale_actions=false")
    np.testing.assert_allclose(run(fql.actions.from_unit, jnp.asarray([[0.5]])), [[1.0]])
    np.testing.assert_allclose(fql.actions.to_unit(jnp.asarray([[-2.0]])), [[-1.0]])


def test_actions_without_bounds_are_refused():
    setup = set_up_small("offline/ff_fql")
    with pytest.raises(ConfigError, match="system=offline/ff_fql needs bounded actions: use system=offline/ff_iql"):
        make_algorithm(setup, action_space=Box(-np.inf, np.inf, (1,)))
