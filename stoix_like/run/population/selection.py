"""Selections: what changes the members of a population between two intervals of training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from stoix_like.architectures.types import LearnerState
from stoix_like.run.host.saved_state import Best
from stoix_like.run.population.members import Population


class Selected(NamedTuple):
    """The outcome of a selection."""

    state: LearnerState
    population: Population  # the members; their hyperparameters, seeds and settings may have changed
    entries: dict[str, Any]  # what to add to the record of the evaluation, JSON values
    healthy: Sequence[int]  # members that train again, if they had diverged


class Selection(Protocol):
    """A decision about the members after an evaluation, which depends only on the history of the run and its seed."""

    entry: str  # an entry that every selection adds to the record of its evaluation, so that none is made twice
    restarts: bool  # whether members start from scratch, so that a run continues even if all of them diverged

    def is_due(self, evaluation: int) -> bool:
        """Return whether there is a selection after the evaluation with this number; the one at step 0 is number 0."""

    def describe(self, population: Population) -> dict[str, Any]:
        """Return what the record of an evaluation says about the members that were evaluated; by default, nothing."""
        del population
        return {}

    def improved(
        self,
        population: Population,
        scores: np.ndarray,
        failures: Collection[int],
        history: Sequence[Mapping[str, Any]],
        best: Best,
    ) -> np.ndarray | None:
        """Return which members have parameters that replace the best ones kept so far.

        `scores`: `[P]`, their mean episode return in an evaluation.
        Returns booleans `[P]`; None, as here: members with at least as high a return.
        """
        del population, scores, failures, history, best
        return None

    def __call__(self, state: LearnerState, population: Population, history: Sequence[Mapping[str, Any]]) -> Selected:
        """Select."""
