"""Settings trained again on seeds on which nothing was selected."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stoix_like.lab.tuning.runner import Job, Runner, population_overrides
from stoix_like.storage.recorded_runs import identity

# First seeds of the finalists of a search, and of the best setting, relative to `arch.seed`, where a search starts.
FINALISTS, FRESH = 1_000_000, 2_000_000


def train_again(
    runner: Runner,
    name: str,
    settings: Sequence[Mapping[str, Any]],
    traced: Collection[str],
    seeds: int,
    first_seed: int,
    objective: str,
) -> list[list[float]]:
    """Train settings on other seeds; those that differ only in traced hyperparameters are one population."""
    # None is no value of a member.
    own = [[key for key in setting if key in traced and setting[key] is not None] for setting in settings]
    groups: dict[str, list[int]] = {}
    for place, (setting, varied) in enumerate(zip(settings, own, strict=True)):
        fixed = {key: value for key, value in setting.items() if key not in varied}
        groups.setdefault(identity([fixed, sorted(varied)]), []).append(place)
    jobs = {}
    for number, places in enumerate(groups.values()):
        # Without a traced hyperparameter, all of them are the same setting.
        members = [settings[place] for place in (places if own[places[0]] else places[:1])]
        population = population_overrides(members, own[places[0]], seeds, paired=True)
        jobs[Job(f"{name}/{number:02d}", (*population, f"arch.seed={first_seed}"))] = places
    found: dict[int, list[float]] = {}

    def read(job: Job) -> None:
        places = jobs[job]
        size = len(places) if own[places[0]] else 1
        returns = runner.returns(job, size, seeds, objective)
        found.update({place: returns[index % size] for index, place in enumerate(places)})

    runner.train(jobs, read)
    return [found[place] for place in range(len(settings))]
