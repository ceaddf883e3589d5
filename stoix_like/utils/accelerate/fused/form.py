"""What a fused perceptron looks like: its sizes, its tiles, and its parameters as one array."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ACTIVATIONS = ("relu", "silu", "swish", "tanh")
ROWS = 32
"""Inputs that a block computes at a time in a gradient; with more, registers spill."""
FORWARD_ROWS = 64
"""Inputs that a block computes the outputs of: every block reads all parameters from the cache."""
COLUMNS = 64
"""Units of the last hidden layer that a block computes at a time."""
# The sides of a product of matrices are powers of two, of at least so many entries.
_SMALLEST = 16
# What fits into the 227 KiB of shared memory that a block of an H100 has.
_WIDEST, _MOST_INPUTS, _LARGEST_KERNEL, _MOST_OUTPUTS = 256, 128, 2**13, 64
# Blocks that sum the gradient of a network: two networks keep an H100 busy.
_PROGRAMS = 64


class Layer(NamedTuple):
    """The parameters of a dense layer, and of the normalisation after it."""

    kernel: Float[Array, "D F"]
    bias: Float[Array, " F"]
    scale: Float[Array, " F"] | None = None
    offset: Float[Array, " F"] | None = None


class Cost(NamedTuple):
    """What a block takes, for `lab.aot`."""

    flops: int  # operations of its products
    loads: int  # bytes of parameters that it reads from the cache


@dataclass(frozen=True)
class Form:
    """Hidden layers of the same padded width, and a dense layer of outputs."""

    inputs: int  # entries of an input
    width: int  # units of a hidden layer, a power of two
    hidden: int  # number of hidden layers
    outputs: int  # entries of an output
    activation: str  # name of the activation function, one of `ACTIVATIONS`
    norm: bool  # whether layer normalisation precedes each activation
    dtype: str  # dtype of the operands of the hidden layers' products; sums are float32
    interpret: bool = False  # run the kernels as operations of jax, to test them without a GPU

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each layer starts in the array of parameters: a kernel, a bias, scale and offset of a norm; the end."""
        sizes = [padded(self.inputs), *[self.width] * (self.hidden - 1)]
        rows = [*(size + 1 + 2 * self.norm for size in sizes), padded(self.outputs) + 1]
        return tuple(sum(rows[:index]) for index in range(len(rows) + 1))

    @property
    def tiles(self) -> int:
        """Number of column tiles of the last hidden layer."""
        return self.width // COLUMNS

    def groups(self, batch: int) -> int:
        """Return the number of blocks that share a batch in a sum over it."""
        return min(-(-batch // ROWS), _PROGRAMS // self.tiles)

    def blocks(self, batch: int) -> int:
        """Return how many times `ROWS` inputs each of them has."""
        return -(-batch // (ROWS * self.groups(batch)))

    def cost(self, rows: int, columns: int, passes: tuple[int, int, int] = (1, 1, 1)) -> Cost:
        """Return the cost of one pass of a block over rows, with columns of the last hidden layer.

        `passes`: products with the kernels of the hidden layers before the last, the last one, and the outputs.
        """
        *before, size = [padded(self.inputs), *[self.width] * (self.hidden - 1)]
        layers = sum(before) * self.width, columns * size, columns * padded(self.outputs)
        return Cost(2 * rows * sum(map(operator.mul, passes, layers)), 4 * sum(layers))


def padded(size: int) -> int:
    """Return the next power of two that a product of matrices can have as a side."""
    return max(_SMALLEST, 1 << (size - 1).bit_length())


def find_form(layers: Sequence[Layer], activation: str, dtype: str = "float32", interpret: bool = False) -> Form | None:
    """Return the form of a perceptron; None if it cannot be fused."""
    *hidden, last = layers
    widths = [layer.bias.shape[-1] for layer in hidden]
    norm = any(layer.scale is not None for layer in hidden)
    inputs, outputs = layers[0].kernel.shape[-2], last.bias.shape[-1]
    width = max([COLUMNS, *map(padded, widths)])
    fits = width <= _WIDEST and inputs <= _MOST_INPUTS and padded(inputs) * width <= _LARGEST_KERNEL
    # A norm needs all units of a row in one block, and no padded ones.
    known = activation in ACTIVATIONS and len(widths) in (1, 2) and (not norm or set(widths) == {COLUMNS})
    if not (fits and known and outputs <= _MOST_OUTPUTS):
        return None
    return Form(inputs, width, len(widths), outputs, activation, norm, dtype, interpret)


def assemble(form: Form, layers: Sequence[Layer]) -> Float[Array, "R W"]:
    """Return all parameters as the rows of one array, padded by zeros: a kernel reads them without a copy of each."""

    def rows(x: jax.Array, size: int) -> jax.Array:
        return jnp.pad(x, ((0, size - x.shape[0]), (0, form.width - x.shape[1])))

    sizes = [padded(form.inputs), *[form.width] * (form.hidden - 1)]
    *hidden, last = layers
    parts = []
    for layer, size in zip(hidden, sizes, strict=True):
        parts += [rows(layer.kernel, size)]
        parts += [rows(x[None], 1) for x in (layer.bias, layer.scale, layer.offset) if x is not None]
    # Not transposed, which is a kernel of its own, and another one in the gradient.
    columns = jnp.stack([last.kernel[:, i] for i in range(form.outputs)])
    return jnp.concatenate([*parts, rows(columns, padded(form.outputs)), rows(last.bias[None], 1)])
