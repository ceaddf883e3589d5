"""Which cases of a parametrised test run with which target of make."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def select(cases: Iterable[Any], quick: Collection[Any] = (), slow: Collection[Any] = ()) -> list[Any]:
    """Mark cases: those in `quick` run with every target, those in `slow` with the slow tests, others exhaustively.

    A case that is in neither list, such as a new system, costs the slow tests nothing; the lists hold one case for each
    piece of code that the test is about.
    """
    unknown = {*quick, *slow} - {*(cases := list(cases))}
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not cases of this test: choose from {cases}")

    def mark(case: Any) -> Any:
        if case in quick:
            return case
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=pytest.mark.slow if case in slow else pytest.mark.exhaustive)

    return [mark(case) for case in cases]
