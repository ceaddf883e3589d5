"""Members of a population: their seeds and hyperparameters."""

from __future__ import annotations

import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.arch_config import MAX_MEMBERS, PopulationConfig
from stoix_like.base_types import SystemConfig
from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError, multiples_near, nearest
from stoix_like.schema import convert, flat_hints, replace_values

KEY = "arch.population"
_DISTRIBUTIONS = ("uniform", "log_uniform", "choice")


class Population(NamedTuple):
    """The members of a run; without a population, one member with the hyperparameters of the configuration."""

    # One per member; member `i` of a run with `arch.seed=s` has the seed `s + i`.
    seeds: tuple[int, ...]
    hyperparams: dict[str, tuple[float, ...]]  # per-member values by name
    strata: tuple[int, ...]  # one per member, the index of its hyperparameter setting

    @property
    def num_members(self) -> int:
        """The number of members."""
        return len(self.seeds)

    def of(self, member: int) -> dict[str, float]:
        """Return the hyperparameters of one member."""
        return {name: values[member] for name, values in self.hyperparams.items()}

    def with_hyperparams(self, hyperparams: Mapping[str, Sequence[float]]) -> Population:
        """Return the members with other hyperparameters, by name; empty changes nothing."""
        return self._replace(hyperparams=self.hyperparams | {name: tuple(one) for name, one in hyperparams.items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the hyperparameters as arguments of the compiled program: `[P]` float32 by name."""
        return {name: np.asarray(values, np.float32) for name, values in self.hyperparams.items()}


def make_population(run: RunConfig) -> Population:
    """Build the population of a configuration."""
    config = run.arch.population
    size, num_points = count_members(run), _num_points(config)
    varied, lists = config.hyperparams or {}, _lists(config)
    columns = _join(lists, config.mode)
    rng = np.random.default_rng(run.arch.seed)
    for name in sorted(varied.keys() - lists.keys()):
        columns[name] = draw(rng, f"{KEY}.hyperparams.{name}", varied[name], num_points)
    repeats = size // num_points
    seeds = range(run.arch.seed, run.arch.seed + (repeats if config.is_paired else size))
    checked = {name: convert_values(run.system, name, columns[name]) for name in varied}
    return Population(
        seeds=tuple(seeds) * (size // len(seeds)),
        hyperparams={name: _repeat(values, repeats) for name, values in checked.items()},
        # Population-based training changes the settings.
        strata=_repeat(range(num_points), repeats) if checked and not config.evolves else (0,) * size,
    )


def count_members(run: RunConfig) -> int:
    """Return the number of members of a configuration, without building them."""
    config = run.arch.population
    known = float_fields(type(run.system))
    for name in config.hyperparams or {}:
        if name not in known:
            raise ConfigError(f"{KEY}.hyperparams.{name} cannot vary between members: choose from {', '.join(known)}")
    num_points = _num_points(config)
    size = num_points * config.seeds if config.hyperparams else num_points
    if _lists(config) and config.size not in (1, size):
        raise ConfigError(
            f"{KEY}.size={config.size} must equal {num_points} hyperparameter setting(s) × {KEY}.seeds={config.seeds}:"
            f" omit it or use {size}"
        )
    if size > MAX_MEMBERS:
        raise ConfigError(
            f"{KEY}.seeds={config.seeds} × {num_points:,} hyperparameter setting(s) are {size:,} members: use at most"
            f" {MAX_MEMBERS:,}"
        )
    num_seeds = config.seeds if config.is_paired else size
    if run.arch.seed + num_seeds > 2**32:
        raise ConfigError(
            f"arch.seed={run.arch.seed} is too large for {num_seeds} seeds, which must be below 2**32: use at most"
            f" {2**32 - num_seeds}"
        )
    return size


def float_fields(schema: type[SystemConfig]) -> list[str]:
    """Return the names of the hyperparameters that may be traced: the float fields, optional ones included."""
    return [key for key, hint in flat_hints(schema).items() if _is_float(hint)]


def _is_float(hint: Any) -> bool:
    """Return whether an annotation is a float, traced or not, or an optional one, with or without ranges."""
    if typing.get_origin(hint) is typing.Annotated:
        return _is_float(typing.get_args(hint)[0])
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint is float
    return all(option in (type(None), jax.Array) or _is_float(option) for option in typing.get_args(hint))


def _lists(config: PopulationConfig) -> dict[str, Sequence[Any]]:
    """Return the hyperparameters with a list of values."""
    varied = config.hyperparams or {}
    return {name: values for name, values in varied.items() if isinstance(values, (list, tuple))}


def _num_points(config: PopulationConfig) -> int:
    """Return the number of hyperparameter settings; without hyperparameters, the number of members."""
    if not config.hyperparams:
        if 1 not in (config.size, config.seeds) and config.size != config.seeds:
            raise ConfigError(
                f"{KEY}.size={config.size} {KEY}.seeds={config.seeds}: without {KEY}.hyperparams, both are the number"
                " of members: omit one"
            )
        return max(config.size, config.seeds)
    if lists := _lists(config):
        return _num_combinations(lists, config.mode)
    if config.size % config.seeds:
        raise ConfigError(
            f"{KEY}.size={config.size} must be a multiple of {KEY}.seeds={config.seeds}: use"
            f" {multiples_near(config.size, config.seeds)}"
        )
    return config.size // config.seeds


def _num_combinations(lists: Mapping[str, Sequence[Any]], mode: str) -> int:
    for name, values in lists.items():
        if not values:
            raise ConfigError(f"{KEY}.hyperparams.{name}=[] is empty: use at least one value")
    lengths = {name: len(values) for name, values in lists.items()}
    if mode == "grid":
        return math.prod(lengths.values())
    if len(set(lengths.values())) > 1:
        raise ConfigError(
            f"{KEY}.mode=zip needs lists of equal length, not {lengths}: make them equal or use {KEY}.mode=grid"
        )
    return max(lengths.values())


def _join(lists: Mapping[str, Sequence[Any]], mode: str) -> dict[str, Sequence[Any]]:
    """Return the values of each list by hyperparameter setting."""
    if mode == "zip" or not lists:
        return dict(lists)
    return dict(zip(lists, zip(*itertools.product(*lists.values()), strict=True), strict=True))


def _repeat(values: Iterable[Any], repeats: int) -> tuple[Any, ...]:
    """Repeat each value, one after the other."""
    return tuple(value for value in values for _ in range(repeats))


def draw(rng: np.random.Generator, key: str, distribution: Any, count: int) -> list[Any]:
    """Draw values of a hyperparameter."""
    if not isinstance(distribution, Mapping) or len(distribution) != 1:
        a_list = "" if ".bounds." in key else "a list or "
        raise ConfigError(f"{key}={distribution} must be {a_list}{{{'|'.join(_DISTRIBUTIONS)}: [...]}}")
    ((kind, arguments),) = distribution.items()
    if kind not in _DISTRIBUTIONS:
        raise ConfigError(f"{key}.{kind} is not a distribution: {nearest(str(kind), _DISTRIBUTIONS)}")
    if not isinstance(arguments, (list, tuple)) or not arguments:
        raise ConfigError(f"{key}.{kind}={arguments} must be a list")
    key = f"{key}.{kind}"
    if kind == "choice":
        return [arguments[index] for index in rng.integers(len(arguments), size=count)]
    low, high = ends(key, arguments, above_zero=kind == "log_uniform")
    if kind == "uniform":
        return rng.uniform(low, high, count).tolist()
    return np.exp(rng.uniform(math.log(low), math.log(high), count)).tolist()


def bounded(config: PopulationConfig, bounds: Mapping[str, Any] | None, where: str) -> dict[str, tuple[str, Any]]:
    """Return by name what varying hyperparameters are drawn from: `bounds`, or else their first values."""
    varied, bounds = config.hyperparams or {}, bounds or {}
    for name in bounds:
        if name not in varied:
            raise ConfigError(f"{where}.{name} does not vary: give it values in {KEY}.hyperparams, or omit it")
    return {
        name: (f"{where}.{name}", bounds[name]) if name in bounds else (f"{KEY}.hyperparams.{name}", values)
        for name, values in varied.items()
    }


def ends(key: str, arguments: Sequence[Any], above_zero: bool = False) -> tuple[float, float]:
    """Check the ends of a range."""
    try:
        low, high = (float(argument) for argument in arguments)
    except (TypeError, ValueError):
        raise ConfigError(f"{key}={arguments} must be two numbers, [low, high]") from None
    if not low <= high or not math.isfinite(high - low):
        raise ConfigError(f"{key}={list(arguments)} must be [low, high] with low <= high, at a finite distance")
    if above_zero and low <= 0:
        raise ConfigError(f"{key}={list(arguments)} must start above 0")
    return low, high


def check_ends(run: RunConfig, limits: dict[str, tuple[str, Any, Any]], check: Callable[[SystemConfig], None]) -> None:
    """Let the system check the ends of all ranges, in all pairs of ranges."""
    lowest: dict[str, Any] = {name: low for name, (_, low, _) in limits.items()}
    for one, other in itertools.combinations_with_replacement(limits, 2):
        for values in itertools.product(limits[one][1:], limits[other][1:]):
            try:
                check(replace_values(run.system, lowest | {one: values[0], other: values[1]}))
            except ConfigError as error:
                keys = " and ".join(dict.fromkeys((limits[one][0], limits[other][0])))
                raise ConfigError(f"an end of {keys} does not fit: {error}") from error


def convert_values(system: SystemConfig, name: str, values: Sequence[Any]) -> tuple[float, ...]:
    """Check the values of a hyperparameter against its annotation, and convert them."""
    hint = flat_hints(type(system))[name]
    if None in values:
        raise ConfigError(f"{KEY}.hyperparams.{name}={list(values)} must be numbers: one program has no null members")
    return tuple(convert(hint, value, f"system.{name}") for value in values)
