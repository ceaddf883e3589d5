"""Typed configuration: dataclasses with constraints in their annotations, filled from plain mappings.

    gamma: Annotated[float, between(0.0, 1.0)]

Ranges are checked once, here, on concrete values, so that the same dataclass can later hold traced ones.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from stoix_like.errors import ConfigError, nearest

T = TypeVar("T")

INT32_MAX = 2**31 - 1
"""The largest size, index or counter of a compiled program."""
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
"""The largest number of a compiled program."""
MAX_SECONDS = 1e6
"""The longest time that is waited for; the calls of some systems count milliseconds in 32 bits."""

_UNIONS = (typing.Union, types.UnionType)
_NONE = type(None)
_CONTAINERS: dict[Any, type] = {list: tuple, Sequence: tuple, tuple: tuple, dict: dict, Mapping: dict}


class Range(NamedTuple):
    """An interval of numbers; `without_low` and `without_high` exclude its ends."""

    low: float = -math.inf
    high: float = math.inf
    without_low: bool = False
    without_high: bool = False

    def __contains__(self, value: Any) -> bool:
        # NaN compares false with everything, so these comparisons put it outside every range.
        above_low = value > self.low if self.without_low else value >= self.low
        below_high = value < self.high if self.without_high else value <= self.high
        return above_low and below_high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"more than {self.low}" if self.without_low else f"at least {self.low}"
        return f"in {'(' if self.without_low else '['}{self.low}, {self.high}{')' if self.without_high else ']'}"


class Choices(NamedTuple):
    """The allowed values of a string."""

    names: tuple[str, ...]


def at_least(low: float) -> Range:
    """Return the range `[low, ∞)`."""
    return Range(low)


def above(low: float) -> Range:
    """Return the range `(low, ∞)`."""
    return Range(low, without_low=True)


def between(low: float, high: float) -> Range:
    """Return the range `[low, high]`."""
    return Range(low, high)


def one_of(*names: str) -> Choices:
    """Return the choice between `names`."""
    return Choices(names)


class Part:
    """Base class of parts: frozen dataclasses of the keys of an option, with all that a configuration asks of it.

    A part is a field of a larger dataclass, which has its keys in addition to its own: with a field
    `target: SoftTarget`, the key `system.tau` sets `config.target.tau`.
    """

    is_replay: ClassVar[bool] = False
    """True if the option is a replay buffer, see `SystemConfig.has_replay`."""

    @property
    def reads_successors(self) -> bool:
        """True if the option reads the true successor of every step."""
        return False

    @property
    def gradient_steps(self) -> int | None:
        """Gradient steps per update, if the option determines them."""
        return None

    @property
    def max_steps_per_env(self) -> int | None:
        """The largest number of steps per environment that the option can count; None: any number."""
        return None

    def policy_space(self, space: Any) -> Any:
        """Return the space of the policy's actions, by default the environment's."""
        return space

    def adapt(self, system: Any, space: Any) -> Any:
        """Return the `System` whose actions, of this space, are the environment's; by default, the same one."""
        return system

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Check the keys; see `SystemConfig.check`, which calls this."""

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user about keys that have no effect; see `SystemConfig.notes`, which has these, too."""
        return ()

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        """Compute the values of the schedules of the option; see `SystemConfig.schedules`, which has these, too."""
        return {}


def flat_hints(schema: Any) -> dict[str, Any]:
    """Return the annotations of a dataclass by key, including its parts."""
    return {key: hint for key, (_, hint) in _places(schema).items()}


def get_value(config: Any, key: str) -> Any:
    """Return the value of a key of a dataclass or of one of its parts."""
    part, _ = _places(config.__class__)[key]
    return getattr(getattr(config, part) if part else config, key)


def replace_values(config: T, values: Mapping[str, Any]) -> T:
    """Return a dataclass with other values, by key, of its own fields and its parts'."""
    schema: Any = type(config)
    places, changes = _places(schema), dict[str, Any]()
    for part in {places[key][0] for key in values}:
        chosen = {key: value for key, value in values.items() if places[key][0] == part}
        changes |= {part: dataclasses.replace(getattr(config, part), **chosen)} if part else chosen
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


@functools.cache
def hints_of(annotated: Any) -> dict[str, Any]:
    """Evaluate the annotations of a class or function, which takes milliseconds."""
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"the annotations of {annotated.__module__}.{annotated.__qualname__} cannot be evaluated ({error}): import"
            " what they name outside of `if TYPE_CHECKING`"
        ) from error


@functools.cache
def _places(schema: Any) -> dict[str, tuple[str, Any]]:
    """Return the field of the part, or an empty string, and the annotation of each key."""
    hints, name = hints_of(schema), f"{schema.__module__}.{schema.__qualname__}"
    own = {} if "__dataclass_fields__" in vars(schema) else inspect.get_annotations(schema)
    if lost := [key for key in own if typing.get_origin(hints[key]) is not ClassVar]:
        raise ConfigError(
            f"{name} has annotations that are not fields, {', '.join(lost)}: decorate it with"
            " @dataclass(frozen=True, kw_only=True)"
        )
    places: dict[str, tuple[str, Any]] = {}
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        if _is_part(hint) and any(map(_is_part, hints_of(hint).values())):
            raise TypeError(f"{schema.__name__}.{field.name} is a part that has parts: list them side by side")
        found = {key: (field.name, inner) for key, inner in flat_hints(hint).items()} if _is_part(hint) else {}
        found = found or {field.name: ("", hint)}
        if twice := places.keys() & found.keys():
            raise TypeError(f"{schema.__name__} has the keys {sorted(twice)} twice")
        places |= found
    return places


def _is_part(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Part)


def from_mapping(schema: type[T], values: Mapping[str, Any], path: str) -> T:
    """Fill a dataclass from a plain mapping.

    Integers may be written as floats (`1e6`). Fields with a default may be missing. Keys of parts stand next to others.
    """
    if isinstance(values, (schema, functools.partial)):
        return typing.cast(T, values)  # a module, which a block with a `_target_` has built
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}={values!r} must be a mapping")
    known = flat_hints(schema)
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown key '{path}.{key}': {nearest(str(key), known)}")
    dataclass_type: Any = schema
    hints, filled = hints_of(dataclass_type), {}
    for field in dataclasses.fields(schema):  # type: ignore[arg-type]
        name = field.name
        if _is_part(hints[name]):
            own = {key: values[key] for key in flat_hints(hints[name]) if key in values}
            filled[name] = from_mapping(hints[name], own, path)
        elif name in values:
            filled[name] = convert(hints[name], values[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"'{path}.{name}' is not set")
    return schema(**filled)


def convert(hint: Any, value: Any, key: str) -> Any:
    """Convert a value to an annotated type, and check its constraints."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        plain, *constraints = typing.get_args(hint)
        converted = convert(plain, value, key)
        for constraint in constraints:
            _check(constraint, converted, key)
        return converted
    if hint in (Any, object, np.dtype):  # dtypes are configured by name
        return value
    if origin in _UNIONS:
        return _convert_to_one(typing.get_args(hint), value, key)
    if hint is _NONE or origin is typing.Literal:
        return _choose((None,) if hint is _NONE else typing.get_args(hint), value, key)
    if _kind(hint) not in (int, float, bool, str, tuple, dict):
        if not isinstance(value, int | float | str | Sequence | Mapping | None):
            return value  # an object that a `_target_` became
        raise ConfigError(
            f"{key}={value} cannot be set: {inspect.formatannotation(hint)} is built by a block with a _target_, in"
            " networks alone; others take int, float, bool, str, a Literal, a tuple, a list, a dict, a dataclass, or a"
            " union of these"
        )
    if value is None:
        raise ConfigError(f"'{key}' is not set: it must be {_describe(hint)}")
    if dataclasses.is_dataclass(hint):
        return from_mapping(typing.cast(type, hint), value, key)
    return _plain(hint, value, key)


def item_hints(hint: Any, count: int) -> tuple[Any, ...]:
    """Return the annotation of each of `count` items of a list; of a tuple of fixed length, of those that it has."""
    items = typing.get_args(hint) or (Any, ...)
    is_fixed = typing.get_origin(hint) is tuple and items[-1] is not Ellipsis
    return items if is_fixed else items[:1] * count


def _convert_to_one(options: Sequence[Any], value: Any, key: str) -> Any:
    """Convert to the option of the type of the value, else to the first that takes it; strings come last."""
    if value is None and _NONE in options:
        return None
    order, refusals = [_kind(type(value)), float, int, str], list[ConfigError]()
    kinds = {option: _kind(option) for option in options if option is not _NONE}
    for option in sorted(kinds, key=lambda one: order.index(kinds[one]) if kinds[one] in order else len(order)):
        try:
            converted = convert(option, value, key)
        except ConfigError as error:
            refusals.append(error)
            continue
        # A number that is out of range is no string.
        if not refusals or not isinstance(converted, str) or isinstance(value, str):
            return converted
    names = [str(name) for option in options for name in _names(option)]
    if isinstance(value, str) and names and bool in kinds.values():
        raise ConfigError(f"{key}={value} is not known: {nearest(value, ('true', 'false', *names))}")
    also = ", or true or false" if bool in kinds.values() and not isinstance(value, bool) else ""
    raise ConfigError(f"{refusals[0]}{also}") from refusals[0]


def _names(option: Any) -> tuple[str, ...]:
    """Return the strings that an option is a choice of; empty for any other option."""
    found = [one.names for one in typing.get_args(option) if isinstance(one, Choices)]
    return found[0] if found else ()


def _choose(choices: Sequence[Any], value: Any, key: str) -> Any:
    for choice in choices:
        if choice in (value, str(value)):
            return choice
    if len(choices) == 1 and not isinstance(choices[0], str):
        raise ConfigError(f"{key}={value} has no effect here: leave it out")
    raise ConfigError(f"{key}={value} is not known: {nearest(str(value), map(str, choices))}")


def _plain(hint: Any, value: Any, key: str) -> Any:
    kind = _kind(hint)
    if kind is tuple and isinstance(value, (list, tuple)):
        hints = item_hints(hint, len(value))
        if len(hints) != len(value):
            raise ConfigError(f"{key}={value} has the wrong length: it must have {len(hints)} entries, as annotated")
        return tuple(convert(one, item, f"{key}[{i}]") for i, (one, item) in enumerate(zip(hints, value, strict=True)))
    if kind is dict and isinstance(value, Mapping):
        item_hint = (typing.get_args(hint) or (Any,))[-1]
        return {name: convert(item_hint, item, f"{key}.{name}") for name, item in value.items()}
    converted = scalar(kind, value)
    if isinstance(converted, float) and not abs(converted) <= FLOAT32_MAX:
        raise ConfigError(f"{key}={value} is out of range: it must be a finite number of 32 bits")
    if converted is None:
        also = f": write [{value}]" if kind is tuple and not isinstance(value, Mapping) else ""
        raise ConfigError(f"{key}={value} has the wrong type: it must be {_describe(hint)}{also}")
    return converted


def _kind(hint: Any) -> Any:
    """Return the plain type that an annotation takes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin is typing.Literal:
        return type(arguments[0])
    return dict if dataclasses.is_dataclass(hint) else _CONTAINERS.get(origin or hint, hint)


def scalar(hint: type, value: Any) -> Any:
    """Convert a configuration value to an instance of `hint`; return None if that is not possible."""
    if isinstance(value, bool):
        return value if hint is bool else None
    if hint in (int, float) and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if hint is int and isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if hint is float and isinstance(value, int):
        return float(value)
    if hint is str and isinstance(value, (int, float)):
        return str(value)
    return value if isinstance(value, hint) else None


def _describe(hint: Any) -> str:
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a string", tuple: "a list"}
    return names.get(_kind(hint), "a mapping")


def _check(constraint: Any, value: Any, key: str) -> None:
    if value is None:
        return
    if isinstance(constraint, Choices) and value not in constraint.names:
        raise ConfigError(f"{key}={value} is not known: {nearest(value, constraint.names)}")
    if isinstance(constraint, Range) and value not in constraint:
        raise ConfigError(f"{key}={value} is out of range: it must be {constraint}")
