"""Errors that a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and what would do."""


class TrainingError(RuntimeError):
    """Training cannot go on: a metric or a parameter was no finite number any more."""


class MissingExtraError(ConfigError):
    """An optional package is not installed; the message names the extra that brings it."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package '{package}': pip install 'stoix_like[{extra}]'")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names what `name` may have been meant to be.

    Args:
        name: what was asked for.
        known: what there is.

    Returns:
        `did you mean 'a' or 'b'?`, or, where nothing is close, the list of what there is.
    """
    names = sorted(set(known))
    if not names:
        return "there is none"
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if not close:
        close = [candidate for candidate in names if name and name.lower() in candidate.lower()][:3]
    if close:
        return "did you mean " + " or ".join(f"'{match}'" for match in close) + "?"
    return "there is: " + ", ".join(names)


def multiples_near(value: int, divisor: int) -> str:
    """The positive multiples of `divisor` on both sides of `value`, in words."""
    lower = value // divisor * divisor
    return " or ".join(str(multiple) for multiple in (lower, lower + divisor) if multiple)
