"""The cases of a parametrised test that the quick tests run."""

import pytest


def first(quick, cases):
    """Mark all cases but the first ones as slow: those of the same kind, in other words."""
    return [*cases[:quick], *map(_mark_slow, cases[quick:])]


def select(cases, quick=()):
    """Mark all cases as slow but those in `quick`: one for each piece of code that the test is about."""
    unknown = {*quick} - {*(cases := list(cases))}
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not cases of this test: choose from {cases}")

    return [case if case in quick else _mark_slow(case) for case in cases]


def _mark_slow(case):
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
