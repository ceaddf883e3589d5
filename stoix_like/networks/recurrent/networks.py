"""Recurrent networks: an input layer, a torso, cells, another torso and a head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stoix_like.networks import units
from stoix_like.networks.feed_forward import FeedForwardCritic, Kwargs, Network, policy_kwargs
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.recurrent.layer import ScannedRNN


class _Recurrent:
    """The parts that recurrent networks share.

    The networks define its fields: inherited fields would come before the head in the constructor.
    """

    post_torso: Any
    hidden_state_dim: Any
    cell_type: Any
    pre_torso: Any
    input_layer: Any
    num_layers: Any
    dtype: Any
    cell_kwargs: Any

    def setup(self) -> None:
        self.rnn = self._make_rnn()

    def __call__(
        self, state: Any, observation_done: tuple[Any, Bool[Array, "T *batch"]], head_kwargs: Kwargs | None = None
    ) -> tuple[Any, Any]:
        """Process sequences of observations.

        `state`: `[..., H]`, before the first step.
        `observation_done`: observations `[T, ...]`, and `[T, ...]`, True where one is the first of its episode.
        Returns the state after the last step, and the output of the head for each step.
        """
        states, output = self.unroll(state, observation_done, head_kwargs, every=len(observation_done[1]))
        return jax.tree.map(lambda states: states[-1], states), output

    def unroll(
        self,
        state: Any,
        observation_done: tuple[Any, Bool[Array, "T *batch"]],
        head_kwargs: Kwargs | None = None,
        every: int = 1,
    ) -> tuple[Any, Any]:
        """Process sequences as `__call__` does; return the states `[T / every, ..., H]` after each `every`-th step."""
        return self._through(partial(self.rnn.unroll, every=every), state, observation_done, head_kwargs)

    def unroll_with_successors(
        self,
        state: Any,
        observation_done: tuple[Any, Bool[Array, "T *batch"]],
        next_observation: Any,
        head_kwargs: Kwargs | None = None,
        every: int = 1,
    ) -> tuple[Any, Any, Any]:
        """Process sequences, and one further step from each state; see `ScannedRNN.unroll_with_successors`."""
        observation, done = observation_done
        inputs, next_inputs = (self.pre_torso(self.input_layer(each)) for each in (observation, next_observation))
        states, *embeddings = self.rnn.unroll_with_successors(state, (inputs, done), next_inputs, every)
        output, successor = (
            self._head(units.declare_features(self, self.post_torso(embedding)), each, head_kwargs)
            for embedding, each in zip(embeddings, (observation, next_observation), strict=True)
        )
        return states, output, successor

    def step(
        self, state: Any, observation_done: tuple[Any, Bool[Array, "*batch"]], head_kwargs: Kwargs | None = None
    ) -> tuple[Any, Any]:
        """Process one time step, with arguments and results as in `__call__`, without their time axis."""
        return self._through(self.rnn.step, state, observation_done, head_kwargs)

    def _through(
        self, cells: Any, state: Any, observation_done: tuple[Any, Array], head_kwargs: Kwargs | None
    ) -> tuple[Any, Any]:
        state, embedding = self._embed(cells, state, *observation_done)
        return state, self._head(embedding, observation_done[0], head_kwargs)

    def _embed(self, cells: Any, state: Any, observation: Any, done: Array) -> tuple[Any, Array]:
        state, embedding = cells(state, (self.pre_torso(self.input_layer(observation)), done))
        return state, units.declare_features(self, self.post_torso(embedding))

    def embed(self, state: Any, observation: Any, done: Bool[Array, "T *batch"]) -> Float[Array, "T *batch D"]:
        """Return what the head takes, for sequences; see `__call__`."""
        return self._embed(self.rnn.unroll, state, observation, done)[1]

    def _head(self, embedding: Array, observation: Any, head_kwargs: Kwargs | None) -> Any:
        raise NotImplementedError

    def _make_rnn(self, **kwargs: Any) -> ScannedRNN:
        return ScannedRNN(
            self.hidden_state_dim, self.cell_type, self.num_layers, self.dtype, self.cell_kwargs, **kwargs
        )

    @property
    def has_large_states(self) -> bool:
        return self._make_rnn(parent=None).has_large_states

    @nn.nowrap
    def initialize_carry(self, batch_size: int | Sequence[int]) -> Any:
        """Return the state at the start of an episode, see `ScannedRNN.initialize_carry`."""
        return self._make_rnn(parent=None).initialize_carry(batch_size)


class RecurrentActor(_Recurrent, Network):
    """A recurrent policy. The action mask of an observation is passed to the head."""

    action_head: nn.Module  # maps an embedding to a distribution over actions, see `heads.PolicyHead`
    post_torso: nn.Module  # maps the output of the cells to an embedding
    hidden_state_dim: int  # width of the recurrent state, in units
    cell_type: str  # name of the cells, see `parse_rnn_cell`
    pre_torso: nn.Module  # maps the output of the input layer to the input of the cells
    input_layer: nn.Module = ArrayInput()  # selects the input from an observation
    num_layers: int = 1  # number of cells on top of each other
    dtype: Any = None  # dtype in which the cells compute, see `ScannedRNN`
    cell_kwargs: Any = None  # further arguments of the cells, see `ScannedRNN`

    def __call__(
        self,
        policy_hidden_state: Any,
        observation_done: tuple[Any, Bool[Array, "T *batch"]],
        head_kwargs: Kwargs | None = None,
    ) -> tuple[Any, Any]:
        """Process sequences of observations from a state `[..., H]`; return the last state, and each step's output."""
        return super().__call__(policy_hidden_state, observation_done, head_kwargs)

    def _head(self, embedding: Array, observation: Any, head_kwargs: Kwargs | None) -> Any:
        return self.action_head(embedding, **policy_kwargs(self.action_head, observation, head_kwargs))


class RecurrentCritic(_Recurrent, Network):
    """A recurrent value function."""

    critic_head: nn.Module  # maps an embedding to values
    post_torso: nn.Module  # maps the output of the cells to an embedding
    hidden_state_dim: int  # width of the recurrent state, in units
    cell_type: str  # name of the cells, see `parse_rnn_cell`
    pre_torso: nn.Module  # maps the output of the input layer to the input of the cells
    input_layer: nn.Module = ArrayInput()  # selects the input from an observation
    num_layers: int = 1  # number of cells on top of each other
    dtype: Any = None  # dtype in which the cells compute, see `ScannedRNN`
    cell_kwargs: Any = None  # further arguments of the cells, see `ScannedRNN`

    def __call__(
        self,
        critic_hidden_state: Any,
        observation_done: tuple[Any, Bool[Array, "T *batch"]],
        head_kwargs: Kwargs | None = None,
    ) -> tuple[Any, Any]:
        """Process sequences of observations from a state `[..., H]`; return the last state, and each step's output."""
        return super().__call__(critic_hidden_state, observation_done, head_kwargs)

    def _head(self, embedding: Array, observation: Any, head_kwargs: Kwargs | None) -> Any:
        return self.critic_head(embedding, **(head_kwargs or {}))


class RecurrentActorCritic(RecurrentActor):
    """A recurrent policy and a value function that share all but their heads, and return both outputs."""

    # Maps an embedding to values; for the others see `RecurrentActor`. It comes after fields with defaults, and is
    # needed all the same.
    critic_head: Any = None

    def _head(self, embedding: Array, observation: Any, head_kwargs: Kwargs | None) -> Any:
        return super()._head(embedding, observation, head_kwargs), self.critic_head(embedding)


class StatelessCritic(FeedForwardCritic):
    """A feed-forward value function with the methods of a recurrent one, and `()` as state."""

    has_large_states: ClassVar[bool] = False

    def unroll(
        self, state: Any, observation_done: tuple[Any, Array], head_kwargs: Kwargs | None = None, every: int = 1
    ) -> Any:
        return state, self(observation_done[0], head_kwargs=head_kwargs)

    def step(self, state: Any, observation_done: tuple[Any, Array], head_kwargs: Kwargs | None = None) -> Any:
        return self.unroll(state, observation_done, head_kwargs)

    @nn.nowrap
    def initialize_carry(self, batch_size: int | Sequence[int]) -> tuple[()]:
        return ()


def same_body(actor: RecurrentActor, critic: RecurrentCritic | StatelessCritic) -> bool:
    """Return whether two recurrent networks differ only in their heads."""
    if units.is_recording() or not isinstance(critic, RecurrentCritic):
        return False
    return all(repr(getattr(actor, name)) == repr(getattr(critic, name)) for name in _Recurrent.__annotations__)


def unroll_both(
    actor: RecurrentActor, critic: RecurrentCritic, params: tuple[Any, Any], states: tuple[Any, Any], *inputs: Any
) -> tuple[Any, Any]:
    """Process sequences by two networks of the `same_body`, in one loop over time; return the outputs of both heads.

    `states`: `[..., H]` each, before the first step.
    `*inputs`: observations `[T, ...]`, and `[T, ...]`, True where one is the first of its episode.
    """
    bodies = ({k: v for k, v in tree["params"].items() if k not in ("action_head", "critic_head")} for tree in params)
    body, state = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair) for pair in (bodies, states))
    apply = partial(actor.apply, method="embed")
    embeddings = jax.vmap(lambda body, state: apply({"params": body}, state, *inputs))(body, state)
    pi = actor.apply(params[0], embeddings[0], inputs[0], None, method="_head")
    return pi, critic.apply(params[1], embeddings[1], inputs[0], None, method="_head")
