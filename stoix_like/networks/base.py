"""Whole networks: an input layer, a torso and a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from omegaconf import OmegaConf

from stoix_like.base_types import Observation, ObservationGlobalState
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.recurrent import LinearCell, linear_recurrence
from stoix_like.networks.utils import instantiate, mask_argument, parse_rnn_cell

Kwargs = Mapping[str, Any]


def _mask_of(observation: Any, head: nn.Module) -> dict[str, Any]:
    """The action mask of an observation as an argument for a head; nothing where there is none or it is not taken."""
    if isinstance(observation, Observation | ObservationGlobalState) and observation.action_mask is not None:
        return mask_argument(head, observation.action_mask)
    return {}


class FeedForwardActor(nn.Module):
    """A policy without memory.

    Where an observation has an action mask, a head that takes an `action_mask` gets it.

    Attributes:
        action_head: from an embedding to a distribution over actions.
        torso: from what the input layer read to an embedding.
        input_layer: what of an observation the network reads.
    """

    action_head: nn.Module
    torso: nn.Module
    input_layer: nn.Module = ArrayInput()

    @nn.compact
    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        head_kwargs: Kwargs | None = None,
    ) -> Any:
        """Give the policy.

        Args:
            observation: with any leading axes.
            input_kwargs: further arguments for the input layer.
            torso_kwargs: further arguments for the torso.
            head_kwargs: further arguments for the head.

        Returns:
            What the head makes: a distribution over actions.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        return self.action_head(x, **_mask_of(observation, self.action_head) | dict(head_kwargs or {}))


class FeedForwardCritic(nn.Module):
    """A value function without memory.

    Attributes:
        critic_head: from an embedding to values.
        torso: from what the input layer read to an embedding.
        input_layer: what of an observation the network reads.
    """

    critic_head: nn.Module
    torso: nn.Module
    input_layer: nn.Module = ArrayInput()

    @nn.compact
    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        head_kwargs: Kwargs | None = None,
    ) -> Any:
        """Give the value.

        Args:
            observation: with any leading axes.
            input_kwargs: further arguments for the input layer, such as an `action`.
            torso_kwargs: further arguments for the torso.
            head_kwargs: further arguments for the head.

        Returns:
            What the head makes, such as values `[...]`.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        return self.critic_head(x, **(head_kwargs or {}))


class FeedForwardActorCritic(nn.Module):
    """A policy and a value function without memory that share all but their heads.

    Attributes:
        action_head: from an embedding to a distribution over actions.
        critic_head: from an embedding to values.
        torso: from what the input layer read to an embedding.
        input_layer: what of an observation the network reads.
    """

    action_head: nn.Module
    critic_head: nn.Module
    torso: nn.Module
    input_layer: nn.Module = ArrayInput()

    @nn.compact
    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        actor_head_kwargs: Kwargs | None = None,
        critic_head_kwargs: Kwargs | None = None,
    ) -> tuple[Any, Any]:
        """Give policy and value.

        Args:
            observation: with any leading axes.
            input_kwargs: further arguments for the input layer.
            torso_kwargs: further arguments for the torso.
            actor_head_kwargs: further arguments for the action head.
            critic_head_kwargs: further arguments for the critic head.

        Returns:
            What the heads make: a distribution over actions, and values.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        policy = self.action_head(x, **_mask_of(observation, self.action_head) | dict(actor_head_kwargs or {}))
        return policy, self.critic_head(x, **(critic_head_kwargs or {}))


class CompositeNetwork(nn.Module):
    """Modules one after the other.

    Attributes:
        layers: the modules; the first takes all inputs.
    """

    layers: Sequence[nn.Module]

    @nn.compact
    def __call__(self, *network_input: Any) -> Any:
        """Pass the inputs through; returns what the last module makes."""
        first, *others = self.layers
        x = first(*network_input)
        for layer in others:
            x = layer(x)
        return x


class MultiNetwork(nn.Module):
    """Modules side by side, such as the two critics of twin Q-learning.

    Attributes:
        networks: the modules; each takes all inputs. A torso or head object that two of them hold is one and the
            same, with one set of parameters: make each its own.
    """

    networks: Sequence[nn.Module]

    @nn.compact
    def __call__(self, *network_input: Any) -> Any:
        """Stack what the modules make along a new last axis, `[..., len(networks)]`."""
        outputs = [network(*network_input) for network in self.networks]
        return jax.tree.map(lambda *parts: jnp.stack(parts, axis=-1), *outputs)


class ScannedRNN(nn.Module):
    """A recurrent cell along the first axis, time, that starts afresh where an episode does.

    Attributes:
        hidden_state_dim: width of the state and of the output, in units.
        cell_type: name of the cell, see `parse_rnn_cell`.
    """

    hidden_state_dim: int
    cell_type: str

    @nn.compact
    def __call__(
        self, rnn_state: Any, x: tuple[Float[Array, "T *batch D"], Bool[Array, "T *batch"]]
    ) -> tuple[Any, Float[Array, "T *batch H"]]:
        """Read sequences.

        Args:
            rnn_state: `[..., H]`, the state before the first step.
            x: inputs `[T, ..., D]`, and `[T, ...]`, True where an input is the first of its episode: there the
                state is reset before the input is read.

        Returns:
            The state after the last step, and the outputs `[T, ..., H]`.
        """
        inputs, resets = x
        cell = self._cell()
        if isinstance(cell, LinearCell):
            decay, terms = cell.terms(inputs)
            states = linear_recurrence(jnp.where(resets[..., None], 0.0, decay), terms, rnn_state)
            return states[-1], cell.read(states, inputs)
        fresh = self.initialize_carry(resets.shape[1:])

        def step(cell: nn.Module, state: Any, x: tuple[Array, Array]) -> tuple[Any, Array]:
            input_t, reset_t = x
            state = jax.tree.map(lambda new, old: jnp.where(reset_t[..., None], new, old), fresh, state)
            return cell(state, input_t)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        return scan(cell, rnn_state, (inputs, resets))

    def _cell(self, **kwargs: Any) -> nn.Module:
        return parse_rnn_cell(self.cell_type)(features=self.hidden_state_dim, **kwargs)

    @nn.nowrap
    def initialize_carry(self, batch_size: int | Sequence[int]) -> Any:
        """The state at the start of an episode.

        Args:
            batch_size: number of sequences, or the shape of their batch.

        Returns:
            `[batch_size, H]`, as many arrays as the cell has.
        """
        batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
        return self._cell(parent=None).initialize_carry(jax.random.key(0), (*batch, self.hidden_state_dim))


class _Recurrent:
    """All but the head of a recurrent network.

    Its fields stand in the networks: inherited ones would come before the head in the order of their arguments.
    """

    post_torso: Any
    hidden_state_dim: Any
    cell_type: Any
    pre_torso: Any
    input_layer: Any

    def _embed(self, state: Any, observation_done: tuple[Any, Array]) -> tuple[Any, Array]:
        """The state after the last step and an embedding of each; called within a compact method."""
        observation, done = observation_done
        embedding = self.pre_torso(self.input_layer(observation))
        state, embedding = ScannedRNN(self.hidden_state_dim, self.cell_type)(state, (embedding, done))
        return state, self.post_torso(embedding)


class RecurrentActor(_Recurrent, nn.Module):
    """A policy with memory.

    Where an observation has an action mask, a head that takes an `action_mask` gets it.

    Attributes:
        action_head: from an embedding to a distribution over actions.
        post_torso: from the output of the recurrence to an embedding.
        hidden_state_dim: width of the recurrence, in units.
        cell_type: name of the cell, see `parse_rnn_cell`.
        pre_torso: from what the input layer read to the input of the recurrence.
        input_layer: what of an observation the network reads.
    """

    action_head: nn.Module
    post_torso: nn.Module
    hidden_state_dim: int
    cell_type: str
    pre_torso: nn.Module
    input_layer: nn.Module = ArrayInput()

    @nn.compact
    def __call__(
        self, policy_hidden_state: Any, observation_done: tuple[Any, Bool[Array, "T *batch"]]
    ) -> tuple[Any, Any]:
        """Read sequences of observations.

        Args:
            policy_hidden_state: `[..., H]`, the state before the first step.
            observation_done: observations `[T, ...]`, and `[T, ...]`, True where one is the first of its episode.

        Returns:
            The state after the last step, and what the head makes for each.
        """
        state, x = self._embed(policy_hidden_state, observation_done)
        return state, self.action_head(x, **_mask_of(observation_done[0], self.action_head))


class RecurrentCritic(_Recurrent, nn.Module):
    """A value function with memory.

    Attributes:
        critic_head: from an embedding to values.
        post_torso: from the output of the recurrence to an embedding.
        hidden_state_dim: width of the recurrence, in units.
        cell_type: name of the cell, see `parse_rnn_cell`.
        pre_torso: from what the input layer read to the input of the recurrence.
        input_layer: what of an observation the network reads.
    """

    critic_head: nn.Module
    post_torso: nn.Module
    hidden_state_dim: int
    cell_type: str
    pre_torso: nn.Module
    input_layer: nn.Module = ArrayInput()

    @nn.compact
    def __call__(
        self, critic_hidden_state: Any, observation_done: tuple[Any, Bool[Array, "T *batch"]]
    ) -> tuple[Any, Any]:
        """Read sequences of observations.

        Args:
            critic_hidden_state: `[..., H]`, the state before the first step.
            observation_done: observations `[T, ...]`, and `[T, ...]`, True where one is the first of its episode.

        Returns:
            The state after the last step, and what the head makes for each.
        """
        state, x = self._embed(critic_hidden_state, observation_done)
        return state, self.critic_head(x)


def chained_torsos(torso_cfgs: Sequence[Any], **kwargs: Any) -> CompositeNetwork:
    """Torsos one after the other, as one.

    Args:
        torso_cfgs: modules, or configs of modules with a `_target_`: mappings, or a list of OmegaConf's.
        **kwargs: further arguments of every config.

    Returns:
        A network that applies them in this order.

    Raises:
        ConfigError: for a config that describes no module.
    """

    def made(torso: Any, key: str) -> nn.Module:
        if isinstance(torso, nn.Module):
            return torso
        # With its lists: a copy of the mapping alone would keep those of OmegaConf, which no module can hash.
        plain: Any = OmegaConf.to_container(torso, resolve=True) if OmegaConf.is_config(torso) else torso
        module: nn.Module = instantiate({**plain, **kwargs}, key=key)
        return module

    return CompositeNetwork(tuple(made(torso, f"torso_cfgs[{i}]") for i, torso in enumerate(torso_cfgs)))
