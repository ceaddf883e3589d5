"""Whole networks: an input layer, a torso and a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stoix_like.base_types import Observation, ObservationGlobalState
from stoix_like.networks.heads import mask_argument
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.recurrent import LinearCell, linear_recurrence
from stoix_like.networks.utils import instantiate, parse_rnn_cell, to_plain

Kwargs = Mapping[str, Any]


def _policy_kwargs(head: nn.Module, observation: Any, head_kwargs: Kwargs | None = None) -> dict[str, Any]:
    """Return the keyword arguments of a policy head: the caller's, and the action mask of the observation."""
    kwargs = dict(head_kwargs or {})
    if "action_mask" in kwargs or not isinstance(observation, Observation | ObservationGlobalState):
        return kwargs
    return mask_argument(head, observation.action_mask) | kwargs


class _Network(nn.Module):
    """A module whose `apply` returns what `__call__` returns; flax's type also covers mutated collections."""

    if TYPE_CHECKING:

        def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any: ...


class FeedForwardActor(_Network):
    """A feed-forward policy.

    The action mask of an observation is passed to the head.

    Attributes:
        action_head: maps an embedding to a distribution over actions, see `heads.PolicyHead`.
        torso: maps the output of the input layer to an embedding.
        input_layer: selects the input from an observation.
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
        """Return the policy.

        Args:
            observation: an observation with any leading axes.
            input_kwargs: keyword arguments of the input layer.
            torso_kwargs: keyword arguments of the torso.
            head_kwargs: keyword arguments of the head; an `action_mask` replaces that of the observation.

        Returns:
            The output of the head, such as a distribution over actions.

        Raises:
            ValueError: the observation has an action mask that the head does not take.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        return self.action_head(x, **_policy_kwargs(self.action_head, observation, head_kwargs))


class FeedForwardCritic(_Network):
    """A feed-forward value function.

    Attributes:
        critic_head: maps an embedding to values.
        torso: maps the output of the input layer to an embedding.
        input_layer: selects the input from an observation.
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
        """Return the value.

        Args:
            observation: an observation with any leading axes.
            input_kwargs: keyword arguments of the input layer, such as an `action`.
            torso_kwargs: keyword arguments of the torso.
            head_kwargs: keyword arguments of the head.

        Returns:
            The output of the head, such as values `[...]`.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        return self.critic_head(x, **(head_kwargs or {}))


class FeedForwardActorCritic(_Network):
    """A feed-forward policy and value function that share the input layer and the torso.

    The action mask of an observation is passed to the action head.

    Attributes:
        action_head: maps an embedding to a distribution over actions, see `heads.PolicyHead`.
        critic_head: maps an embedding to values.
        torso: maps the output of the input layer to an embedding.
        input_layer: selects the input from an observation.
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
        """Return policy and value.

        Args:
            observation: an observation with any leading axes.
            input_kwargs: keyword arguments of the input layer.
            torso_kwargs: keyword arguments of the torso.
            actor_head_kwargs: keyword arguments of the action head; an `action_mask` replaces that of the observation.
            critic_head_kwargs: keyword arguments of the critic head.

        Returns:
            The outputs of the heads, such as a distribution over actions, and values.

        Raises:
            ValueError: the observation has an action mask that the action head does not take.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        policy = self.action_head(x, **_policy_kwargs(self.action_head, observation, actor_head_kwargs))
        return policy, self.critic_head(x, **(critic_head_kwargs or {}))


class CompositeNetwork(_Network):
    """A chain of modules.

    Attributes:
        layers: the modules in order; the first receives all inputs.
    """

    layers: Sequence[nn.Module]

    @nn.compact
    def __call__(self, *network_input: Any) -> Any:
        """Apply the modules in order and return the output of the last."""
        first, *others = self.layers
        x = first(*network_input)
        for layer in others:
            x = layer(x)
        return x


class MultiNetwork(_Network):
    """Parallel modules, such as the two critics of twin Q-learning.

    Attributes:
        networks: the modules; each receives all inputs. A torso or head object that two of them share has a single set
            of parameters: create one object for each.
    """

    networks: Sequence[nn.Module]

    @nn.compact
    def __call__(self, *network_input: Any) -> Any:
        """Stack the outputs of the modules along a new last axis, `[..., len(networks)]`."""
        outputs = [network(*network_input) for network in self.networks]
        return jax.tree.map(lambda *parts: jnp.stack(parts, axis=-1), *outputs)


class ScannedRNN(nn.Module):
    """A recurrent cell scanned over time, the first axis; the state is reset at episode starts.

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
        """Process sequences.

        Args:
            rnn_state: `[..., H]`, the state before the first step.
            x: inputs `[T, ..., D]`, and `[T, ...]`, True where an input is the first of its episode and the state is
                reset before it.

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
        """Return the state at the start of an episode.

        Args:
            batch_size: number of sequences, or the shape of their batch.

        Returns:
            The arrays of the cell's state, `[batch_size, H]`.
        """
        batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
        return self._cell(parent=None).initialize_carry(jax.random.key(0), (*batch, self.hidden_state_dim))


class _Recurrent:
    """The part of a recurrent network before the head.

    The networks define its fields: inherited fields would come before the head in the constructor.
    """

    post_torso: Any
    hidden_state_dim: Any
    cell_type: Any
    pre_torso: Any
    input_layer: Any

    def _embed(self, state: Any, observation_done: tuple[Any, Array]) -> tuple[Any, Array]:
        """Return the state after the last step and the embedding of each step; call it in a compact method."""
        observation, done = observation_done
        embedding = self.pre_torso(self.input_layer(observation))
        state, embedding = ScannedRNN(self.hidden_state_dim, self.cell_type)(state, (embedding, done))
        return state, self.post_torso(embedding)


class RecurrentActor(_Recurrent, nn.Module):
    """A recurrent policy.

    The action mask of an observation is passed to the head.

    Attributes:
        action_head: maps an embedding to a distribution over actions, see `heads.PolicyHead`.
        post_torso: maps the output of the cell to an embedding.
        hidden_state_dim: width of the recurrent state, in units.
        cell_type: name of the cell, see `parse_rnn_cell`.
        pre_torso: maps the output of the input layer to the input of the cell.
        input_layer: selects the input from an observation.
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
        """Process sequences of observations.

        Args:
            policy_hidden_state: `[..., H]`, the state before the first step.
            observation_done: observations `[T, ...]`, and `[T, ...]`, True where an observation is the first of its
                episode.

        Returns:
            The state after the last step, and the output of the head for each step.

        Raises:
            ValueError: the observations have an action mask that the head does not take.
        """
        state, x = self._embed(policy_hidden_state, observation_done)
        return state, self.action_head(x, **_policy_kwargs(self.action_head, observation_done[0]))


class RecurrentCritic(_Recurrent, nn.Module):
    """A recurrent value function.

    Attributes:
        critic_head: maps an embedding to values.
        post_torso: maps the output of the cell to an embedding.
        hidden_state_dim: width of the recurrent state, in units.
        cell_type: name of the cell, see `parse_rnn_cell`.
        pre_torso: maps the output of the input layer to the input of the cell.
        input_layer: selects the input from an observation.
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
        """Process sequences of observations.

        Args:
            critic_hidden_state: `[..., H]`, the state before the first step.
            observation_done: observations `[T, ...]`, and `[T, ...]`, True where an observation is the first of its
                episode.

        Returns:
            The state after the last step, and the output of the head for each step.
        """
        state, x = self._embed(critic_hidden_state, observation_done)
        return state, self.critic_head(x)


def chained_torsos(torso_cfgs: Sequence[Any], **kwargs: Any) -> CompositeNetwork:
    """Build a chain of torsos.

    Args:
        torso_cfgs: the torsos in order: modules, or configurations with a `_target_` (mappings or DictConfigs).
        **kwargs: arguments added to every configuration.

    Returns:
        A network that applies the torsos in order.

    Raises:
        ConfigError: a configuration cannot be built.
    """

    def build(torso: Any, key: str) -> nn.Module:
        if isinstance(torso, nn.Module):
            return torso
        module: nn.Module = instantiate({**to_plain(torso), **kwargs}, key=key)
        return module

    return CompositeNetwork(tuple(build(torso, f"torso_cfgs[{i}]") for i, torso in enumerate(torso_cfgs)))
