"""Conversion of configured values to the annotations of the modules that they configure."""

from __future__ import annotations

import collections.abc
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from flax.core import FrozenDict

from stoix_like.errors import ConfigError
from stoix_like.schema import item_hints, scalar

_SCALARS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
_LISTS = (collections.abc.Sequence, list, tuple)
_MAPPINGS = (collections.abc.Mapping, dict)
_ITEMS: Mapping[Any, str] = {int: "integers", float: "numbers", str: "strings", Any: "values"}


@functools.cache
def argument_hints(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of the fields or arguments of a class or function; none where they cannot be resolved."""
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}


def convert(hint: Any, value: Any, key: str, example: Any = None) -> Any:
    """Convert a configured value to an annotation.

    An integer may be written as a float, and a number as a string; only true and false are bools. Annotations that
    configurations cannot express, such as dtypes and protocols, accept every value.
    """
    try:
        return _convert(hint, value)
    except _MismatchError:
        advice = f"it must be {describe(hint)}"
        if isinstance(example, str):
            advice += f", such as {example}"
        elif typing.get_origin(hint) in _LISTS and isinstance(value, (int, float, str)):
            advice += f": write [{value}]"
        raise ConfigError(f"{key}={plain(value)} has the wrong type: {advice}") from None


def describe(hint: Any) -> str:
    """Describe what an annotation accepts in a configuration."""
    if isinstance(hint, type) and hint in _SCALARS:
        return _SCALARS[hint]
    origin, items = typing.get_origin(hint) or hint, typing.get_args(hint) or (Any, ...)
    if origin is tuple and items[-1] is not Ellipsis:
        return f"a list [{', '.join(map(describe, items))}]"
    if origin in _LISTS:
        return f"a list of {_ITEMS[items[0]]}" if items[0] in _ITEMS else "a list"
    if origin in _MAPPINGS:
        return f"{_ITEMS.get((typing.get_args(hint) or (Any,))[-1], 'blocks with a _target_')} by name"
    if _is_callable(hint):
        return "a function, such as {_target_: flax.linen.relu, _partial_: true}"
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if not _is_array(option)]
        # An integer is a number, and a callable, such as an initialiser, is configured by its name.
        covered = {int} if float in options else set()
        covered |= {option for option in options if _is_callable(option) and str in options}
        return " or ".join(describe(option) for option in options if option not in covered)
    if hint is types.NoneType:
        return "null"
    return "a block with a _target_"


def plain(value: Any) -> Any:
    """Return a value as a configuration shows it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(str(plain(item)) for item in value) + "]"
    if isinstance(value, types.SimpleNamespace):
        return "{" + ", ".join(f"{name}: {plain(item)}" for name, item in vars(value).items()) + "}"
    return type(value).__name__ if isinstance(value, nn.Module) else value


class _MismatchError(Exception):
    """A value does not fit an annotation."""


def _convert(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint) or hint
    if origin in (typing.Union, types.UnionType):
        return _convert_to_one(typing.get_args(hint), value)
    if origin in _LISTS:
        hints = item_hints(hint, len(value)) if isinstance(value, (list, tuple)) else ()
        if not isinstance(value, (list, tuple)) or len(hints) != len(value):
            raise _MismatchError
        return tuple(map(_convert, hints, value))
    if origin in _MAPPINGS:
        if not isinstance(value, types.SimpleNamespace):
            raise _MismatchError
        item_hint = (typing.get_args(hint) or (Any,))[-1]
        return FrozenDict({name: _convert(item_hint, item) for name, item in vars(value).items()})
    if isinstance(hint, type) and hint in _SCALARS:
        converted = scalar(hint, value)
        if converted is None or (isinstance(converted, float) and not math.isfinite(converted)):
            raise _MismatchError
        return converted
    if not _accepts(hint, value):
        raise _MismatchError
    return _frozen(value)


def _frozen(value: Any) -> Any:
    """Return a value with frozen dictionaries in place of namespaces, because modules are hashed."""
    if isinstance(value, types.SimpleNamespace):
        return FrozenDict({name: _frozen(item) for name, item in vars(value).items()})
    return tuple(map(_frozen, value)) if isinstance(value, tuple) else value


def _convert_to_one(options: tuple[Any, ...], value: Any) -> Any:
    """Convert to the type of the value if it is among the options, else to the first that fits."""
    for option in sorted(options, key=lambda option: option is not type(value)):
        try:
            return _convert(option, value)
        except _MismatchError:
            continue
    raise _MismatchError


def _accepts(hint: Any, value: Any) -> bool:
    """Return whether an annotation that is neither a scalar nor a list accepts a value."""
    if hint in (None, types.NoneType):
        return value is None
    if _is_callable(hint):
        return callable(value)
    if _is_array(hint) or (isinstance(hint, type) and issubclass(hint, nn.Module)):
        # A partial block is a function that returns the module.
        return isinstance(value, (hint, functools.partial))
    return True


def _is_callable(hint: Any) -> bool:
    return (typing.get_origin(hint) or hint) is collections.abc.Callable


def _is_array(hint: Any) -> bool:
    return hasattr(hint, "array_type")  # the arrays of jaxtyping
