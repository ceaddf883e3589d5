"""Tests of the world model: its losses, its resets, and the latents that are stored."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.config import parse_config
from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, MultiDiscrete
from stoix_like.networks.distributions import DiscreteValuedTfpDistribution
from stoix_like.run.set_up.setup import set_up
from stoix_like.systems.dreamer.world_model import Observed, WorldModel, make_world_model, no_action
from stoix_like.systems.parts.action_vectors import action_vector
from stoix_like.systems.parts.critic_outputs import two_hot_loss
from stoix_like.utils.replay import Stream, StreamBatch
from support.composed import compose_config
from support.tiny_dreamer import TINY

OBSERVATION, STARTS = Observation(jnp.ones((2, 4))), jnp.array([False, True])


class Features(NamedTuple):
    """Latents that consist of given features."""

    features: jax.Array


class Given(WorldModel):
    """A world model whose latents and reconstructions are given: four classes with probabilities 1/4."""

    def observe(self, params, latent, observation, action, is_first, key):
        logits = jnp.zeros((*is_first.shape, 1, 4))
        return Observed(Features(jnp.zeros((*is_first.shape, 1))), logits, logits)

    def reconstruction_loss(self, params, latent, observation):
        return jnp.full(latent.features.shape[:-1], 8.0)

    def restored(self, stored):
        return stored


def test_the_loss_is_the_weighted_sum_of_its_parts_and_a_truncated_episode_continues():
    """Four entries, of which the second is the end of a truncated episode, and the last that of a terminated one.

    The continue head says 3/4 everywhere: the binary cross-entropies are ln 4/3 three times, and ln 4 once. The reward
    head gives its atoms 0 and 2 half of the probability each: ln 2 for every reward between them. Both divergences are
    zero, and cost the free nats.
    """
    coefs = {"reconstruction": 1.0, "reward": 2.0, "continue": 4.0, "dynamics": 8.0, "representation": 16.0}
    config = SimpleNamespace(free_nats=0.5, **{f"{name}_coef": value for name, value in coefs.items()})
    reward = SimpleNamespace(
        logits=jnp.full((4, 1, 2), -math.log(2.0)), values=jnp.broadcast_to(jnp.array([0.0, 2.0]), (4, 1, 2))
    )
    model = Given(
        config,
        networks=None,
        reward_network=SimpleNamespace(apply=lambda params, features: reward),
        continue_network=SimpleNamespace(apply=lambda params, features: jnp.full((4, 1), math.log(3.0))),
        observation_space=None,
        action_space=None,
    )
    flags = [jnp.array(flags, bool)[:, None] for flags in ([1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 1])]
    entries = Stream(
        Observation(jnp.zeros((4, 1, 1))), jnp.zeros((4, 1)), jnp.array([[0.0], [1.0], [0.0], [2.0]]), *flags
    )
    batch = StreamBatch(entries, latent=(), indices=())
    loss, _, metrics = model.loss({"reward": None, "continues": None}, batch, jax.random.key(0))
    expected = {
        "reconstruction": 8.0,
        "reward": math.log(2.0),
        "continue": (3 * math.log(4 / 3) + math.log(4)) / 4,
        "dynamics": 0.5,
        "representation": 0.5,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[f"{name}_loss"], value, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(loss, sum(coefs[name] * value for name, value in expected.items()), rtol=1e-6)


@pytest.fixture(scope="module")
def tiny():
    """A tiny model of CartPole, with random parameters."""
    setup = set_up(parse_config(compose_config([*TINY, "env=gymnax/cartpole"])))
    model = make_world_model(setup.config.system.model, setup.spec)
    shapes, draw = jax.eval_shape(model.init, jax.random.key(1), OBSERVATION), np.random.default_rng(1)
    return model, jax.tree.map(lambda leaf: 0.3 * draw.standard_normal(leaf.shape, np.float32), shapes)


@pytest.mark.slow
def test_episodes_start_without_a_memory_of_others(tiny):
    """Two pasts with equal observations; the episode of the first row continues, that of the second one starts."""
    model, params = tiny
    step = jax.jit(lambda latent, action: model.step(params, latent, action, OBSERVATION, STARTS, None).deterministic)
    zeros = model.initial((2,))
    first, second = step(zeros, jnp.array([0, 0])), step(jax.tree.map(lambda x: x + 1.0, zeros), jnp.array([1, 1]))
    assert float(jnp.abs(first[0] - second[0]).max()) > 1e-3
    np.testing.assert_array_equal(first[1], second[1])


def test_latents_come_back_from_the_replay_buffer(tiny):
    model, _ = tiny
    drawn = jax.random.randint(jax.random.key(0), (3, 4), 0, 4)
    latent = model.initial((3,))._replace(stochastic=jax.nn.one_hot(drawn, 4))
    jax.tree.map(np.testing.assert_array_equal, model.restored(model.stored(latent)), latent)


# By hand, two atoms 0 and 2 with logits (0, ln 3): log-probabilities ln 1/4 and ln 3/4. The target 1 has (1/2, 1/2),
# and the target 2 has (0, 1): -(ln 1/4 + ln 3/4) / 2 - 3 ln 3/4.
def test_losses_of_several_targets_are_added_with_their_weights():
    distribution = DiscreteValuedTfpDistribution(jnp.array([0.0, 2.0]), jnp.array([[0.0, math.log(3.0)]]))
    loss = two_hot_loss(distribution, jnp.ones(1), jnp.full(1, 2.0), weights=(1.0, 3.0))
    np.testing.assert_allclose(loss, -(math.log(0.25) + math.log(0.75)) / 2 - 3 * math.log(0.75), rtol=1e-6)


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3),
        MultiDiscrete((2, 3)),
        Box(1.0, 4.0, (2,)),
        Box(-np.inf, np.inf, (2,)),
        Mixed(Dict({"force": Box(0.0, 1.0, (1,)), "gear": Discrete(3)})),
    ],
    ids=lambda space: type(space).__name__,
)
def test_no_action_is_a_vector_of_zeros(space):
    action, like = no_action(space), jax.eval_shape(space.sample, jax.random.key(0))
    assert (action.shape, action.dtype) == (like.shape, like.dtype)
    assert not action_vector(space, action).any()
