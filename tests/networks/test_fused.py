"""Tests of networks in one kernel; `fused="interpret"` runs it as operations of jax."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.networks import heads
from stoix_like.networks.feed_forward import FeedForwardActor, FeedForwardActorCritic, FeedForwardCritic, embed_both
from stoix_like.networks.fused import _ONE_DENSE
from stoix_like.networks.torso import MLPTorso
from stoix_like.networks.units import recording
from support.selections import first

KEY = jax.random.key(0)
BOX = {"action_dim": 2, "minimum": -1.0, "maximum": 1.0}
HEADS = [
    heads.CategoricalHead(3, uniform_mix=0.1),
    heads.BetaDistributionHead(**BOX),
    heads.BoundedNormalHead(**BOX),
    heads.DeterministicHead(**BOX),
    heads.DiscreteQNetworkHead(3, epsilon=0.25),
    heads.MultiDiscreteHead(2, (2, 3)),
    heads.MultivariateNormalDiagHead(2),
    heads.NormalAffineTanhDistributionHead(**BOX, state_dependent_scale=False),
]
VIEW = Observation(jax.random.normal(KEY, (5, 4)), None, jnp.zeros(5, jnp.int32))


def fuse(network):
    return network.clone(torso=network.torso.clone(fused="interpret"))


def check_alike(network, read):
    """Check that outputs and gradients with the kernel are close to those without, and that the kernel is used."""
    params = jax.jit(network.init)(KEY, VIEW)

    def loss(params, network):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(read(network.apply(params, VIEW))))

    fused, plain = (jax.jit(partial(jax.value_and_grad(loss), network=one))(params) for one in (fuse(network), network))
    for found, expected in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert "pallas_call" in str(jax.make_jaxpr(lambda params: read(fuse(network).apply(params, VIEW)))(params))


@pytest.mark.parametrize("head", first(1, HEADS))
def test_policies_with_each_head_are_those_of_the_layers(head):
    # Not a number wherever a head read the embedding otherwise than by its dense layer.
    check_alike(FeedForwardActor(head, MLPTorso((32,), "tanh")), lambda pi: pi.log_prob(pi.mode()))


def test_every_head_with_one_dense_layer_is_tested():
    assert {type(head) for head in HEADS} | {heads.ScalarCriticHead} == _ONE_DENSE


def test_values_and_shared_torsos_are_those_of_the_layers():
    torso = MLPTorso((64, 64), "relu", use_layer_norm=True)
    check_alike(FeedForwardCritic(heads.ScalarCriticHead(), torso), lambda value: value)
    shared = FeedForwardActorCritic(heads.CategoricalHead(3), heads.ScalarCriticHead(), torso)
    check_alike(shared, lambda outputs: (outputs[0].logits, outputs[1]))


def test_actor_and_critic_of_the_same_layers_are_one_kernel():
    torso = MLPTorso((64, 64), "tanh", fused="interpret")
    actor, critic = (
        FeedForwardActor(heads.CategoricalHead(3), torso),
        FeedForwardCritic(heads.ScalarCriticHead(), torso),
    )
    params = [network.init(KEY, VIEW) for network in (actor, critic)]

    def both(params):
        (x, y), reading = embed_both(actor, critic, *params, VIEW)
        with reading:
            pi = actor.apply(params[0], x, VIEW, method="head")
            return pi.logits, critic.apply(params[1], y, method="head")

    plain = [
        network.clone(torso=torso.clone(fused=False)).apply(p, VIEW)
        for network, p in zip((actor, critic), params, strict=True)
    ]
    for found, expected in zip(both(params), (plain[0].logits, plain[1]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert str(jax.make_jaxpr(both)(params)).count("pallas_call") == 1


@pytest.mark.parametrize(
    ("torso", "head"),
    [
        (MLPTorso((8,), "gelu"), heads.CategoricalHead(3)),
        (MLPTorso((8,), activate_final=False), heads.CategoricalHead(3)),
        (MLPTorso((8,)), heads.StateDependentNoiseHead(2)),
        (MLPTorso((8,)), heads.NoisyDiscreteQNetworkHead(3)),
        (MLPTorso((8,), dropout_rate=0.5), heads.CategoricalHead(3)),
        (MLPTorso(()), heads.CategoricalHead(3)),
    ],
)
def test_what_no_kernel_fits_is_computed_layer_by_layer(torso, head):
    network = FeedForwardActor(head, dataclasses.replace(torso, fused="interpret"))
    params = jax.jit(network.init)(KEY, VIEW)
    assert "pallas_call" not in str(jax.make_jaxpr(lambda params: network.apply(params, VIEW).mode())(params))


def test_a_custom_embedding_is_not_fused():
    class Constant(FeedForwardActor):
        def embed(self, observation, input_kwargs=None, torso_kwargs=None):
            return 0.0 * super().embed(observation, input_kwargs, torso_kwargs) + 1.0

    network = Constant(heads.CategoricalHead(3), MLPTorso((8,), fused="interpret"))
    pi = network.apply(network.init(KEY, VIEW), VIEW)
    np.testing.assert_array_equal(pi.logits[0], pi.logits[1])


def test_units_are_recorded_and_other_platforms_compute_layer_by_layer():
    network = FeedForwardActor(heads.CategoricalHead(3), MLPTorso((8,), fused="interpret"))
    params = jax.jit(network.init)(KEY, VIEW)
    with recording() as records:
        network.apply(params, VIEW)
    assert records[0].units[("torso", "Dense_0_units")].shape == (5, 8)
    wanted = network.clone(torso=network.torso.clone(fused=True))
    assert "pallas_call" not in str(jax.make_jaxpr(lambda params: wanted.apply(params, VIEW).mode())(params))
