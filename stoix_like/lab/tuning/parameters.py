"""The search space of a sweep."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from stoix_like.errors import ConfigError, listed, nearest
from stoix_like.foreign_keys import rows_of

KEY = "sweep.space"
FORMS = ("uniform", "log_uniform", "int", "log_int", "choice")


class Parameter(NamedTuple):
    """A parameter to optimise."""

    key: str  # its key in the configuration, `system.actor_lr`
    distribution: BaseDistribution  # its range
    traced: bool  # whether trials with different values share one compiled program

    @property
    def field(self) -> str:
        """Name of a hyperparameter of the system, without its group."""
        return self.key.removeprefix("system.")

    @property
    def is_log(self) -> bool:
        """True if the range is logarithmic."""
        return bool(getattr(self.distribution, "log", False))

    @property
    def is_numeric(self) -> bool:
        """True if the values are numbers of a range, rather than choices."""
        return not isinstance(self.distribution, CategoricalDistribution)

    def grid(self, points: int) -> list[Any]:
        """Return the values of a grid: all choices, or evenly spaced points of a range."""
        if isinstance(self.distribution, CategoricalDistribution):
            return list(self.distribution.choices)
        assert isinstance(self.distribution, (FloatDistribution, IntDistribution))
        low, high = self.distribution.low, self.distribution.high
        spaced = np.geomspace(low, high, points) if self.is_log else np.linspace(low, high, points)
        if isinstance(self.distribution, IntDistribution):
            return list(dict.fromkeys(round(value) for value in spaced))
        return [float(np.clip(value, low, high)) for value in spaced]


def parse_space(space: Mapping[str, Any], known: Collection[str], floats: Collection[str]) -> list[Parameter]:
    """Build the parameters of a search space."""
    if not space:
        raise ConfigError(f"{KEY} is empty: give at least one range, {{actor_lr: {{log_uniform: [1e-5, 1e-2]}}}}")
    parameters = [_parameter(str(name), given, known, floats) for name, given in space.items()]
    for key, number in Counter(parameter.key for parameter in parameters).items():
        if number > 1:
            raise ConfigError(f"{KEY} has {key} and {key.removeprefix('system.')}, which are one key: leave out one")
    return parameters


def as_json(space: Any) -> Any:
    """Return a search space as it is read from a file: with lists in place of tuples, and Python's numbers."""
    return json.loads(json.dumps(space, default=lambda number: number.tolist()))


def _parameter(name: str, given: Any, known: Collection[str], floats: Collection[str]) -> Parameter:
    key = name if "." in name else f"system.{name}"
    groups = {known_key.partition(".")[0] for known_key in known}
    if key not in known and name not in groups:
        names = [known_key.removeprefix("system.") for known_key in known]
        rows = [row for row in rows_of(name) if {*row.ours} & {*known}]
        ours = sorted({one.removeprefix("system.") for row in rows for one in row.ours if one in known})
        hint = f"use {listed(ours, 'or')}{rows[0].remark}" if ours else nearest(name, names)
        raise ConfigError(f"{KEY}.{name} is not a key of the configuration: {hint}")
    key = name if name in groups else key
    where = f"{KEY}.{name}={given}"
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in FORMS:
        raise ConfigError(f"{where} must be one of {{{': …}, {'.join(FORMS)}: …}}")
    form, values = next(iter(given.items()))
    if form == "choice":
        if not isinstance(values, list | tuple) or not values:
            raise ConfigError(f"{where} needs a list of values, such as {{choice: [0.1, 0.2]}}")
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        return Parameter(key, CategoricalDistribution(values), _is_float(key, floats) and numbers)
    low, high = _ends(values, where)
    log = form.startswith("log_")
    if log and low <= 0.0:
        raise ConfigError(f"{where} must start above 0")
    if form.endswith("int"):
        if low != int(low) or high != int(high):
            raise ConfigError(f"{where} needs two integers")
        return Parameter(key, IntDistribution(int(low), int(high), log=log), False)
    if not _is_float(key, floats):
        raise ConfigError(f"{where} is a range of floats, and {key} is none: use int, log_int or choice")
    return Parameter(key, FloatDistribution(low, high, log=log), True)


def _is_float(key: str, floats: Collection[str]) -> bool:
    return key.startswith("system.") and key.removeprefix("system.") in floats


def _ends(values: Any, where: str) -> tuple[float, float]:
    numbers = isinstance(values, list | tuple) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not numbers or len(values) != 2 or not values[0] < values[1]:
        raise ConfigError(f"{where} needs two numbers, the lower one first")
    return float(values[0]), float(values[1])
