from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Discrete
from stoix_like.networks.distributions import Categorical, mask_logits
from stoix_like.networks.feed_forward import (
    CompositeNetwork,
    FeedForwardActor,
    FeedForwardActorCritic,
    FeedForwardCritic,
    MultiNetwork,
    alike,
    embed_both,
)
from stoix_like.networks.heads import CategoricalHead, MultivariateNormalDiagHead, PolicyValueHead, ScalarCriticHead
from stoix_like.networks.inputs import ArrayInput, EmbeddingActionInput, EmbeddingActionOnehotInput, FeatureInput
from stoix_like.networks.torso import MLPTorso
from support.compiled import run
from support.platforms import take_accelerator_forms

KEY = jax.random.key(0)
VIEW = jax.device_put(np.random.default_rng(0).normal(size=(2, 3, 5)))
LEGAL = np.broadcast_to([False, True, True, False], (2, 3, 4))
MASK, OPPOSITE = jax.device_put((LEGAL, ~LEGAL))


class Grid(NamedTuple):
    grid: jax.Array
    action_mask: jax.Array


def actor(head, input_layer=None):
    return FeedForwardActor(head, MLPTorso((8,)), input_layer or ArrayInput())


class TestFeedForward:
    def test_actor_passes_action_mask_to_head(self):
        network = actor(CategoricalHead(4), FeatureInput("agent_view"))
        observation = Observation(VIEW, MASK)
        pi, params = jax.jit(network.init_with_output)(KEY, observation)
        np.testing.assert_array_equal(np.asarray(pi.probs)[~LEGAL], 0.0)
        unmasked = run(network.apply, params, Observation(VIEW))
        assert (np.asarray(unmasked.probs) > 0).all()
        # head_kwargs take precedence.
        other = run(network.apply, params, observation, head_kwargs={"action_mask": OPPOSITE})
        np.testing.assert_array_equal(np.asarray(other.probs)[LEGAL], 0.0)

    @pytest.mark.parametrize(
        ("network", "observation"),
        [
            (actor(PolicyValueHead(CategoricalHead(4), ScalarCriticHead())), Observation(VIEW, MASK)),
            (FeedForwardActorCritic(CategoricalHead(4), ScalarCriticHead(), MLPTorso((8,))), Observation(VIEW, MASK)),
            # Any observation may have an action mask.
            (
                FeedForwardActorCritic(CategoricalHead(4), ScalarCriticHead(), MLPTorso((8,)), FeatureInput("grid")),
                Grid(VIEW, MASK),
            ),
        ],
    )
    def test_policies_beside_values_are_masked(self, network, observation):
        pi, value = jax.jit(network.init_with_output)(KEY, observation)[0]
        np.testing.assert_array_equal(np.asarray(pi.probs)[~LEGAL], 0.0)
        assert value.shape == (2, 3)

    def test_heads_for_box_spaces_ignore_action_masks(self):
        observation = Observation(VIEW, MASK)
        for head in (MultivariateNormalDiagHead(2), PolicyValueHead(MultivariateNormalDiagHead(2), ScalarCriticHead())):
            network = FeedForwardActor(head, MLPTorso((8,)))
            jax.eval_shape(network.init, KEY, observation)

    def test_array_input_accepts_arrays_and_observations(self):
        network = actor(CategoricalHead(4), ArrayInput())
        pi, params = jax.jit(network.init_with_output)(KEY, VIEW)
        np.testing.assert_allclose(pi.logits, run(network.apply, params, Observation(VIEW)).logits, rtol=1e-6)

    def test_action_inputs_concatenate_observation_and_action(self):
        continuous = FeedForwardCritic(ScalarCriticHead(), MLPTorso((8,)), EmbeddingActionInput())
        action = {"action": np.ones((2, 3, 2))}
        value, _ = jax.eval_shape(continuous.init_with_output, KEY, Observation(VIEW), input_kwargs=action)
        assert value.shape == (2, 3)
        discrete = jax.jit(EmbeddingActionOnehotInput(3).apply)({}, np.zeros((2, 1)), np.asarray([0, 2]))
        np.testing.assert_array_equal(discrete, [[0, 1, 0, 0], [0, 0, 0, 1]])


class PlainHead(nn.Module):
    """A head that declares nothing and takes no mask."""

    @nn.compact
    def __call__(self, embedding):
        return Categorical(logits=nn.Dense(4)(embedding))


class UndeclaredHead(nn.Module):
    """A head that takes a mask without declaring it."""

    action_spaces = (Discrete,)

    @nn.compact
    def __call__(self, embedding, action_mask=None):
        return Categorical(logits=mask_logits(nn.Dense(4)(embedding), action_mask))


class DeclaredHead(UndeclaredHead):
    """A head that declares that it takes a mask, without inheriting from `PolicyHead`."""

    takes_action_mask = True


class TestDeclaredMasks:
    OBSERVATION = Observation(VIEW, MASK)

    @pytest.mark.parametrize(
        ("make_network", "head"),
        [
            (actor, PlainHead()),
            (actor, UndeclaredHead()),
            (actor, PolicyValueHead(PlainHead(), ScalarCriticHead())),
            (actor, CompositeNetwork((MLPTorso((4,)), CategoricalHead(4)))),
            (lambda head: FeedForwardActorCritic(head, ScalarCriticHead(), MLPTorso((8,))), PlainHead()),
        ],
    )
    def test_undeclared_heads_refuse_action_masks(self, make_network, head):
        network = make_network(head)
        jax.eval_shape(network.init, KEY, Observation(VIEW))
        name = "CompositeNetwork" if isinstance(head, CompositeNetwork) else "PlainHead|UndeclaredHead"
        with pytest.raises(ValueError, match=rf"^action_head=({name}) .* `takes_action_mask = True`"):
            jax.eval_shape(network.init, KEY, self.OBSERVATION)

    def test_declared_heads_receive_action_masks(self):
        network = actor(DeclaredHead())
        pi = jax.jit(network.init_with_output)(KEY, self.OBSERVATION)[0]
        np.testing.assert_array_equal(np.asarray(pi.probs)[~LEGAL], 0.0)

    def test_head_kwargs_may_pass_the_mask_to_undeclared_heads(self):
        network = actor(UndeclaredHead())
        params = jax.jit(network.init)(KEY, Observation(VIEW))
        pi = run(network.apply, params, self.OBSERVATION, head_kwargs={"action_mask": OPPOSITE})
        np.testing.assert_array_equal(np.asarray(pi.probs)[LEGAL], 0.0)


class TestComposition:
    def test_composite_network_applies_layers_in_order(self):
        network = CompositeNetwork((EmbeddingActionInput(), MLPTorso((4,)), ScalarCriticHead()))
        value, _ = jax.eval_shape(network.init_with_output, KEY, VIEW, np.ones((2, 3, 2)))
        assert value.shape == (2, 3)

    def test_multi_network_stacks_outputs(self):
        network = MultiNetwork([FeedForwardCritic(ScalarCriticHead(), MLPTorso((4,))) for _ in range(2)])
        values = np.asarray(jax.jit(network.init_with_output)(KEY, VIEW)[0])
        assert values.shape == (2, 3, 2)
        assert (values[..., 0] != values[..., 1]).all()

    def test_networks_that_share_modules_are_applied_one_by_one_on_gpus(self, monkeypatch):
        torso = MLPTorso((4,))
        network = MultiNetwork([FeedForwardCritic(ScalarCriticHead(), torso) for _ in range(2)])
        params = jax.jit(network.init)(KEY, VIEW)
        expected = jax.jit(network.apply)(params, VIEW)
        take_accelerator_forms(monkeypatch)
        found = jax.jit(network.apply)(params, VIEW)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("sizes", "other", "expected"), [((8,), (8,), True), ((8,), (4,), False), ((), (), False)])
def test_torsos_of_the_same_layers_are_evaluated_together(sizes, other, expected):
    actor = FeedForwardActor(CategoricalHead(2), MLPTorso(sizes))
    critic = FeedForwardCritic(ScalarCriticHead(), MLPTorso(other))
    assert alike(actor, critic) == expected
    if expected:

        def results(x):
            params = [network.init(KEY, x) for network in (actor, critic)]
            each = [network.apply(p, x, method="embed") for network, p in zip((actor, critic), params, strict=True)]
            return embed_both(actor, critic, *params, x)[0], each

        np.testing.assert_allclose(*map(np.stack, jax.jit(results)(np.ones((3, 5)))), rtol=1e-6)
