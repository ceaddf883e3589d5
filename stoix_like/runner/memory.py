"""Whether a program fits into memory, before anything is allocated."""

from __future__ import annotations

from typing import Any

from jax.sharding import Mesh

from stoix_like.errors import ConfigError
from stoix_like.runner.devices import POPULATION_AXIS, memory_of


def check(program: Any, mesh: Mesh, population: int) -> None:
    """Refuse a program that needs more memory than its devices have.

    Args:
        program: compiled.
        mesh: its devices.
        population: members of the whole run.

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
    first = mesh.devices.flat[0]
    # The devices that a CPU is split into share one memory.
    available = memory_of(first) // (mesh.size if first.platform == "cpu" else 1)
    if needed <= available:
        return
    per_device = population // mesh.shape[POPULATION_AXIS]
    share = needed / per_device
    largest = int(available // share) * mesh.shape[POPULATION_AXIS]
    raise ConfigError(
        f"arch.population.size={population} needs {_gib(needed)} on each device, {per_device} member(s) x"
        f" {_gib(share)}, and there are {_gib(available)}: "
        + (f"at most {largest} would fit" if largest else "not even one would fit; use fewer environments")
    )


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
