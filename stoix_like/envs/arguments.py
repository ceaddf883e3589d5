"""Refusing arguments of environments in a sentence that names the key, the value and what would do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from stoix_like.errors import ConfigError, nearest

T = TypeVar("T")


def check_scenario(suite: str, name: str, known: Iterable[str]) -> None:
    """Refuse a scenario that a suite does not have.

    Args:
        suite: its name.
        name: what was asked for.
        known: the scenarios that there are.

    Raises:
        ConfigError: with the nearest names.
    """
    names = list(known)
    if name not in names:
        raise ConfigError(f"env.scenario.name={name!r} is not a scenario of {suite}; {nearest(name, names)}")


def check_names(key: str, given: Mapping[str, Any], known: Iterable[str], owner: str) -> None:
    """Refuse names that `owner` does not know.

    Args:
        key: of the config, such as `env.kwargs`.
        given: values by name.
        known: the names that there are.
        owner: the scenario.

    Raises:
        ConfigError: with the nearest names.
    """
    names = list(known)
    for name, value in given.items():
        if name not in names:
            hint = nearest(name, names) if names else "it takes none"
            raise ConfigError(f"{key}.{name}={value!r} is not known to {owner}; {hint}")


def construct(cls: Callable[..., T], kwargs: Mapping[str, Any], owner: str) -> T:
    """Make an environment from `env.kwargs`.

    Args:
        cls: its class.
        kwargs: arguments of the constructor by name.
        owner: the scenario.

    Returns:
        The environment.

    Raises:
        ConfigError: if an argument is unknown or refused by the constructor.
    """
    check_names("env.kwargs", kwargs, inspect.signature(cls).parameters, owner)
    try:
        return cls(**kwargs)
    except (TypeError, ValueError, AssertionError) as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(f"env.kwargs={dict(kwargs)} is refused by {owner}: {reason}") from error
