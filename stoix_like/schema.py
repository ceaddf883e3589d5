"""Typed configuration: dataclasses whose fields say what they accept, filled from plain mappings.

A field takes its range from `dataclasses.field(metadata=...)` with the keys `min`, `max`, `exclusive_min`,
`exclusive_max` (whether the end itself is left out) and `choices`; the functions below write that down shortly.
Ranges are checked here, once, on concrete values, so that a dataclass may later hold traced ones.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from stoix_like.errors import ConfigError, nearest

T = TypeVar("T")


def at_least(minimum: float) -> Any:
    """A field whose value is `minimum` or more."""
    return dataclasses.field(metadata={"min": minimum})


def above(minimum: float) -> Any:
    """A field whose value is more than `minimum`."""
    return dataclasses.field(metadata={"min": minimum, "exclusive_min": True})


def between(minimum: float, maximum: float) -> Any:
    """A field whose value lies in `[minimum, maximum]`."""
    return dataclasses.field(metadata={"min": minimum, "max": maximum})


def inside(minimum: float, maximum: float) -> Any:
    """A field whose value lies strictly between `minimum` and `maximum`."""
    return dataclasses.field(
        metadata={"min": minimum, "max": maximum, "exclusive_min": True, "exclusive_max": True},
    )


def one_of(*choices: str) -> Any:
    """A field whose value is one of `choices`."""
    return dataclasses.field(metadata={"choices": choices})


def from_mapping(schema: type[T], values: Mapping[str, Any], path: str) -> T:
    """Fill a dataclass from a plain mapping.

    Whole numbers may be written as floats (`1e6`). Fields with a default may be absent.

    Args:
        schema: a dataclass; fields may be int, float, bool, str, dict, tuple, optional, or dataclasses again.
        values: what the configuration holds, without interpolations.
        path: where `values` stands in the configuration, for messages: `system`.

    Returns:
        An instance of `schema`.

    Raises:
        ConfigError: an unknown or absent key, a value of the wrong type or out of its range.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}={values!r} must be a group of keys")
    fields = {field.name: field for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise ConfigError(f"unknown key '{path}.{key}': {nearest(str(key), fields)}")
    hints = typing.get_type_hints(schema)
    filled = {}
    for name, field in fields.items():
        if name in values:
            filled[name] = _convert(hints[name], values[name], f"{path}.{name}")
            _check_range(field.metadata, filled[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"'{path}.{name}' is not set")
    return schema(**filled)


def _convert(hint: Any, value: Any, key: str) -> Any:
    if hint is Any:
        return value
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
    if value is None:
        raise ConfigError(f"'{key}' is not set: it takes {_describe(hint)}")
    if dataclasses.is_dataclass(hint):
        return from_mapping(typing.cast(type, hint), value, key)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{key}={value} must be a list")
        return tuple(_convert(typing.get_args(hint)[0], item, f"{key}[{i}]") for i, item in enumerate(value))
    if typing.get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value} must be a group of keys")
        return dict(value)
    converted = _scalar(hint, value)
    if converted is None:
        raise ConfigError(f"{key}={value} has the wrong type: it takes {_describe(hint)}")
    return converted


def _scalar(hint: type, value: Any) -> Any:
    """`value` as an instance of `hint`, or None where it is none."""
    if hint in (int, float) and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if hint is int and isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool) and hint is not bool:
        return None
    return value if isinstance(value, hint) else None


def _describe(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(hint, "a group of keys")


def _check_range(metadata: Mapping[str, Any], value: Any, key: str) -> None:
    if value is None:
        return
    choices = metadata.get("choices")
    if choices is not None and value not in choices:
        raise ConfigError(f"{key}={value} is not known: {nearest(str(value), choices)}")
    low, high = metadata.get("min", -math.inf), metadata.get("max", math.inf)
    if low == -math.inf and high == math.inf:
        return
    open_low, open_high = metadata.get("exclusive_min", False), metadata.get("exclusive_max", False)
    # Written so that NaN, which compares false with everything, is refused as well.
    inside_low = value > low if open_low else value >= low
    inside_high = value < high if open_high else value <= high
    if not (inside_low and inside_high):
        raise ConfigError(f"{key}={value} is out of range: it must be {_interval(low, high, open_low, open_high)}")


def _interval(low: float, high: float, open_low: bool, open_high: bool) -> str:
    if high == math.inf:
        return f"more than {low}" if open_low else f"at least {low}"
    if low == -math.inf:
        return f"less than {high}" if open_high else f"at most {high}"
    return f"in {'(' if open_low else '['}{low}, {high}{')' if open_high else ']'}"
