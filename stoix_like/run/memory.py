"""Whether a program fits into memory, before anything is allocated."""

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
        program: compiled.
        mesh: its devices.
        num_members: members of the whole run.
        sizes: the keys that a member's memory follows.

    Raises:
        ConfigError: with the arithmetic, and the largest population that would fit.
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
        raise ConfigError(f"the run needs {_gib(needed)} on each device, and there are {_gib(available)}: {remedy}")
    per_device = num_members // mesh.shape[POPULATION_AXIS]
    share = needed / per_device
    largest = int(available // share) * mesh.shape[POPULATION_AXIS]
    raise ConfigError(
        f"arch.population.size={num_members} needs {_gib(needed)} on each device, {per_device} member(s) x"
        f" {_gib(share)}, and there are {_gib(available)}: "
        + (f"at most {largest} would fit" if largest else f"not even one would fit; {remedy}")
    )


def check_replay(local: Any, mesh: Mesh, num_members: int, update_batches: int, stored_twice: bool) -> tuple[str, ...]:
    """Say how large the replay will be, and refuse one that needs more memory than its devices have.

    Args:
        local: shapes of what belongs to one shard of one member.
        mesh: the devices.
        num_members: members of the whole run.
        update_batches: shards on each device.
        stored_twice: whether observations are stored as successors as well.

    Returns:
        What to say aloud; nothing where there is no replay.

    Raises:
        ConfigError: with the arithmetic, and what would fit.
    """
    shard = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(local))
    if not shard:
        return ()
    members = num_members // mesh.shape[POPULATION_AXIS]
    needed, available = members * update_batches * shard, _available(mesh)
    arithmetic = (
        f"{members} member(s) x {update_batches} update batch(es) x {_gib(shard)} = {_gib(needed)} on each device"
    )
    if needed > available:
        raise ConfigError(
            f"system.total_buffer_size is too large: the replay takes {arithmetic}, and there are {_gib(available)};"
            f" at most {available / needed:.2g} of that size would fit"
            + (", or up to twice as many steps with system.store_next_observation=false" if stored_twice else "")
        )
    return (f"the replay takes {arithmetic}",)


def _available(mesh: Mesh) -> int:
    """The memory of each device in bytes; the devices that a CPU is split into share one memory."""
    first = mesh.devices.flat[0]
    return memory_of(first) // (mesh.size if first.platform == "cpu" else 1)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.3g} MiB"
