"""Feed-forward networks: an input layer, a torso and a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.networks import units
from stoix_like.networks.heads.base import mask_argument
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.torso import MLPTorso
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.accelerate.platform import on_gpu

Kwargs = Mapping[str, Any]


def policy_kwargs(head: nn.Module, observation: Any, head_kwargs: Kwargs | None = None) -> dict[str, Any]:
    """Return the keyword arguments of a policy head: the caller's, and the action mask of the observation."""
    kwargs = dict(head_kwargs or {})
    if "action_mask" in kwargs:
        return kwargs
    return mask_argument(head, getattr(observation, "action_mask", None)) | kwargs


class Network(nn.Module):
    """A module with parameters that may be packed, see `pack_params`."""

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what `__call__`, or another method, returns for variables."""
        variables = unpack(variables)
        if not units.is_recording() or "mutable" in kwargs:
            return super().apply(variables, *args, **kwargs)
        output, found = super().apply(variables, *args, mutable=[units.COLLECTION], **kwargs)
        units.record(variables, found)
        return output


class _FeedForward(Network):
    """Base class of policies and value functions: the layers before their heads."""

    def embed(
        self: Any, observation: Any, input_kwargs: Kwargs | None = None, torso_kwargs: Kwargs | None = None
    ) -> Float[Array, "*batch D"]:
        """Return the embedding of an observation; see `__call__`."""
        x = self.input_layer(observation, **(input_kwargs or {}))
        return units.declare_features(self, self.torso(x, **(torso_kwargs or {})))

    @nn.nowrap
    def embed_for(
        self: Any, heads: Sequence[str], observation: Any, input_kwargs: Kwargs | None, torso_kwargs: Kwargs | None
    ) -> tuple[Float[Array, "*batch D"], AbstractContextManager[None]]:
        """Return the embedding of an observation, and a context in which heads read it; see `fused_heads`."""
        modules = {name: getattr(self, name) for name in heads}
        own_embed = type(self).embed is not _FeedForward.embed
        if not (own_embed or torso_kwargs or self.is_initializing()) and _is_fused(self.torso, modules):
            params = {name: module.variables["params"] for name, module in {"torso": self.torso, **modules}.items()}
            if fused := _fuse([(self.torso, modules, params)], self.input_layer(observation, **(input_kwargs or {}))):
                return fused
        return self.embed(observation, input_kwargs, torso_kwargs), nullcontext()


def _is_fused(torso: Any, heads: Mapping[str, nn.Module]) -> bool:
    """Return whether a network is to be fused, as far as its modules tell."""
    if type(torso) is not MLPTorso or not torso.fused:
        return False
    from stoix_like.networks.fused import can_fuse  # here, because it imports all heads

    return can_fuse(torso, heads.values())


def _fuse(networks: Sequence[Any], x: Any) -> tuple[Array, AbstractContextManager[None]] | None:
    from stoix_like.networks.fused import Part, fused_heads

    return fused_heads([Part(*network) for network in networks], x)


class FeedForwardActor(_FeedForward):
    """A feed-forward policy. The action mask of an observation is passed to the head."""

    action_head: nn.Module  # maps an embedding to a distribution over actions, see `heads.PolicyHead`
    torso: nn.Module  # maps the output of the input layer to an embedding
    input_layer: nn.Module = ArrayInput()  # selects the input from an observation

    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        head_kwargs: Kwargs | None = None,
    ) -> Any:
        """Return the policy.

        Args:
            observation: an observation with any leading axes.
            input_kwargs: keyword arguments of the input layer.
            torso_kwargs: keyword arguments of the torso.
            head_kwargs: keyword arguments of the head; an `action_mask` replaces the observation's.

        Returns:
            The output of the head, such as a distribution over actions.

        Raises:
            ValueError: the observation has an action mask that the head does not take.
        """
        embedding, reading = self.embed_for(["action_head"], observation, input_kwargs, torso_kwargs)
        with reading:
            return self.head(embedding, observation, head_kwargs)

    def head(self, embedding: Float[Array, "*batch D"], observation: Any, head_kwargs: Kwargs | None = None) -> Any:
        """Return the policy for an observation and its embedding; see `__call__`."""
        return self.action_head(embedding, **policy_kwargs(self.action_head, observation, head_kwargs))


class FeedForwardCritic(_FeedForward):
    """A feed-forward value function."""

    critic_head: nn.Module  # maps an embedding to values
    torso: nn.Module  # maps the output of the input layer to an embedding
    input_layer: nn.Module = ArrayInput()  # selects the input from an observation

    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        head_kwargs: Kwargs | None = None,
    ) -> Any:
        """Return the value.

        Args:
            observation: an observation with any leading axes.
            input_kwargs: keyword arguments of the input layer, such as an `action`.
            torso_kwargs: keyword arguments of the torso.
            head_kwargs: keyword arguments of the head.

        Returns:
            The output of the head, such as values `[...]`.
        """
        embedding, reading = self.embed_for(["critic_head"], observation, input_kwargs, torso_kwargs)
        with reading:
            return self.head(embedding, head_kwargs)

    def head(self, embedding: Float[Array, "*batch D"], head_kwargs: Kwargs | None = None) -> Any:
        """Return the value for an embedding; see `__call__`."""
        return self.critic_head(embedding, **(head_kwargs or {}))


def alike(actor: Any, critic: Any) -> bool:
    """Return whether two feed-forward networks have the same multilayer perceptron before their heads."""
    bodies = {(type(network.torso), type(network.input_layer)) for network in (actor, critic)}
    if bodies != {(MLPTorso, ArrayInput)} or units.is_recording():
        return False
    # Without layers, a torso has no parameters.
    return bool(actor.torso.layer_sizes) and _sizes(actor.torso) == _sizes(critic.torso)


def _sizes(torso: MLPTorso) -> tuple[Any, ...]:
    return tuple(torso.layer_sizes), torso.activation, torso.use_layer_norm, torso.activate_final, torso.dtype


def embed_both(
    actor: FeedForwardActor, critic: FeedForwardCritic, actor_params: Any, critic_params: Any, observation: Any
) -> tuple[Sequence[Float[Array, "*batch D"]], AbstractContextManager[None]]:
    """Compute the embeddings of two networks that are `alike`, layer by layer in one product of matrices.

    `observation`: an observation with any leading axes.
    Returns the embeddings, and a context in which heads read them; see `fused_heads`.
    """
    actor_params, critic_params = actor_params["params"], critic_params["params"]
    heads = {"action_head": actor.action_head}, {"critic_head": critic.critic_head}
    if _is_fused(actor.torso, heads[0]) and _is_fused(critic.torso, heads[1]):
        networks = (actor.torso, heads[0], actor_params), (critic.torso, heads[1], critic_params)
        if fused := _fuse(networks, actor.input_layer.apply({}, observation)):
            return [fused[0]] * 2, fused[1]
    torsos = jax.tree.map(lambda *leaves: jnp.stack(leaves), actor_params["torso"], critic_params["torso"])
    embed = jax.vmap(lambda torso: actor.apply({"params": {"torso": torso}}, observation, method="embed"))
    return [*embed(torsos)], nullcontext()


class FeedForwardActorCritic(_FeedForward):
    """A feed-forward policy and value function that share the input layer and the torso.

    The action mask of an observation is passed to the action head.
    """

    action_head: nn.Module  # maps an embedding to a distribution over actions, see `heads.PolicyHead`
    critic_head: nn.Module  # maps an embedding to values
    torso: nn.Module  # maps the output of the input layer to an embedding
    input_layer: nn.Module = ArrayInput()  # selects the input from an observation

    @nn.compact
    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        actor_head_kwargs: Kwargs | None = None,
        critic_head_kwargs: Kwargs | None = None,
    ) -> tuple[Any, Any]:
        """Return policy and value.

        Args:
            observation: an observation with any leading axes.
            input_kwargs: keyword arguments of the input layer.
            torso_kwargs: keyword arguments of the torso.
            actor_head_kwargs: keyword arguments of the action head; an `action_mask` replaces the observation's.
            critic_head_kwargs: keyword arguments of the critic head.

        Returns:
            The outputs of the heads, such as a distribution over actions, and values.

        Raises:
            ValueError: the observation has an action mask that the action head does not take.
        """
        x, reading = self.embed_for(["action_head", "critic_head"], observation, input_kwargs, torso_kwargs)
        with reading:
            policy = self.action_head(x, **policy_kwargs(self.action_head, observation, actor_head_kwargs))
            return policy, self.critic_head(x, **(critic_head_kwargs or {}))


class CompositeNetwork(Network):
    """A chain of modules."""

    layers: Sequence[nn.Module]  # the modules in order; the first receives all inputs

    @nn.compact
    def __call__(self, *network_input: Any) -> Any:
        """Apply the modules in order and return the output of the last."""
        first, *others = self.layers
        x = first(*network_input)
        for layer in others:
            x = layer(x)
        return x


class MultiNetwork(Network):
    """Parallel modules, such as the two critics of twin Q-learning."""

    # The modules; each receives all inputs. A torso or head object that two of them share has a single set of
    # parameters: create one object for each.
    networks: Sequence[nn.Module]

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Return what `__call__` returns; on GPUs, equal modules are one with batched parameters."""
        if not on_gpu() or kwargs or units.is_recording() or len({repr(network) for network in self.networks}) > 1:
            return super().apply(variables, *args, rngs=rngs, **kwargs)
        unpacked, num_networks = unpack(variables), len(self.networks)
        each = [{kind: tree.get(f"networks_{i}") for kind, tree in unpacked.items()} for i in range(num_networks)]
        if len(set(map(jax.tree.structure, each))) > 1:  # They share modules.
            return super().apply(variables, *args, rngs=rngs)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        keys = jax.tree.map(lambda key: jax.random.split(key, num_networks), rngs)
        apply = self.networks[0].apply
        return jax.vmap(lambda variables, rngs: apply(variables, *args, rngs=rngs), out_axes=-1)(stacked, keys)

    @nn.compact
    def __call__(self, *network_input: Any) -> Any:
        """Stack the outputs of the modules along a new last axis, `[..., len(networks)]`."""
        outputs = [network(*network_input) for network in self.networks]
        return jax.tree.map(lambda *parts: jnp.stack(parts, axis=-1), *outputs)
