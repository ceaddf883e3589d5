"""The best setting of a search: by which return it was selected, and what it returns on fresh seeds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoix_like.loggers.formats import center_name
from stoix_like.run.records.records import aggregate
from stoix_like.storage.contents import NUMBER, read_json
from stoix_like.storage.files import write_json

SELECTED = "best.json"
_FORM: dict[str, Any] = {"trials": int, "trial": int, "value": int | float, "params": {}, "fresh_returns": [NUMBER]}
_MAX_BYTES = 2**24


class SelectedMember(NamedTuple):
    """The best setting of a search.

    Attributes:
        trials: number of trials with a return.
        trial: its number.
        value: its return in the search.
        params: its values by key.
        fresh_returns: its return on each fresh seed, NaN where training diverged; empty without any.
    """

    trials: int
    trial: int
    value: float
    params: Mapping[str, Any]
    fresh_returns: Sequence[float] = ()

    def write(self, directory: Path) -> None:
        """Write the setting to the directory of its search."""
        write_json(directory / SELECTED, self._asdict())


def read_selected(directory: Path) -> SelectedMember | None:
    """Read the best setting of a search.

    Args:
        directory: the directory of the search.

    Returns:
        The setting; None if there is none that can be read.
    """
    with contextlib.suppress(OSError, ValueError):
        found = read_json(directory / SELECTED, _MAX_BYTES, _FORM)
        fresh = [math.nan if one is None else one for one in found.pop("fresh_returns")]
        return SelectedMember(**found, fresh_returns=fresh)
    return None


def describe_fresh(returns: Sequence[float]) -> str:
    """Return the interquartile mean of fresh seeds with its 95 % interval, as text.

    Args:
        returns: one per seed; NaN, where training diverged, counts as the lowest.
    """
    found = aggregate(returns, (0,) * len(returns))
    interval = f" [{found['ci_low']:.4g}, {found['ci_high']:.4g}]" if len(returns) > 1 else ""
    lost = sum(map(math.isnan, returns))
    diverged = f", {lost} of which diverged" if lost else ""
    return f"{center_name(len(returns))} {found['iqm']:.4g}{interval} on {len(returns)} fresh seed(s){diverged}"
