"""A layer of recurrent cells over time: gated, linear, attending, alone or on top of each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stoix_like.networks.feed_forward import Network
from stoix_like.networks.recurrent import LinearCell, ParallelCell, linear_recurrence, step_gru, unroll_gru
from stoix_like.networks.utils import parse_rnn_cell
from stoix_like.utils.accelerate.platform import map_init
from stoix_like.utils.jax_utils import append_dims, restore_float32
from stoix_like.utils.shapes import check_shapes

# Cells on top of each other that are one loop; fewer compile as fast, and faster code, one by one.
_FEWEST_LOOPED = 3


class ScannedRNN(Network):
    """Recurrent cells on top of each other, scanned over time, the first axis; reset where an episode starts.

    The state of several cells is a tuple, from the first cell to the last. Three cells or more are one loop, so that
    the time to compile does not depend on their number. Cells of type `gru` support reverse-mode differentiation only.
    """

    hidden_state_dim: int  # width of the state and of the output of each cell, in units
    cell_type: str  # name of the cells, see `parse_rnn_cell`
    num_layers: int = 1  # number of cells
    # Dtype of the computation, such as bfloat16; parameters, states and outputs stay float32. None: the promoted dtype
    # of inputs and parameters.
    dtype: Any = None
    cell_kwargs: Any = None  # further arguments of the cells by name, such as the window of `gtrxl`

    def setup(self) -> None:
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

        Raises:
            ValueError: the flags have other axes than the inputs.
        """
        states, outputs = self.unroll(rnn_state, x, every=len(x[1]))
        return jax.tree.map(lambda state: state[-1], states), outputs

    def unroll(
        self, rnn_state: Any, x: tuple[Float[Array, "T *batch D"], Bool[Array, "T *batch"]], every: int = 1
    ) -> tuple[Any, Float[Array, "T *batch H"]]:
        """Process sequences as `__call__` does; return the states `[T / every, ..., H]` after each `every`-th step."""
        inputs, resets = x
        unroll = partial(_unroll_cell, resets=resets, every=every)
        states, outputs = self._through_cells(unroll, rnn_state, inputs, resets)
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
            return _in_dtypes_of(state, states), tuple(outputs)

        states, outputs = self._through_cells(unroll, rnn_state, (inputs, next_inputs), resets)
        return states, *(restore_float32(output, self.dtype) for output in outputs)

    def step(
        self, rnn_state: Any, x: tuple[Float[Array, "*batch D"], Bool[Array, "*batch"]]
    ) -> tuple[Any, Float[Array, "*batch H"]]:
        """Process one time step, with arguments and results as in `__call__`, without their time axis."""
        inputs, resets = x
        states, outputs = self._through_cells(partial(_apply_cell, resets=resets), rnn_state, inputs, resets)
        return states, restore_float32(outputs, self.dtype)

    def _through_cells(self, apply: Any, rnn_state: Any, x: Any, resets: Array) -> tuple[Any, Any]:
        """Apply a function `(cell, state, x) -> (states, x)` to one cell after the other."""
        for inputs in jax.tree.leaves(x):
            check_shapes("inputs[*B,D] resets[*B]", (inputs, resets))
        per_cell: Sequence[Any] = (rnn_state,) if self.num_layers == 1 else rnn_state
        states = []
        for cell, state in zip(self.cells[: self._first_of_loop(x)], per_cell, strict=False):
            new, x = apply(cell, state, x)
            states.append(new)
        if cells := self.cells[len(states) :]:
            cell, looped = self._make_cells(parent=None)[0], per_cell[len(states) :]
            if self.is_initializing():
                keys = jax.random.split(self.make_rng("params"), len(cells))
                _set_params(cells, map_init(lambda key: nn.init(apply, cell)(key, looped[0], x))(keys))

            def body(x: Any, params_state: tuple[Any, Any]) -> tuple[Any, Any]:
                params, state = params_state
                new, output = nn.apply(apply, cell)(params, state, x)
                return _in_dtypes_of(x, output), new

            of_cells = [(cell.variables, state) for cell, state in zip(cells, looped, strict=True)]
            x, new = jax.lax.scan(body, x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_cells))
            states += [jax.tree.map(lambda leaf, i=i: leaf[i], new) for i in range(len(cells))]
        return self._joined(states), x

    def _first_of_loop(self, x: Any) -> int:
        """Return the number of the first cell of the loop: its cells have equal shapes, the first cell may differ."""
        if self.num_layers < _FEWEST_LOOPED:
            return self.num_layers
        return int(jax.tree.leaves(x)[0].shape[-1] != self.hidden_state_dim)

    def _make_cells(self, **kwargs: Any) -> list[Any]:
        cell = parse_rnn_cell(self.cell_type)
        kwargs = {**(self.cell_kwargs or {}), "dtype": self.dtype, **kwargs}
        return [cell(features=self.hidden_state_dim, **kwargs) for _ in range(self.num_layers)]

    def _joined(self, states: Sequence[Any]) -> Any:
        return states[0] if self.num_layers == 1 else tuple(states)

    @property
    def has_large_states(self) -> bool:
        """True if the state after each step is not computed unless it is asked for; see `ParallelCell`."""
        return issubclass(parse_rnn_cell(self.cell_type), ParallelCell)

    @nn.nowrap
    def initialize_carry(self, batch_size: int | Sequence[int]) -> Any:
        """Return the state at the start of an episode.

        Args:
            batch_size: number of sequences, or the shape of their batch.

        Returns:
            The arrays of the cells' states, `[batch_size, H]`.
        """
        batch = (batch_size,) if isinstance(batch_size, int | np.integer) else tuple(batch_size)
        return self._joined([_initial_state(cell, batch) for cell in self._make_cells(parent=None)])


def _set_params(cells: Sequence[nn.Module], variables: Any) -> None:
    """Give each of several cells its entry of stacked parameters."""
    for i, cell in enumerate(cells):
        for name, params in variables["params"].items():
            cell.put_variable("params", name, jax.tree.map(lambda leaf, i=i: leaf[i], params))


def _in_dtypes_of(before: Any, after: Any) -> Any:
    return jax.tree.map(lambda before, after: after.astype(before.dtype), before, after)


def _initial_state(cell: Any, batch: tuple[Any, ...]) -> Any:
    return cell.initialize_carry(jax.random.key(0), (*batch, cell.features))


def _reset(cell: Any, state: Any, resets: Array) -> Any:
    """Replace states `[..., *shape]` by that at the start of an episode where `resets` `[...]` is True."""
    fresh = _initial_state(cell, resets.shape)

    def select(new: Array, old: Array) -> Array:
        return jnp.where(append_dims(resets, old.ndim), new.astype(old.dtype), old)

    return jax.tree.map(select, fresh, state)


_OF_FAST_GRU = ("gate_fn", "activation_fn", "carry_init", "param_dtype")


def _is_fast_gru(cell: Any) -> bool:
    # The cell itself creates its parameters; the fast path has the default functions, first state and precision.
    if type(cell) is not nn.GRUCell or cell.is_initializing():
        return False
    return all(getattr(cell, name) == getattr(nn.GRUCell, name) for name in _OF_FAST_GRU)


def _apply_cell(cell: Any, state: Any, x: Array, resets: Array) -> tuple[Any, Array]:
    """Return the next state of one cell, in the dtype of the last one, and the output."""
    state = _reset(cell, state, resets)
    if _is_fast_gru(cell):
        new = step_gru(cell, state, x)
        return new, new
    new, output = cell(state, x)
    return _in_dtypes_of(state, new), output


def _unroll_cell(cell: Any, state: Any, inputs: Array, resets: Array, every: int) -> tuple[Any, Array]:
    """Return the states `[T / every, ..., H]` and outputs `[T, ..., H]` of one cell; in parallel where it can."""
    if isinstance(cell, ParallelCell):
        states, outputs, _ = cell.unroll(state, inputs, resets, every)
        return _in_dtypes_of(state, states), outputs
    states, outputs = _unroll_in_steps(cell, state, inputs, resets)
    states = _in_dtypes_of(state, states)
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
