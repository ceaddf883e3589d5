"""Returns of the members of a checkpoint, and which of them is the best."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoix_like.errors import ConfigError
from stoix_like.storage.recorded_runs import RETURN
from stoix_like.storage.run_files import read_summary


class Returns(NamedTuple):
    """Returns of the members of a checkpoint in the evaluations of their parameters."""

    returns: np.ndarray  # `[]` or `[P]` mean evaluation return; NaN where the parameters were not evaluated
    lacking: np.ndarray  # likewise, for which members the parameters are the last ones, not the best
    ranks: np.ndarray | None  # `[P]`, the highest for the best member, where that is not the one of the highest return

    @property
    def best_member(self) -> int:
        return best_member(self.returns if self.ranks is None else self.ranks)


def best_member(*scores: Any) -> int:
    """Return the index of the member with the highest first score `[P]`; of ties, by the next, then the middle one."""
    best = np.arange(np.size(scores[0]))
    for score in scores:
        ranked = np.nan_to_num(np.ravel(score)[best], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        best = best[ranked == ranked.max()]
    return int(best[(len(best) - 1) // 2])


def named_best(run_dir: Path, step: int) -> int | None:
    """Return the member that the summary of a run names as its best; None unless the run ended at this step."""
    summary = read_summary(run_dir)
    return summary.get("population/best", {}).get("member") if summary.get("env_steps") == step else None


def last_evaluation(host_state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of the last evaluation before a checkpoint."""
    history: list[Mapping[str, Any]] = host_state["progress"]["history"]
    if not history:
        raise ConfigError("the checkpoint is from before the first evaluation: resume the run first")
    return history[-1]


def returns_of(host_state: Mapping[str, Any], step: int, best: bool) -> Returns:
    """Return how the members of a checkpoint did."""
    last = last_evaluation(host_state)
    # A run that stopped between two evaluations did not evaluate its last parameters.
    evaluated = last["env_steps"] == step
    returns = np.full(np.shape(last[RETURN]), last[RETURN] if evaluated else np.nan, float)
    frozen = at_members(last.get("population/failed", ()), returns.shape)
    if evaluated and (sources := last.get("population/continues")):
        # A member that was replaced has the parameters of another one.
        returns, frozen = returns[np.asarray(sources)], frozen[np.asarray(sources)]
    lacking = np.ones(returns.shape, bool)
    if best and "best" in host_state:
        lacking = lacks_best(host_state)
        returns = np.where(lacking, returns, np.asarray(host_state["best"]["episode_return"], float))
    # A frozen policy is no result; the best one from before is.
    return Returns(returns, lacking, np.where(lacking & frozen, np.nan, returns) if frozen.any() else None)


def lacks_best(host_state: Mapping[str, Any]) -> np.ndarray:
    """Return for which members a checkpoint holds no best parameters, but those before the first update.

    Such a run was stopped before its second evaluation.

    Returns booleans `[]` or `[P]`.
    """
    return np.asarray(host_state["best"]["env_steps"]) <= host_state["progress"]["history"][0]["env_steps"]


def at_members(indices: Collection[int], shape: tuple[int, ...]) -> np.ndarray:
    """Return which members are among some."""
    return np.isin(np.arange(math.prod(shape)).reshape(shape), list(indices))
