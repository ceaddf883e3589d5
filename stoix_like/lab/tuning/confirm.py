"""Settings trained again on seeds on which nothing was selected."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stoix_like.errors import ConfigError
from stoix_like.lab.tuning.runner import Job, Runner, population_overrides

# First seeds of the finalists of a search, and of the best setting, relative to `arch.seed`, where a search starts.
FINALISTS, FRESH = 1_000_000, 2_000_000
_MAX_SEED = 2**31


def check_seed(seed: int) -> None:
    """Refuse a seed of a search that leaves no valid further seeds for runs."""
    if seed > _MAX_SEED:
        raise ConfigError(f"arch.seed={seed} leaves no room for the further seeds of a search: use at most {_MAX_SEED}")


def train_again(
    runner: Runner,
    name: str,
    settings: Sequence[Mapping[str, Any]],
    traced: Collection[str],
    seeds: int,
    first_seed: int,
    objective: str,
) -> list[list[float]]:
    """Train settings that differ only in traced hyperparameters on other seeds, as one population."""
    # None is no value of a member.
    varied = [key for key in settings[0] if key in traced and settings[0][key] is not None]
    population = population_overrides(settings, varied, seeds, paired=True)
    found: list[list[float]] = []

    def read(job: Job) -> None:
        found.extend(runner.returns(job, len(settings), seeds, objective))

    runner.train([Job(f"{name}/00", (*population, f"arch.seed={first_seed}"))], read)
    return found
