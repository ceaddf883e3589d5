"""The cases of a parametrised test that the quick tests run."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def select(cases: Iterable[Any], quick: Collection[Any] = ()) -> list[Any]:
    """Mark all cases as slow but those in `quick`: one for each piece of code that the test is about."""
    unknown = {*quick} - {*(cases := list(cases))}
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not cases of this test: choose from {cases}")

    def mark(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return case if case in quick else pytest.param(*values, marks=pytest.mark.slow)

    return [mark(case) for case in cases]
