"""Hyperparameters that are explored: their ranges, and what an exploration returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Space(NamedTuple):
    """The range in which one hyperparameter is explored.

    Attributes:
        low: smallest value.
        high: largest value.
        is_log: whether values are changed by a factor and drawn log-uniformly, or by a distance and uniformly.
    """

    low: float
    high: float
    is_log: bool

    def to_unit(self, values: Sequence[float]) -> np.ndarray:
        """Return where values lie in the range, as fractions of its length; of its logarithm, if `is_log`."""
        low, high = self._ends()
        found = np.log(values) if self.is_log else np.asarray(values, np.float64)
        return np.clip((found - low) / (high - low or 1.0), 0.0, 1.0)

    def from_unit(self, fractions: np.ndarray) -> np.ndarray:
        """Return the values at fractions of the range."""
        low, high = self._ends()
        found = low + (high - low) * fractions
        return np.clip(np.exp(found) if self.is_log else found, self.low, self.high)

    def _ends(self) -> tuple[float, float]:
        return (math.log(self.low), math.log(self.high)) if self.is_log else (self.low, self.high)


class Explored(NamedTuple):
    """The outcome of an exploration.

    Attributes:
        hyperparams: by name, a value for each member.
        is_new: whether each member takes these values; the others keep their own.
        entries: what to add to the record of the evaluation, JSON values.
    """

    hyperparams: Mapping[str, Sequence[float] | np.ndarray]
    is_new: Sequence[bool]
    entries: Mapping[str, Any]
