"""Words for the settings in which runs differ, for listings and for the labels of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoix_like.storage.recorded_runs import Run, differing_keys, identity, samples, settings

_FEW = 3
# How long and how often, which is no part of an algorithm.
BUDGETS = (
    "arch.total_timesteps",
    "arch.num_evaluation",
    "arch.num_eval_episodes",
    "arch.absolute_metric",
    "arch.stop_at_return",
)


def tell_apart(runs: Sequence[Run], tasks: Sequence[str]) -> list[str]:
    """Tell runs of one system on one task apart by their settings."""
    places: dict[tuple[str, str], list[int]] = {}
    for place, (run, task) in enumerate(zip(runs, tasks, strict=True)):
        places.setdefault((run.system, task), []).append(place)
    told: dict[int, str] = {}
    for alike in places.values():
        found = [samples(runs[place]) for place in alike]
        ones = [members[0] for members in found]
        chosen = [settings(member, ("env", "arch.population", *BUDGETS)) for member in ones]
        for one, members in zip(chosen, found, strict=True):
            if len(members) > 1:
                one |= {f"system.{name}": "varied" for name in members[0].hyperparams}
        differing = differing_keys(chosen)
        rows = [{key: one.get(key) for key in differing} for one in chosen]
        names = names_of_keys(rows)
        told |= {place: " ".join(words_of(row, rows, names)) for place, row in zip(alike, rows, strict=True)}
    return [told[place] for place in range(len(runs))]


def words_of(own: dict[str, Any], rivals: Sequence[dict[str, Any]], names: dict[str, str]) -> list[str]:
    """Write the settings in which one differs from its rivals: a few, and as many more as tell it apart from all."""
    keys = [key for key in names if any(other[key] != own[key] for other in rivals)]
    named = keys[:_FEW]
    alike = [other for other in rivals if all(format_value(other[key]) == format_value(own[key]) for key in named)]
    for key in keys[_FEW:]:
        still = [other for other in alike if format_value(other[key]) == format_value(own[key])]
        if len(still) < len(alike):
            named.append(key)
            alike = still
    return [f"{names[key]}={format_value(own[key])}" for key in named]


def names_of_keys(differences: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Name keys by as many of their last words as tell them apart.

    Keys with the same last word and always the same value are named once, such as the cells of actor and critic.
    """
    kept: dict[tuple[str, str], str] = {}
    for key in differences[0] if differences else ():
        if key != "system.name":
            values = identity([own[key] for own in differences])
            kept.setdefault((key.rpartition(".")[2], values), key)
    return {key: _shortest(key, [*kept.values()]) for key in kept.values()}


def _shortest(key: str, keys: Sequence[str]) -> str:
    """Return the fewest last words of a dotted key with which no other key ends."""
    words = key.split(".")
    ends = (".".join(words[start:]) for start in range(len(words) - 1, 0, -1))
    return next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)


def format_value(value: Any) -> str:
    """Write the value of a setting in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
