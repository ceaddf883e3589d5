"""Selections: what changes the members of a population between two intervals of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stoix_like.architectures.types import LearnerState
from stoix_like.run.population.members import Population


class Selected(NamedTuple):
    """The outcome of a selection."""

    state: LearnerState
    population: Population  # the members; their hyperparameters may have changed
    entries: dict[str, Any]  # what to add to the record of the evaluation, JSON values
    healthy: Sequence[int]  # members that train again, if they had diverged


class Selection(Protocol):
    """A decision about the members after an evaluation, which depends only on the history of the run and its seed."""

    entry: str  # an entry that every selection adds to the record of its evaluation, so that none is made twice

    def is_due(self, evaluation: int) -> bool:
        """Return whether there is a selection after the evaluation with this number; the one at step 0 is number 0."""

    def __call__(self, state: LearnerState, population: Population, history: Sequence[Mapping[str, Any]]) -> Selected:
        """Select."""
