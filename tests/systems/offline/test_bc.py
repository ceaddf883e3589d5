from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, SystemSpec
from stoix_like.config import parse_config
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.networks.distributions import Categorical, Deterministic, Independent
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.networks.requirements import DETERMINISTIC_POLICY, STOCHASTIC_POLICY
from stoix_like.systems.offline.anakin import bc
from stoix_like.systems.parts.teacher import Teacher
from support.composed import compose_config
from support.replayed import NUM_ENVS, SIX, first, steps, view


@pytest.fixture
def clone():
    """A clone whose teacher always takes action 2."""
    sizes = ["system.rollout_length=6", "system.epochs=2", "system.actor_lr=1e-2"]
    config = parse_config(compose_config(["system=offline/bc", "system.teacher=runs/teacher", *sizes]))
    spaces = Box(0.0, 200.0, (1,)), Discrete(3)
    networks = build_networks(config.network, spaces[1], spaces[0])
    logits = jnp.asarray([[0.0, 0.0, 9.0]])
    teacher = Teacher(lambda params, observation: Categorical(params + 0.0 * observation.agent_view), logits, spaces[1])
    spec = SystemSpec(*spaces, networks, Axes(), 4, NUM_ENVS, 1, True, rollout_length=6, teacher=teacher)
    return bc.make_algorithm(config.system, spec)


def test_the_loss_is_the_negative_log_likelihood_or_a_squared_error(clone):
    stochastic = Categorical(jnp.log(jnp.asarray([[0.75, 0.25], [0.5, 0.5]])))
    loss, _ = with_head(clone, STOCHASTIC_POLICY).imitation_loss(stochastic, jnp.asarray([1, 0]))
    np.testing.assert_allclose(loss, (np.log(4) + np.log(2)) / 2, rtol=1e-6)
    deterministic = Independent(Deterministic(jnp.asarray([[1.0], [3.0]])), 1)
    loss, _ = with_head(clone, DETERMINISTIC_POLICY).imitation_loss(deterministic, jnp.asarray([[0.0], [1.0]]))
    np.testing.assert_allclose(loss, (1.0 + 4.0) / 2)


def with_head(clone, outputs):
    return replace(clone, network=SimpleNamespace(action_head=SimpleNamespace(outputs=outputs)))


@pytest.mark.slow
def test_a_teacher_labels_what_the_clone_visits(clone):
    agent = clone.observe(clone.init(jax.random.key(0), first(view(0.0))), steps(*SIX))
    assert np.all(np.asarray(clone.draw(agent.local, jax.random.key(1)).action) == 2)
    update = jax.jit(clone.update)
    losses = []
    for number in range(60):
        agent, metrics = update(agent, None, jax.random.key(number))
        losses.append(float(metrics["imitation_loss"]))
    assert losses[-1] < 0.1 < losses[0]
