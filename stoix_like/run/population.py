"""The members of a population: a seed each, and hyperparameters of their own."""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stoix_like.base_types import SystemConfig
from stoix_like.config import PopulationConfig, RunConfig
from stoix_like.errors import ConfigError, nearest
from stoix_like.schema import from_mapping

KEY = "arch.population"


class Population(NamedTuple):
    """A run's members; a run without a population has one, whose hyperparameters are those of the configuration.

    Attributes:
        seeds: member `i` of a run with `arch.seed=s` has the seed `s + i`.
        hyperparams: by name, one float per member.
        strata: by member, which point of the hyperparameters it belongs to.
    """

    seeds: tuple[int, ...]
    hyperparams: dict[str, tuple[float, ...]]
    strata: tuple[int, ...]

    @property
    def num_members(self) -> int:
        """The number of members."""
        return len(self.seeds)

    def of(self, member: int) -> dict[str, float]:
        """The hyperparameters of one member."""
        return {name: values[member] for name, values in self.hyperparams.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """The hyperparameters as the compiled program takes them: `[P]` float32 by name."""
        return {name: np.asarray(values, np.float32) for name, values in self.hyperparams.items()}


def make_population(run: RunConfig) -> Population:
    """Lay out the members that a configuration asks for.

    Args:
        run: the typed configuration.

    Returns:
        The population.

    Raises:
        ConfigError: a hyperparameter that cannot vary, values out of their range, or sizes that do not fit.
    """
    config = run.arch.population
    varied = config.hyperparams or {}
    known = float_fields(type(run.system))
    for name in varied:
        if name not in known:
            raise ConfigError(
                f"{KEY}.hyperparams: '{name}' cannot vary between members; those that can are {', '.join(known)}"
            )
    lists = {name: values for name, values in varied.items() if isinstance(values, (list, tuple))}
    drawn = {name: values for name, values in varied.items() if name not in lists}
    points = _join(lists, config.mode) if lists else [{} for _ in range(_num_points(config))]
    rng = np.random.default_rng(run.arch.seed)
    for name, distribution in sorted(drawn.items()):
        for point, value in zip(points, _draw(rng, name, distribution, len(points)), strict=True):
            point[name] = value
    size = len(points) * config.seeds if varied else len(points)
    if lists and config.size not in (1, size):
        raise ConfigError(
            f"{KEY}.size={config.size} does not fit {len(points)} point(s) x {KEY}.seeds={config.seeds}: leave it out,"
            f" or use {size}"
        )
    repeats = size // len(points)
    members = [point for point in points for _ in range(repeats)]
    if run.arch.seed + size > 2**32:
        raise ConfigError(
            f"arch.seed={run.arch.seed} leaves no room for {size} members: their seeds must be below 2**32"
        )
    checked = [_checked(run.system, member) for member in members]
    return Population(
        seeds=tuple(run.arch.seed + index for index in range(size)),
        hyperparams={name: tuple(member[name] for member in checked) for name in varied},
        strata=tuple(index // repeats for index in range(size)) if varied else (0,) * size,
    )


def float_fields(schema: type[SystemConfig]) -> list[str]:
    """The hyperparameters of a system that may be traced: its float fields."""
    hints = typing.get_type_hints(schema)
    return [field.name for field in dataclasses.fields(schema) if hints[field.name] is float]


def _num_points(config: PopulationConfig) -> int:
    """Points of a population without lists: `size` members, `seeds` of them per point."""
    if not config.hyperparams:
        return max(config.size, config.seeds)
    if config.size % config.seeds:
        raise ConfigError(f"{KEY}.size={config.size} is no multiple of {KEY}.seeds={config.seeds}")
    return config.size // config.seeds


def _join(lists: Mapping[str, Sequence[Any]], mode: str) -> list[dict[str, Any]]:
    for name, values in lists.items():
        if not values:
            raise ConfigError(f"{KEY}.hyperparams.{name}=[] holds no value")
    lengths = {name: len(values) for name, values in lists.items()}
    if mode == "zip" and len(set(lengths.values())) > 1:
        raise ConfigError(
            f"{KEY}.mode=zip needs lists of one length, not {lengths}: make them equal, or use {KEY}.mode=grid"
        )
    rows = itertools.product(*lists.values()) if mode == "grid" else zip(*lists.values(), strict=True)
    return [dict(zip(lists, row, strict=True)) for row in rows]


def _draw(rng: np.random.Generator, name: str, distribution: Any, count: int) -> list[Any]:
    key = f"{KEY}.hyperparams.{name}"
    if not isinstance(distribution, Mapping) or len(distribution) != 1:
        raise ConfigError(f"{key}={distribution} must be a list, or one of {{{'|'.join(_DISTRIBUTIONS)}: [...]}}")
    ((kind, arguments),) = distribution.items()
    if kind not in _DISTRIBUTIONS:
        raise ConfigError(f"{key}: unknown distribution '{kind}': {nearest(str(kind), _DISTRIBUTIONS)}")
    if not isinstance(arguments, (list, tuple)) or not arguments:
        raise ConfigError(f"{key}.{kind}={arguments} must be a list")
    return _DISTRIBUTIONS[kind](rng, f"{key}.{kind}", arguments, count)


def _uniform(rng: np.random.Generator, key: str, arguments: Sequence[Any], count: int) -> list[float]:
    low, high = _ends(key, arguments)
    return rng.uniform(low, high, count).tolist()


def _log_uniform(rng: np.random.Generator, key: str, arguments: Sequence[Any], count: int) -> list[float]:
    low, high = _ends(key, arguments)
    if low <= 0:
        raise ConfigError(f"{key}={list(arguments)} must begin above 0")
    return np.exp(rng.uniform(math.log(low), math.log(high), count)).tolist()


def _choice(rng: np.random.Generator, key: str, arguments: Sequence[Any], count: int) -> list[Any]:
    return [arguments[index] for index in rng.integers(len(arguments), size=count)]


_DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, str, Sequence[Any], int], list[Any]]] = {
    "uniform": _uniform,
    "log_uniform": _log_uniform,
    "choice": _choice,
}


def _ends(key: str, arguments: Sequence[Any]) -> tuple[float, float]:
    try:
        low, high = (float(argument) for argument in arguments)
    except (TypeError, ValueError):
        raise ConfigError(f"{key}={list(arguments)} must be two numbers, [low, high]") from None
    if not low <= high:
        raise ConfigError(f"{key}={list(arguments)} must not end before it begins")
    return low, high


def _checked(system: SystemConfig, hyperparams: Mapping[str, Any]) -> dict[str, float]:
    """The values as the system's own annotations take them."""
    plain = {field.name: getattr(system, field.name) for field in dataclasses.fields(system)}
    member = from_mapping(type(system), {**plain, **hyperparams}, "system")
    return {name: getattr(member, name) for name in hyperparams}
