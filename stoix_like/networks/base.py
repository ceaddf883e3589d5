"""Whole networks: an input layer, a torso and a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stoix_like.base_types import Observation, ObservationGlobalState
from stoix_like.networks import units
from stoix_like.networks.heads import mask_argument
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.recurrent import LinearCell, ParallelCell, linear_recurrence, step_gru, unroll_gru
from stoix_like.networks.torso import MLPTorso
from stoix_like.networks.utils import instantiate, parse_rnn_cell, plain_kwargs, to_plain
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.jax_utils import restore_float32

Kwargs = Mapping[str, Any]


def _policy_kwargs(head: nn.Module, observation: Any, head_kwargs: Kwargs | None = None) -> dict[str, Any]:
    """Return the keyword arguments of a policy head: the caller's, and the action mask of the observation."""
    kwargs = dict(head_kwargs or {})
    if "action_mask" in kwargs or not isinstance(observation, Observation | ObservationGlobalState):
        return kwargs
    return mask_argument(head, observation.action_mask) | kwargs


class _Network(nn.Module):
    """A module whose parameters may be packed, see `pack_params`."""

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what `__call__`, or another method, returns for variables."""
        variables = unpack(variables)
        if not units.is_recording() or "mutable" in kwargs:
            return super().apply(variables, *args, **kwargs)
        output, found = super().apply(variables, *args, mutable=[units.COLLECTION], **kwargs)
        units.record(variables, found)
        return output


class _FeedForward(_Network):
    """What a policy and a value function have before their heads."""

    def embed(
        self: Any, observation: Any, input_kwargs: Kwargs | None = None, torso_kwargs: Kwargs | None = None
    ) -> Float[Array, "*batch D"]:
        """Return the embedding of an observation; see `__call__`."""
        x = self.input_layer(observation, **(input_kwargs or {}))
        return units.declare_features(self, self.torso(x, **(torso_kwargs or {})))


class FeedForwardActor(_FeedForward):
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
        return self.head(self.embed(observation, input_kwargs, torso_kwargs), observation, head_kwargs)

    def head(self, embedding: Float[Array, "*batch D"], observation: Any, head_kwargs: Kwargs | None = None) -> Any:
        """Return the policy for an observation and its embedding; see `__call__`."""
        return self.action_head(embedding, **_policy_kwargs(self.action_head, observation, head_kwargs))


class FeedForwardCritic(_FeedForward):
    """A feed-forward value function.

    Attributes:
        critic_head: maps an embedding to values.
        torso: maps the output of the input layer to an embedding.
        input_layer: selects the input from an observation.
    """

    critic_head: nn.Module
    torso: nn.Module
    input_layer: nn.Module = ArrayInput()

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
        return self.head(self.embed(observation, input_kwargs, torso_kwargs), head_kwargs)

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


def embed_both(network: _FeedForward, params: Any, other_params: Any, observation: Any) -> Float[Array, "2 *batch D"]:
    """Compute the embeddings of two networks that are `alike`, layer by layer in one product of matrices.

    Args:
        network: one of them.
        params: its parameters.
        other_params: those of the other one.
        observation: an observation with any leading axes.

    Returns:
        `[2, ..., D]`, the embeddings.
    """
    torsos = jax.tree.map(lambda *leaves: jnp.stack(leaves), params["params"]["torso"], other_params["params"]["torso"])
    return jax.vmap(lambda torso: network.apply({"params": {"torso": torso}}, observation, method="embed"))(torsos)


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
        x = units.declare_features(self, self.torso(x, **(torso_kwargs or {})))
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

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Return what `__call__` returns; on accelerators, equal modules are one with batched parameters."""
        if on_cpu() or kwargs or units.is_recording() or len({repr(network) for network in self.networks}) > 1:
            return super().apply(variables, *args, rngs=rngs, **kwargs)
        variables, num_networks = unpack(variables), len(self.networks)
        each = [{kind: tree[f"networks_{i}"] for kind, tree in variables.items()} for i in range(num_networks)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        keys = jax.tree.map(lambda key: jax.random.split(key, num_networks), rngs)
        apply = self.networks[0].apply
        return jax.vmap(lambda variables, rngs: apply(variables, *args, rngs=rngs), out_axes=-1)(stacked, keys)

    @nn.compact
    def __call__(self, *network_input: Any) -> Any:
        """Stack the outputs of the modules along a new last axis, `[..., len(networks)]`."""
        outputs = [network(*network_input) for network in self.networks]
        return jax.tree.map(lambda *parts: jnp.stack(parts, axis=-1), *outputs)


# Cells on top of each other that are one loop; fewer compile as fast, and faster code, one by one.
_FEWEST_LOOPED = 3


class ScannedRNN(_Network):
    """Recurrent cells on top of each other, scanned over time, the first axis; reset where an episode starts.

    The state of several cells is a tuple, from the first cell to the last. Three cells or more are one loop, so that
    the time to compile does not depend on their number.

    Attributes:
        hidden_state_dim: width of the state and of the output of each cell, in units.
        cell_type: name of the cells, see `parse_rnn_cell`.
        num_layers: number of cells.
        dtype: dtype of the computation, such as bfloat16; parameters, states and outputs stay float32. None: the
            promoted dtype of inputs and parameters.
        cell_kwargs: further arguments of the cells by name, such as the window of `gtrxl`.
    """

    hidden_state_dim: int
    cell_type: str
    num_layers: int = 1
    dtype: Any = None
    cell_kwargs: Any = None

    def setup(self) -> None:
        """Create the cells."""
        self.cells = self._make_cells()

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
        states, outputs = self.unroll(rnn_state, x, every=len(x[1]))
        return jax.tree.map(lambda state: state[-1], states), outputs

    def unroll(
        self, rnn_state: Any, x: tuple[Float[Array, "T *batch D"], Bool[Array, "T *batch"]], every: int = 1
    ) -> tuple[Any, Float[Array, "T *batch H"]]:
        """Process sequences as `__call__` does; return the states `[T / every, ..., H]` after each `every`-th step."""
        inputs, resets = x
        unroll = partial(_unroll_cell, resets=resets, every=every)
        states, outputs = self._through_cells(unroll, rnn_state, inputs)
        return states, restore_float32(outputs, self.dtype)

    def unroll_with_successors(
        self,
        rnn_state: Any,
        x: tuple[Float[Array, "T *batch D"], Bool[Array, "T *batch"]],
        next_inputs: Float[Array, "T *batch D"],
        every: int = 1,
    ) -> tuple[Any, Float[Array, "T *batch H"], Float[Array, "T *batch H"]]:
        """Process sequences by cells that are a `ParallelCell`, and one further step from the state after each step.

        Args:
            rnn_state: the state before the first step.
            x: see `__call__`.
            next_inputs: `[T, ..., D]`, the inputs of the further steps, in the same episodes.
            every: see `unroll`.

        Returns:
            The states after each `every` steps, the outputs, and the outputs of the further steps.
        """
        inputs, resets = x

        def unroll(cell: Any, state: Any, inputs: tuple[Array, Array]) -> tuple[Any, tuple[Array, Array]]:
            states, *outputs = cell.unroll(state, inputs[0], resets, every, inputs[1])
            return states, tuple(outputs)

        states, outputs = self._through_cells(unroll, rnn_state, (inputs, next_inputs))
        return states, *(restore_float32(output, self.dtype) for output in outputs)

    def step(
        self, rnn_state: Any, x: tuple[Float[Array, "*batch D"], Bool[Array, "*batch"]]
    ) -> tuple[Any, Float[Array, "*batch H"]]:
        """Process one time step, with arguments and results as in `__call__`, without their time axis."""
        inputs, resets = x
        states, outputs = self._through_cells(partial(_apply_cell, resets=resets), rnn_state, inputs)
        return states, restore_float32(outputs, self.dtype)

    def _through_cells(self, apply: Any, rnn_state: Any, x: Any) -> tuple[Any, Any]:
        """Apply a function `(cell, state, x) -> (states, x)` to one cell after the other."""
        per_cell, states = self._per_cell(rnn_state), []
        for cell, state in zip(self.cells[: self._first_of_loop(x)], per_cell, strict=False):
            new, x = apply(cell, state, x)
            states.append(new)
        if cells := self.cells[len(states) :]:
            cell, looped = self._make_cells(parent=None)[0], per_cell[len(states) :]
            if self.is_initializing():
                keys = jax.random.split(self.make_rng("params"), len(cells))
                _set_params(cells, jax.vmap(lambda key: nn.init(apply, cell)(key, looped[0], x))(keys))

            def body(x: Any, params_state: tuple[Any, Any]) -> tuple[Any, Any]:
                params, state = params_state
                new, output = nn.apply(apply, cell)(params, state, x)
                return jax.tree.map(lambda after, before: after.astype(before.dtype), output, x), new

            of_cells = [(cell.variables, state) for cell, state in zip(cells, looped, strict=True)]
            x, new = jax.lax.scan(body, x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_cells))
            states += [jax.tree.map(lambda leaf, i=i: leaf[i], new) for i in range(len(cells))]
        return self._joined(states), x

    def _first_of_loop(self, x: Any) -> int:
        """Return the number of the first cell of the loop, whose cells have equal shapes; the first may be narrower."""
        if self.num_layers < _FEWEST_LOOPED:
            return self.num_layers
        return int(jax.tree.leaves(x)[0].shape[-1] != self.hidden_state_dim)

    def _make_cells(self, **kwargs: Any) -> list[Any]:
        cell = parse_rnn_cell(self.cell_type)
        kwargs = plain_kwargs(self.cell_kwargs) | {"dtype": self.dtype} | kwargs
        return [cell(features=self.hidden_state_dim, **kwargs) for _ in range(self.num_layers)]

    def _per_cell(self, rnn_state: Any) -> Sequence[Any]:
        return (rnn_state,) if self.num_layers == 1 else rnn_state

    def _joined(self, states: Sequence[Any]) -> Any:
        return states[0] if self.num_layers == 1 else tuple(states)

    @property
    def has_large_states(self) -> bool:
        """Whether the state after each step is not computed unless it is asked for; see `ParallelCell`."""
        return issubclass(parse_rnn_cell(self.cell_type), ParallelCell)

    @nn.nowrap
    def initialize_carry(self, batch_size: int | Sequence[int]) -> Any:
        """Return the state at the start of an episode.

        Args:
            batch_size: number of sequences, or the shape of their batch.

        Returns:
            The arrays of the cells' states, `[batch_size, H]`.
        """
        batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
        return self._joined([_initial_state(cell, batch) for cell in self._make_cells(parent=None)])


def _set_params(cells: Sequence[nn.Module], variables: Any) -> None:
    """Give each of several cells its entry of stacked parameters."""
    for i, cell in enumerate(cells):
        for name, params in variables["params"].items():
            cell.put_variable("params", name, jax.tree.map(lambda leaf, i=i: leaf[i], params))


def _initial_state(cell: Any, batch: tuple[Any, ...]) -> Any:
    return cell.initialize_carry(jax.random.key(0), (*batch, cell.features))


def _reset(cell: Any, state: Any, resets: Array) -> Any:
    """Replace states `[..., *shape]` by that at the start of an episode where `resets` `[...]` is True."""
    fresh = _initial_state(cell, resets.shape)

    def select(new: Array, old: Array) -> Array:
        return jnp.where(resets.reshape(resets.shape + (1,) * (old.ndim - resets.ndim)), new, old)

    return jax.tree.map(select, fresh, state)


def _is_fast_gru(cell: Any) -> bool:
    # The cell itself creates its parameters.
    return isinstance(cell, nn.GRUCell) and not cell.is_initializing()


def _apply_cell(cell: Any, state: Any, x: Array, resets: Array) -> tuple[Any, Array]:
    """Return the next state of one cell, in the dtype of the last one, and the output."""
    state = _reset(cell, state, resets)
    if _is_fast_gru(cell):
        new = step_gru(cell, state, x)
        return new, new
    new, output = cell(state, x)
    return jax.tree.map(lambda after, before: after.astype(before.dtype), new, state), output


def _unroll_cell(cell: Any, state: Any, inputs: Array, resets: Array, every: int) -> tuple[Any, Array]:
    """Return the states `[T / every, ..., H]` and outputs `[T, ..., H]` of one cell; in parallel where it can."""
    if isinstance(cell, ParallelCell):
        return cell.unroll(state, inputs, resets, every)[:2]
    states, outputs = _unroll_in_steps(cell, state, inputs, resets)
    return states if every == 1 else jax.tree.map(lambda x: x[every - 1 :: every], states), outputs


def _unroll_in_steps(cell: Any, state: Any, inputs: Array, resets: Array) -> tuple[Any, Array]:
    """Return the states and outputs of one cell after each step, `[T, ..., H]`; in parallel if it is linear."""
    if isinstance(cell, LinearCell):
        decay, terms = cell.terms(inputs)
        states = linear_recurrence(jnp.where(resets[..., None], 0.0, decay), terms, state)
        return states, cell.read(states, inputs)
    if _is_fast_gru(cell):
        states = unroll_gru(cell, state, inputs, jnp.logical_not(resets[..., None]))
        return states, states

    def step(cell: Any, state: Any, x: tuple[Array, Array]) -> tuple[Any, tuple[Any, Array]]:
        input_t, reset_t = x
        state, output = _apply_cell(cell, state, input_t, reset_t)
        return state, (state, output)

    scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
    _, (states, outputs) = scan(cell, state, (inputs, resets))
    return states, outputs


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
        """Create the recurrent cells."""
        self.rnn = self._make_rnn()

    def __call__(
        self, state: Any, observation_done: tuple[Any, Bool[Array, "T *batch"]], head_kwargs: Kwargs | None = None
    ) -> tuple[Any, Any]:
        """Process sequences of observations.

        Args:
            state: `[..., H]`, the state before the first step.
            observation_done: observations `[T, ...]`, and `[T, ...]`, True where an observation is the first of its
                episode.
            head_kwargs: keyword arguments of the head.

        Returns:
            The state after the last step, and the output of the head for each step.

        Raises:
            ValueError: the observations have an action mask that the head of a policy does not take.
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
        """See `ScannedRNN.has_large_states`."""
        return self._make_rnn(parent=None).has_large_states

    @nn.nowrap
    def initialize_carry(self, batch_size: int | Sequence[int]) -> Any:
        """Return the state at the start of an episode, see `ScannedRNN.initialize_carry`."""
        return self._make_rnn(parent=None).initialize_carry(batch_size)


class RecurrentActor(_Recurrent, _Network):
    """A recurrent policy.

    The action mask of an observation is passed to the head.

    Attributes:
        action_head: maps an embedding to a distribution over actions, see `heads.PolicyHead`.
        post_torso: maps the output of the cells to an embedding.
        hidden_state_dim: width of the recurrent state, in units.
        cell_type: name of the cells, see `parse_rnn_cell`.
        pre_torso: maps the output of the input layer to the input of the cells.
        input_layer: selects the input from an observation.
        num_layers: number of cells on top of each other.
        dtype: dtype in which the cells compute, see `ScannedRNN`.
        cell_kwargs: further arguments of the cells, see `ScannedRNN`.
    """

    action_head: nn.Module
    post_torso: nn.Module
    hidden_state_dim: int
    cell_type: str
    pre_torso: nn.Module
    input_layer: nn.Module = ArrayInput()
    num_layers: int = 1
    dtype: Any = None
    cell_kwargs: Any = None

    def _head(self, embedding: Array, observation: Any, head_kwargs: Kwargs | None) -> Any:
        return self.action_head(embedding, **_policy_kwargs(self.action_head, observation, head_kwargs))


class RecurrentCritic(_Recurrent, _Network):
    """A recurrent value function.

    Attributes:
        critic_head: maps an embedding to values.
        post_torso: maps the output of the cells to an embedding.
        hidden_state_dim: width of the recurrent state, in units.
        cell_type: name of the cells, see `parse_rnn_cell`.
        pre_torso: maps the output of the input layer to the input of the cells.
        input_layer: selects the input from an observation.
        num_layers: number of cells on top of each other.
        dtype: dtype in which the cells compute, see `ScannedRNN`.
        cell_kwargs: further arguments of the cells, see `ScannedRNN`.
    """

    critic_head: nn.Module
    post_torso: nn.Module
    hidden_state_dim: int
    cell_type: str
    pre_torso: nn.Module
    input_layer: nn.Module = ArrayInput()
    num_layers: int = 1
    dtype: Any = None
    cell_kwargs: Any = None

    def _head(self, embedding: Array, observation: Any, head_kwargs: Kwargs | None) -> Any:
        return self.critic_head(embedding, **(head_kwargs or {}))


class RecurrentActorCritic(RecurrentActor):
    """A recurrent policy and a value function that share all but their heads; the output is that of both.

    Attributes:
        critic_head: maps an embedding to values; the others are those of `RecurrentActor`. It comes after fields with
            defaults, and is needed all the same.
    """

    critic_head: Any = None

    def _head(self, embedding: Array, observation: Any, head_kwargs: Kwargs | None) -> Any:
        return super()._head(embedding, observation, head_kwargs), self.critic_head(embedding)


class StatelessCritic(FeedForwardCritic):
    """A feed-forward value function with the methods of a recurrent one, whose state is `()`."""

    has_large_states: ClassVar[bool] = False

    def unroll(
        self, state: Any, observation_done: tuple[Any, Array], head_kwargs: Kwargs | None = None, every: int = 1
    ) -> Any:
        """See `RecurrentCritic.unroll`."""
        del every
        return state, self(observation_done[0], head_kwargs=head_kwargs)

    def step(self, state: Any, observation_done: tuple[Any, Array], head_kwargs: Kwargs | None = None) -> Any:
        """See `RecurrentCritic.step`."""
        return self.unroll(state, observation_done, head_kwargs)

    @nn.nowrap
    def initialize_carry(self, batch_size: int | Sequence[int]) -> tuple[()]:
        """See `RecurrentCritic.initialize_carry`."""
        del batch_size
        return ()


def same_body(actor: RecurrentActor, critic: RecurrentCritic | StatelessCritic) -> bool:
    """Return whether two recurrent networks differ in their heads alone."""
    if units.is_recording() or not isinstance(critic, RecurrentCritic):
        return False
    return all(repr(getattr(actor, name)) == repr(getattr(critic, name)) for name in _Recurrent.__annotations__)


def unroll_both(
    actor: RecurrentActor, critic: RecurrentCritic, params: tuple[Any, Any], states: tuple[Any, Any], *inputs: Any
) -> tuple[Any, Any]:
    """Process sequences by two networks of the `same_body`, in one loop over time.

    Args:
        actor: the policy.
        critic: the value function.
        params: the parameters of both.
        states: the states of both before the first step, `[..., H]`.
        *inputs: observations `[T, ...]`, and `[T, ...]`, True where one is the first of its episode.

    Returns:
        The outputs of both heads.
    """
    bodies = ({k: v for k, v in tree["params"].items() if k not in ("action_head", "critic_head")} for tree in params)
    body, state = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair) for pair in (bodies, states))
    apply = partial(actor.apply, method="embed")
    embeddings = jax.vmap(lambda body, state: apply({"params": body}, state, *inputs))(body, state)
    pi = actor.apply(params[0], embeddings[0], inputs[0], None, method="_head")
    return pi, critic.apply(params[1], embeddings[1], inputs[0], None, method="_head")


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
