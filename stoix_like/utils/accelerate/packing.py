"""Trees of small arrays as one array: an accelerator launches one kernel for all of them instead of one for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.utils.accelerate.platform import on_cpu, on_gpu

TreeT = TypeVar("TreeT")

# Larger rows, such as images, are worth a kernel of their own, and would be stored in four bytes per pixel.
_LARGEST_ROW = 256
_BY_NAME = "statistics", "parts"


@partial(jax.tree_util.register_dataclass, data_fields=("rows", "others"), meta_fields=("structure", "layout"))
@dataclass(frozen=True)
class Packed:
    """A tree of arrays that share their leading axes, as one array."""

    # `[..., K]` float32, or uint32 if any leaf is of another type; the entries of each packed leaf, side by side.
    rows: Any
    others: tuple[Any, ...]  # the leaves that are not packed
    structure: Any = field(metadata={"static": True})  # the structure of the tree
    # For each leaf, the shape behind its leading axes and its type; None for one of `others`.
    layout: tuple[tuple[tuple[int, ...], Any] | None, ...] = field(metadata={"static": True})


def pack(tree: Any, num_dims: int = 0, chosen: Callable[[jax.Array], bool] = lambda leaf: True) -> Packed:
    """Pack the leaves of a tree side by side.

    `tree`: arrays of the same leading axes.
    `num_dims`: number of leading axes.
    `chosen`: whether to pack a leaf; leaves of types without four bytes, but for flags, stay apart in any case.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    packed = [_fits(leaf.dtype) and chosen(leaf) for leaf in leaves]
    inside = [leaf for leaf, is_packed in zip(leaves, packed, strict=True) if is_packed]
    floats = all(leaf.dtype == jnp.float32 for leaf in inside)
    columns = [leaf.reshape(*leaf.shape[:num_dims], -1) for leaf in inside]
    return Packed(
        rows=jnp.concatenate(columns if floats else [_to_bits(column) for column in columns], -1) if columns else (),
        others=tuple(leaf for leaf, is_packed in zip(leaves, packed, strict=True) if not is_packed),
        structure=structure,
        layout=tuple(
            (leaf.shape[num_dims:], leaf.dtype) if is_packed else None
            for leaf, is_packed in zip(leaves, packed, strict=True)
        ),
    )


def unpack(tree: Any) -> Any:
    """Undo `pack` once in every part of a tree; other parts pass through."""
    return jax.tree.map(unpack_state, tree, is_leaf=_is_packed)


def is_packed(tree: Any) -> bool:
    """Return whether any part of a tree is packed."""
    return any(map(_is_packed, jax.tree.leaves(tree, is_leaf=_is_packed)))


def pack_examples(tree: TreeT, num_dims: int) -> TreeT | Packed:
    """Pack what is small of each example, from which batches are gathered, on accelerators."""
    return tree if on_cpu() else pack_rows(tree, num_dims)


def pack_outputs(tree: TreeT, num_dims: int) -> TreeT | Packed:
    """Pack what is small of the outputs of a step, which a loop stores, on GPUs."""
    return pack_rows(tree, num_dims) if on_gpu() else tree


def pack_state(tree: TreeT, num_envs: int) -> TreeT | Packed:
    """Pack the state of environments `[N, ...]`, which a loop copies in each pass, on GPUs, if it is small."""
    rows = [leaf for leaf in jax.tree.leaves(tree) if leaf.shape[:1] == (num_envs,)]
    if not on_gpu() or sum(math.prod(leaf.shape[1:]) for leaf in rows) > _LARGEST_ROW:
        return tree
    return pack(tree, 1, lambda leaf: leaf.shape[:1] == (num_envs,))


def pack_rows(tree: Any, num_dims: int, largest: int = _LARGEST_ROW) -> Packed:
    """Pack what has few numbers for each entry of a batch, at most `largest`."""
    return pack(tree, num_dims, lambda leaf: math.prod(leaf.shape[num_dims:]) <= largest)


def split_rows(steps: Any) -> tuple[Any, tuple[Any, ...]]:
    """Take the rows that are not packed, such as images, out of a batch."""
    return (replace(steps, others=()), steps.others) if _is_packed(steps) else (steps, ())


def join_rows(steps: Any, large: tuple[Any, ...], chosen: jax.Array | None) -> Any:
    """Undo `split_rows` for a part of a batch.

    `chosen`: which of them belong to the part; None where there are none.
    """
    return replace(steps, others=tuple(x[chosen] for x in large)) if large else steps


def pack_metrics(metrics: Any) -> Packed:
    """Pack metrics as floats, to average rows; flags and counts packed as bits could not be averaged."""
    return pack(jax.tree.map(lambda metric: jnp.asarray(metric, jnp.float32), metrics))


def pack_params(tree: TreeT) -> TreeT:
    """Pack each dictionary of float32 arrays, such as parameters and their moments, into a vector on accelerators.

    A function of optax treats the vector as it treats the dictionary. On CPUs, where vectors were slower, all stays; on
    TPUs matrices do: their layout differs from a vector's.
    """
    if on_cpu():
        return tree
    packed = jax.tree.map(_pack_dict, tree, is_leaf=lambda node: isinstance(node, dict))
    stay = {name: getattr(tree, name) for name in _BY_NAME if hasattr(tree, name)}
    return replace_fields(packed, **stay) if stay else packed


def replace_fields(state: TreeT, **values: Any) -> TreeT:
    """Return a named tuple, or a dataclass such as flax's `TrainState`, with other values of some fields."""
    replaced: Any = state
    return replaced._replace(**values) if hasattr(state, "_replace") else replace(replaced, **values)


def pack_scalars(tree: Any, apart: bool = True) -> Any:
    """Pack the scalars of a tuple, such as the counters of optimisers, on GPUs.

    `apart`: whether each entry is packed alone, because one may be the same on all shards, such as the shared state of
    an agent, and another not.
    """
    pack_entry = partial(pack, chosen=lambda leaf: leaf.ndim == 0)
    return tree if not on_gpu() else _at_entries(pack_entry, tree) if apart else pack_entry(tree)


def unpack_scalars(tree: Any) -> Any:
    """Undo `pack_scalars`; what was packed inside of the entries before stays so."""
    return tree if not on_gpu() else unpack_state(tree) if _is_packed(tree) else _at_entries(unpack_state, tree)


def _at_entries(function: Callable[[Any], Any], tree: Any) -> Any:
    if not isinstance(tree, tuple):
        return function(tree)
    entries = map(function, tree)
    return tree._make(entries) if hasattr(tree, "_make") else tuple(entries)


def fori_loop(start: Any, stop: Any, body: Callable[[Any, TreeT], TreeT], first: TreeT, apart: bool = True) -> TreeT:
    """Run `jax.lax.fori_loop`, with the scalars of its carry packed on GPUs; `apart` as in `pack_scalars`."""

    def packed_body(i: Any, carry: Any) -> Any:
        return pack_scalars(body(i, unpack_scalars(carry)), apart)

    return unpack_scalars(jax.lax.fori_loop(start, stop, packed_body, pack_scalars(first, apart)))


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], first: Any, inputs: Any, length: int | None = None
) -> tuple[Any, Any]:
    """Run `jax.lax.scan`, with the scalars of its carry packed on GPUs, if it is a loop."""
    if (len(jax.tree.leaves(inputs)[0]) if length is None else length) == 1:
        return jax.lax.scan(step, first, inputs, length)

    def packed_step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        carry, outputs = step(unpack_scalars(carry), inputs)
        return pack_scalars(carry), outputs

    last, outputs = jax.lax.scan(packed_step, pack_scalars(first), inputs, length)
    return unpack_scalars(last), outputs


def _pack_dict(node: Any) -> Any:
    if not isinstance(node, dict) or not node or any(leaf.dtype != jnp.float32 for leaf in jax.tree.leaves(node)):
        return node
    return pack(node, chosen=lambda leaf: on_gpu() or leaf.ndim < 2)


def unpack_state(node: Any) -> Any:
    """Undo `pack` of a tree, such as by `pack_state`; what was packed inside before stays so."""
    if not _is_packed(node):
        return node
    inside = [entry for entry in node.layout if entry is not None]
    # The transpose of a split is one concatenation, of slices a sum of padded arrays.
    sizes = [math.prod(shape) for shape, _ in inside]
    columns = jax.lax.split(node.rows, sizes, axis=node.rows.ndim - 1) if sizes else ()
    pairs = zip(columns, inside, strict=True)
    unpacked = (_from_bits(column, dtype).reshape(*column.shape[:-1], *shape) for column, (shape, dtype) in pairs)
    others = iter(node.others)
    return jax.tree.unflatten(node.structure, [next(others if entry is None else unpacked) for entry in node.layout])


def _is_packed(node: Any) -> bool:
    return isinstance(node, Packed)


def _fits(dtype: Any) -> bool:
    return bool(dtype == jnp.bool_) or (dtype.itemsize == 4 and jnp.issubdtype(dtype, jnp.number))


def _to_bits(x: jax.Array) -> jax.Array:
    return x.astype(jnp.uint32) if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, jnp.uint32)


def _from_bits(x: jax.Array, dtype: Any) -> jax.Array:
    if x.dtype == dtype:
        return x
    return x.astype(dtype) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, dtype)
