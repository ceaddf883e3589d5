"""Sums and means over mapped axes."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from stoix_like.utils.accelerate.platform import on_cpu

PyTree = Any


def sum_over(tree: PyTree, axis_names: Sequence[str]) -> PyTree:
    """Sum every leaf over mapped axes.

    On CPUs, the parts of the devices are gathered and added in the order of the devices: the result does not depend on
    the transport, which is another one between processes than within one.
    """
    over_devices = on_cpu() and jax.sharding.get_abstract_mesh().axis_names
    ordered = [name for name in axis_names if over_devices and name in over_devices]
    others = tuple(name for name in axis_names if name not in ordered)
    if others:
        tree = jax.lax.psum(tree, others)
    for name in ordered:
        tree = _sum_in_order(tree, name)
    return tree


def mean_over(tree: PyTree, axis_names: Sequence[str]) -> PyTree:
    """Average every leaf over mapped axes."""
    if not axis_names:
        return tree
    count = math.prod(jax.lax.axis_size(name) for name in axis_names)
    return jax.tree.map(lambda total: total / count, sum_over(tree, axis_names))


def vary_alike(*arrays: jax.Array) -> list[jax.Array]:
    """Mark arrays as varying over the same mapped axes, as loops and custom gradients need them."""
    axes = frozenset[Any]().union(*map(_varying, arrays))
    return [_vary(array, axes) for array in arrays]


def _vary(array: jax.Array, axes: Set[Any]) -> jax.Array:
    return jax.lax.pcast(array, tuple(axes - _varying(array)), to="varying")


def _varying(array: jax.Array) -> frozenset[Any]:
    """Return the mapped axes that an array varies over; none where `shard_map` does not check that."""
    kind: Any = getattr(jax.typeof(array), "manual_axis_type", None)  # a name that versions of JAX differ in
    return frozenset() if kind is None else kind.varying


def _sum_in_order(tree: PyTree, axis_name: str) -> PyTree:
    """Sum over the devices of an axis in their order; all arrays of a type travel at once."""
    leaves, structure = jax.tree.flatten(jax.tree.map(_number, tree))
    sums: dict[int, jax.Array] = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        flat, split = ravel_pytree({index: leaf for index, leaf in enumerate(leaves) if leaf.dtype == dtype})
        flat = _vary(flat, {axis_name})
        # Where `shard_map` checks which arrays vary, sums do not; elsewhere a sum has the gradient of `psum`.
        parts = jax.lax.all_gather(flat, axis_name, to="invarying" if axis_name in _varying(flat) else "varying")
        sums |= split(functools.reduce(operator.add, parts))
    return jax.tree.unflatten(structure, [sums[index] for index in range(len(leaves))])


def _number(leaf: Any) -> jax.Array:
    """Return an array that can be summed: booleans are counted, as by `psum`."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.int32) if leaf.dtype == jnp.bool_ else leaf
