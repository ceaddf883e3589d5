"""What a logger is, and what it is told."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class RunInfo(NamedTuple):
    """What is known of a run before its first step."""

    run_dir: pathlib.Path
    system: str  # ppo/ff_ppo
    environment: str  # gymnax/CartPole-v1
    seed: int
    num_updates: int
    total_timesteps: int  # budget in environment steps
    num_evaluations: int
    config: dict[str, Any]  # resolved, of plain Python values
    notes: tuple[str, ...] = ()  # what the run wants to say aloud, such as a budget rounded down
    devices: str = ""  # in words: 2 x cpu
    members: int = 1  # of the population
    history: Sequence[Mapping[str, Any]] = ()  # the records that a resumed run has behind it


class Logger(Protocol):
    """Where a run's numbers go.

    A record is a flat mapping from names to Python numbers, to None where there is nothing (no episode has finished),
    or to one value per member of a population. Its `env_steps` is the axis that curves are drawn over.
    """

    name: str

    def start(self, info: RunInfo) -> None:
        """Called once, before the first record."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Called with the numbers of each evaluation window."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Called once when a run has reached its end; not after an exception."""

    def close(self) -> None:
        """Called last, whatever has happened, also where `start` was never reached."""


def plain(value: Any) -> Any:
    """Turn a value into what strict JSON can hold.

    Args:
        value: numbers, strings, None, arrays, and lists and mappings of them.

    Returns:
        The same in Python's own types; None in the place of NaN and infinities.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, one per curve.

    Args:
        record: as `Logger.log` takes it.

    Returns:
        Each number by its name; the members of a list as `name/0`, `name/1`, ...; what holds no number is left out.
    """
    curves: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, list | tuple):
            curves |= scalars({f"{name}/{member}": item for member, item in enumerate(value)})
        elif isinstance(value, int | float):
            curves[name] = value
    return curves
