"""The mapped axes of a program: population, device and batch, from the outside in.

A shard is one update batch on one device. `shared` has no batch axis: programs return it with `out_axes=None`, so that
tracing fails if a system forgets to average over shards. Where each device has one shard, nothing is vmapped, and
`ShardProgram.check_averages` traces an update of custom systems for all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from stoix_like.base_types import Axes
from stoix_like.errors import ConfigError

POPULATION_AXIS = "population"
DEVICE_AXIS = "device"
BATCH_AXIS = "batch"


def make_mesh(devices: Sequence[jax.Device], spread_members: bool = False) -> Mesh:
    """Build a mesh with the axes `population` and `device`; one of them has all devices."""
    shape = (len(devices), 1) if spread_members else (1, len(devices))
    grid = np.asarray(devices).reshape(shape)
    return Mesh(grid, (POPULATION_AXIS, DEVICE_AXIS), axis_types=(AxisType.Auto, AxisType.Auto))


def make_axes(mesh: Mesh, lone_shards: bool = False) -> Axes:
    """Return the axes that a batch is spread over.

    A device axis of size one is omitted to avoid its collectives, and a batch axis of size one because jax traces the
    loops of what it vectorises twice.
    """
    device = (DEVICE_AXIS,) if mesh.shape[DEVICE_AXIS] > 1 else ()
    return Axes(device if lone_shards else (*device, BATCH_AXIS))


def partition_specs(num_members: int) -> tuple[PartitionSpec, PartitionSpec]:
    """Return the partition specs of arrays on the mesh."""
    if num_members == 1:
        return PartitionSpec(), PartitionSpec(DEVICE_AXIS)
    return PartitionSpec(POPULATION_AXIS), PartitionSpec(POPULATION_AXIS, DEVICE_AXIS)


def map_over_shards(
    function: Callable[..., Any], axes: Axes, in_axes: Any, out_axes: Any, num_shards: int, keep_lone_axis: bool = False
) -> Callable[..., Any]:
    """Vectorise a function over the shards of one device. `in_axes`: 0 or None per argument, as for `vmap`."""
    if num_shards > 1 or keep_lone_axis:
        return _checked(jax.vmap(function, in_axes, out_axes, axis_name=BATCH_AXIS))
    lone = function
    if BATCH_AXIS in axes.names:
        lone = jax.vmap(function, in_axes=None, out_axes=None, axis_size=1, axis_name=BATCH_AXIS)

    def mapped(*args: Any) -> Any:
        squeezed = _at_mapped_leaves(lambda leaf: leaf[0], in_axes, args)
        return _at_mapped_leaves(lambda leaf: leaf[None], out_axes, lone(*squeezed))

    return mapped


def _checked(mapped: Callable[..., Any]) -> Callable[..., Any]:
    """Name what is missing where an output that has no axis, such as `Agent.shared`, differs between shards."""

    def call(*args: Any) -> Any:
        try:
            return mapped(*args)
        except ValueError as error:
            if "out_axes is None" not in str(error):
                raise
            raise ConfigError(
                "Agent.shared or a metric differs between the shards of a device: average what is learned from"
                " different shards by spec.axes.mean"
            ) from error

    return call


def _at_mapped_leaves(function: Callable[[jax.Array], Any], axes: Any, tree: Any) -> Any:
    """Apply a function to the leaves whose entry in `axes`, a prefix of the tree, is not None."""

    def apply(axis: int | None, subtree: Any) -> Any:
        return subtree if axis is None else jax.tree.map(function, subtree)

    return jax.tree.map(apply, axes, tree, is_leaf=lambda axis: axis is None)
