"""The kernels of a fused perceptron, in Pallas for Triton: outputs, and the gradients of parameters and of inputs.

Each computes the hidden layers again from the inputs, which are small: a hidden layer of a large batch takes longer to
read from memory. A block holds a tile of the columns of the last hidden layer, where all would not fit on the chip.
What a tile adds to the gradients of the layers before it is linear in the tile, so blocks sum apart, each in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from stoix_like.utils.accelerate.fused.form import COLUMNS, FORWARD_ROWS, ROWS, Cost, Form, padded

_EPSILON = 1e-6  # of flax's layer normalisation
# From the gradient of a layer's outputs, the gradients of its inputs and of its parameters, as they are stored.
Backward = Callable[[jax.Array], tuple[jax.Array, list[jax.Array]]]


def outputs(form: Form, x: Float[Array, "B D"], weights: Float[Array, "R W"]) -> Float[Array, "B K"]:
    """Compute the outputs of a batch."""
    return _per_block(form, _outputs, FORWARD_ROWS, form.cost(FORWARD_ROWS, form.width), form.outputs, x, weights)


def input_gradient(
    form: Form, x: Float[Array, "B D"], weights: Float[Array, "R W"], dy: Float[Array, "B K"]
) -> Float[Array, "B D"]:
    """Compute the gradient of the inputs from the gradient of the outputs."""
    return _per_block(form, _input_gradient, ROWS, form.cost(ROWS, form.width, (2, 2, 1)), form.inputs, x, weights, dy)


def weight_gradient(
    form: Form, x: Float[Array, "B D"], weights: Float[Array, "R W"], dy: Float[Array, "B K"]
) -> Float[Array, "R W"]:
    """Compute the gradient of the parameters from the gradient of the outputs."""
    tiles, groups, start = form.tiles, form.groups(len(x)), form.starts[form.hidden - 1]
    shapes = [((groups,), form.starts[-1] - start), ((groups, tiles), start)][: form.hidden]
    tiled, *before = _call(
        form,
        partial(_weight_gradient, form),
        Cost(*(form.blocks(len(x)) * number for number in form.cost(ROWS, COLUMNS, (2, 2 + (form.hidden > 1), 2)))),
        [jax.ShapeDtypeStruct((*outer, rows, form.width), jnp.float32) for outer, rows in shapes],
        [pl.BlockSpec((*(None for _ in outer), rows, form.width), _block_of(len(outer))) for outer, rows in shapes],
        (tiles, groups),
        *(x, weights, dy),
    )
    return jnp.concatenate([*(sums.sum((0, 1)) for sums in before), tiled.sum(0)])


def _per_block(form: Form, kernel: Any, rows: int, cost: Cost, size: int, x: jax.Array, *args: jax.Array) -> jax.Array:
    """Compute `[B, size]` in blocks of inputs."""
    shape, grid = jax.ShapeDtypeStruct((len(x), size), jnp.float32), (-(-len(x) // rows),)
    return _call(form, partial(kernel, form), cost, shape, pl.BlockSpec(), grid, x, *args)


def _call(form: Form, kernel: Any, cost: Cost, shape: Any, specs: Any, grid: tuple[int, ...], *args: jax.Array) -> Any:
    return pl.pallas_call(
        kernel,
        shape,
        grid=grid,
        out_specs=specs,
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        interpret=form.interpret,
        name="perceptron",
        metadata={"dtype": form.dtype, **{name: str(number) for name, number in cost._asdict().items()}},
    )(*args)


def _block_of(num_axes: int) -> Callable[[Any, Any], tuple[Any, ...]]:
    """Return the block of an output that the programs of a tile, or of a group, write."""
    return lambda tile, group: (*(group, tile)[:num_axes], 0, 0)


def _outputs(form: Form, x_ref: Any, w_ref: Any, y_ref: Any) -> None:
    start = pl.program_id(0) * FORWARD_ROWS
    h, _ = _before(form, w_ref, _load(x_ref, start, FORWARD_ROWS))

    def add(tile: Any, y: jax.Array) -> jax.Array:
        last, _ = _hidden_layer(form, w_ref, form.hidden - 1, _columns(tile), h)
        return y + _dot(last, _output_kernel(form, w_ref, _columns(tile)), (1, 1), "float32")

    y = jax.lax.fori_loop(0, form.tiles, add, jnp.zeros((FORWARD_ROWS, padded(form.outputs)), jnp.float32))
    _store(y_ref, start, y + w_ref[form.starts[-1] - 1, pl.ds(0, padded(form.outputs))][None])


def _input_gradient(form: Form, x_ref: Any, w_ref: Any, dy_ref: Any, dx_ref: Any) -> None:
    start = pl.program_id(0) * ROWS
    dy = _load(dy_ref, start)
    h, backwards = _before(form, w_ref, _load(x_ref, start))

    def add(tile: Any, d: jax.Array) -> jax.Array:
        _, backward = _hidden_layer(form, w_ref, form.hidden - 1, _columns(tile), h)
        return d + backward(_dot(dy, _output_kernel(form, w_ref, _columns(tile)), (1, 0), "float32"))[0]

    d = jax.lax.fori_loop(0, form.tiles, add, jnp.zeros(h.shape, jnp.float32))
    for backward in reversed(backwards):
        d, _ = backward(d)
    _store(dx_ref, start, d)


def _weight_gradient(form: Form, x_ref: Any, w_ref: Any, dy_ref: Any, tiled_ref: Any, before_ref: Any = None) -> None:
    tile, group = pl.program_id(0), pl.program_id(1)
    batch, columns = x_ref.shape[0], _columns(tile)
    blocks = form.blocks(batch)

    def gradients(block: Any) -> list[list[jax.Array]]:
        start = (group * blocks + block) * ROWS
        dy = _load(dy_ref, start)
        h, backwards = _before(form, w_ref, _load(x_ref, start))
        last, last_backward = _hidden_layer(form, w_ref, form.hidden - 1, columns, h)
        layers = [[_dot(dy, last, (0, 0), "float32"), jnp.sum(dy, 0)]]
        d = _dot(dy, _output_kernel(form, w_ref, columns), (1, 0), "float32")
        for backward in (last_backward, *reversed(backwards)):
            d, layer = backward(d)
            layers.insert(0, layer)
        return layers

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradients, 0))
    sums = jax.lax.fori_loop(0, blocks, lambda block, sums: jax.tree.map(jnp.add, sums, gradients(block)), zeros)
    *before, last, (d_kernel, d_bias) = sums
    end = _store_rows(tiled_ref, 0, columns, [*last, d_kernel])
    tiled_ref[end, pl.ds(0, len(d_bias))] = d_bias  # all tiles have the same
    end = 0
    for layer in before:
        end = _store_rows(before_ref, end, pl.ds(0, form.width), layer)


def _before(form: Form, w_ref: Any, h: jax.Array) -> tuple[jax.Array, list[Backward]]:
    """Compute the hidden layers but the last."""
    backwards = []
    for index in range(form.hidden - 1):
        h, backward = _hidden_layer(form, w_ref, index, pl.ds(0, form.width), h)
        backwards.append(backward)
    return h, backwards


def _hidden_layer(form: Form, w_ref: Any, index: int, columns: Any, h: jax.Array) -> tuple[jax.Array, Backward]:
    """Compute columns of a hidden layer."""
    start, size = form.starts[index], h.shape[-1]
    kernel = w_ref[pl.ds(start, size), columns]
    bias, *norm = (w_ref[start + size + row, columns] for row in range(1 + 2 * form.norm))
    pre = _dot(h, kernel, (1, 0), form.dtype) + bias[None]
    z = normalised = deviation = pre
    if norm:
        centred = pre - jnp.mean(pre, -1, keepdims=True)
        deviation = jnp.sqrt(jnp.mean(centred * centred, -1, keepdims=True) + _EPSILON)
        normalised = centred / deviation
        z = normalised * norm[0][None] + norm[1][None]
    y, slope = _activate(form.activation, z)

    def backward(dy: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        d, sums = dy * slope, []
        if norm:
            sums = [jnp.sum(d * normalised, 0), jnp.sum(d, 0)]
            d *= norm[0][None]
            along = jnp.mean(d * normalised, -1, keepdims=True)
            d = (d - jnp.mean(d, -1, keepdims=True) - normalised * along) / deviation
        return _dot(d, kernel, (1, 1), form.dtype), [_dot(h, d, (0, 0), form.dtype), jnp.sum(d, 0), *sums]

    return y, backward


def _activate(name: str, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute an activation function and its derivative."""
    if name == "relu":
        return jnp.maximum(z, 0.0), (z > 0.0).astype(z.dtype)
    if name == "tanh":
        y = jnp.tanh(z)
        return y, (1.0 - y) * (1.0 + y)
    gate = 1.0 / (1.0 + jnp.exp(-z))
    return z * gate, gate * (1.0 + z * (1.0 - gate))


def _columns(tile: Any) -> Any:
    return pl.ds(tile * COLUMNS, COLUMNS)


def _output_kernel(form: Form, w_ref: Any, columns: Any) -> jax.Array:
    return w_ref[pl.ds(form.starts[form.hidden], padded(form.outputs)), columns]


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int], dtype: str) -> jax.Array:
    """Multiply matrices, summing over an axis of each."""
    contract = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(a.astype(dtype), b.astype(dtype), contract, preferred_element_type=jnp.float32)


def _load(ref: Any, start: Any, rows: int = ROWS) -> jax.Array:
    """Load rows, with zeros behind the last row and column."""
    index, inside = _inside(ref, start, rows)
    return triton.load(ref.at[index], mask=inside, other=0.0)


def _store(ref: Any, start: Any, x: jax.Array) -> None:
    index, inside = _inside(ref, start, len(x))
    triton.store(ref.at[index], x, mask=inside)


def _inside(ref: Any, start: Any, rows: int) -> tuple[Any, jax.Array]:
    """Return the indices of rows padded to the sides of a product, and which of them exist."""
    row, column = start + jnp.arange(rows)[:, None], jnp.arange(padded(ref.shape[1]))[None]
    return (row, column), (row < ref.shape[0]) & (column < ref.shape[1])


def _store_rows(ref: Any, start: int, columns: Any, arrays: list[jax.Array]) -> int:
    """Store matrices and vectors one below the other, and return where they end."""
    for x in arrays:
        if x.ndim == 2:
            ref[pl.ds(start, len(x)), columns] = x
        else:
            ref[start, columns] = x
        start += len(x) if x.ndim == 2 else 1
    return start
