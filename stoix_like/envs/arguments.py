"""Validation of the arguments of environments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from stoix_like.errors import ConfigError, nearest, raised_at, reason
from stoix_like.schema import scalar
from stoix_like.user_code import user_errors

T = TypeVar("T")


def check_scenario(
    suite: str, name: str, known: Iterable[str], unsupported: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Check that a suite has a scenario."""
    if name in unsupported:
        raise ConfigError(f"env.scenario.name={name!r} is not supported: {unsupported[name]}")
    if name not in (names := list(known)):
        if not name:
            raise ConfigError(f"env={suite} names no environment: add env.scenario.name=…: {nearest(name, names)}")
        raise ConfigError(f"env.scenario.name={name!r} is not a scenario of {suite}: {nearest(name, names)}")


def refuse_several_players(name: str) -> None:
    """Refuse an environment with several players."""
    raise ConfigError(f"env.scenario.name={name!r} has several players: only environments of one player are supported")


def check_names(key: str, given: Mapping[str, Any], known: Iterable[str], owner: str) -> None:
    """Check that a scenario has parameters of the given names."""
    names = list(known)
    for name, value in given.items():
        if name not in names:
            hint = nearest(name, names) if names else "it has none"
            raise ConfigError(f"{key}.{name}={value!r} is not a parameter of {owner}: {hint}")


def check_choice(key: str, value: Any, known: Iterable[str], owner: str) -> None:
    """Check that a value is one of the names that a scenario knows."""
    if value not in (names := list(known)):
        raise ConfigError(f"{key}={value!r} is not one of {owner}: {nearest(str(value), names)}")


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function or class; any, as `**kwargs`, where Python does not know them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]


def construct(cls: Callable[..., T], kwargs: Mapping[str, Any], owner: str, key: str = "env.kwargs", *args: Any) -> T:
    """Construct an environment or a wrapper from the configuration."""
    parameters = parameters_of(cls)[len(args) :]
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        check_names(key, kwargs, [parameter.name for parameter in parameters], owner)
    for name, value in kwargs.items():
        if _has_target(value):
            raise ConfigError(
                f"{key}.{name}={value} is not built, because only networks nest blocks with a _target_: pass plain"
                f" values to {owner}, and build it there, or use a key of another name"
            )
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{key}.{name}={value} is invalid for {owner}: it must be a number")
    try:
        return cls(*args, **kwargs)
    except user_errors() as error:
        raise ConfigError(f"{key}={dict(kwargs)} is invalid for {owner}: {reason(error)}{raised_at(error)}") from error


def _has_target(value: Any) -> bool:
    """Return whether a value has a block with a `_target_`."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_has_target, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_target, value))


def fit_params(
    defaults: Mapping[str, Any],
    params: Mapping[str, Any],
    owner: str,
    positive: Collection[str] = ("max_steps_in_episode",),
    key: str = "env.params",
) -> dict[str, Any]:
    """Convert `env.params`, or arguments of a constructor, to the types of their defaults.

    `defaults`: default by name of each parameter that the scenario has; None accepts any value.
    """
    check_names(key, params, defaults, owner)
    fitted = {}
    for name, value in params.items():
        default = defaults[name]
        fitted[name] = value if default is None else _fit(value, default)
        if default is not None and not _is_valid(fitted[name]):
            example = np.asarray(default).tolist()
            raise ConfigError(f"{key}.{name}={value!r} is invalid for {owner}: use a value such as {example!r}")
        if name in positive and fitted[name] < 1:
            raise ConfigError(f"{key}.{name}={value!r} must be at least 1")
    return fitted


def _is_valid(value: Any) -> bool:
    return isinstance(value, str) or (value is not None and bool(np.all(np.isfinite(value))))


def _fit(value: Any, default: Any) -> Any:
    if np.ndim(default):
        return _array_like(value, default)
    converted = scalar(type(np.asarray(default).item()), value)
    return _array_like(converted, default) if hasattr(default, "dtype") and converted is not None else converted


def _array_like(value: Any, default: Any) -> np.ndarray | None:
    try:
        array = np.asarray(value, np.asarray(default).dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.shape == np.shape(default) else None


def count(least: int = 1, **named: Any) -> int:
    """Return the one named number if it is between `least` and the largest length."""
    ((name, given),) = named.items()
    if (value := scalar(int, given)) is None or not least <= value <= 100_000:
        raise ValueError(f"{name}={given} must be an integer from {least} to 100,000")
    return value
