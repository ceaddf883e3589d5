"""Memory checks before allocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from stoix_like.architectures.axes import POPULATION_AXIS
from stoix_like.errors import ConfigError
from stoix_like.run.devices import memory_of


def check(program: Any, mesh: Mesh, num_members: int, sizes: Sequence[str]) -> None:
    """Refuse a program that needs more memory than its devices have.

    Args:
        program: a compiled program.
        mesh: its devices.
        num_members: number of members of the whole run.
        sizes: keys of the configuration that determine the memory of a member.

    Raises:
        ConfigError: shows the arithmetic, and the largest population that fits.
    """
    analysis = program.memory_analysis()
    if analysis is None:
        return
    needed = (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    available = _available(mesh)
    if needed <= available:
        return
    remedy = f"use a smaller {' or '.join(sizes)}"
    if num_members == 1:
        raise ConfigError(f"the run needs {_gib(needed)} per device, but only {_gib(available)} is available: {remedy}")
    per_device = num_members // mesh.shape[POPULATION_AXIS]
    share = needed / per_device
    largest = int(available // share) * mesh.shape[POPULATION_AXIS]
    raise ConfigError(
        f"arch.population.size={num_members} needs {_gib(needed)} per device ({per_device} member(s) ×"
        f" {_gib(share)}), but only {_gib(available)} is available: "
        + (f"use at most {largest}" if largest else f"no member fits; {remedy}")
    )


def check_replay(local: Any, mesh: Mesh, num_members: int, update_batches: int, stored_twice: bool) -> tuple[str, ...]:
    """Report the size of the replay buffer, and refuse one that needs more memory than its devices have.

    Args:
        local: shapes of the per-shard state of one member.
        mesh: the devices.
        num_members: number of members of the whole run.
        update_batches: shards per device.
        stored_twice: whether next observations are stored as well.

    Returns:
        Notes for the user; empty without a replay buffer.

    Raises:
        ConfigError: shows the arithmetic, and the largest size that fits.
    """
    shard = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(local))
    if not shard:
        return ()
    members = num_members // mesh.shape[POPULATION_AXIS]
    needed, available = members * update_batches * shard, _available(mesh)
    arithmetic = f"{members} member(s) × {update_batches} update batch(es) × {_gib(shard)} = {_gib(needed)} per device"
    if needed > available:
        raise ConfigError(
            f"system.total_buffer_size is too large: the replay buffer needs {arithmetic}, but only {_gib(available)}"
            f" is available: use at most {available / needed:.2g} times that size"
            + (", or up to twice as many steps with system.store_next_observation=false" if stored_twice else "")
        )
    return (f"replay buffer: {arithmetic}",)


def _available(mesh: Mesh) -> int:
    """Return the memory of each device in bytes; the devices of a CPU divide its memory."""
    first = mesh.devices.flat[0]
    return memory_of(first) // (mesh.size if first.platform == "cpu" else 1)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.3g} MiB"
