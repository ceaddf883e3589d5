"""Base class of cells that compute sequences in parallel, with states larger than their outputs."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Unrolled(NamedTuple):
    """Sequences that a cell has processed."""

    states: Any  # `[T / every, ...]`, the states after every `every`-th step
    outputs: Array  # `[T, ..., H]`
    # `[T, ..., H]`, the outputs of one further step from the state after each step; None without inputs for them.
    successors: Array | None


class ParallelCell(nn.Module):
    """A cell that computes sequences in parallel, without the state after each of their steps."""

    features: int  # H, width of the output, in units
    # Dtype of the products of matrices; None for the inputs' dtype. States do not depend on it.
    dtype: Any = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check that heads, of cells that have some, divide the width."""
        heads = getattr(self, "num_heads", 1)
        if self.features % heads:
            raise ValueError(f"num_heads={heads} must divide features={self.features}: use a divisor of it")
        super().__post_init__()

    def __call__(self, state: Any, x: Float[Array, "*batch D"]) -> tuple[Any, Float[Array, "*batch H"]]:
        """Return the next state and the output: a sequence of one step."""
        states, outputs, _ = self.unroll(state, x[None], jnp.zeros((1, *x.shape[:-1]), bool))
        return jax.tree.map(lambda states: states[0], states), outputs[0]

    def unroll(
        self,
        state: Any,
        inputs: Float[Array, "T *batch D"],
        resets: Bool[Array, "T *batch"],
        every: int = 1,
        next_inputs: Float[Array, "T *batch D"] | None = None,
    ) -> Unrolled:
        """Process sequences.

        `state`: before the first step.
        `resets`: True where an input is the first of its episode and the state is reset before it.
        `every`: E, steps between two of the states that are returned; the first of them is that after E steps.
        `next_inputs`: the inputs of the steps that follow in the same episodes; None if they are not needed.
        """
        raise NotImplementedError

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[Any, ...]) -> Any:
        """Return the state at the start of an episode, zero, for inputs of `input_shape`."""
        raise NotImplementedError


def product(subscripts: str, *operands: Array) -> Array:
    """Compute `jnp.einsum` in the dtype of the operands, and return it as float32."""
    return jnp.einsum(subscripts, *operands).astype(jnp.float32)


def match_width(embed: nn.Dense, x: Array) -> Array:
    """Return inputs `[..., D]` as `[..., H]`, unchanged if they are as wide."""
    return x if x.shape[-1] == embed.features else embed(x)
