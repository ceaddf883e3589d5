"""Validation of the arguments of environments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from stoix_like.errors import ConfigError, nearest

T = TypeVar("T")


def check_scenario(suite: str, name: str, known: Iterable[str]) -> None:
    """Check that a suite has a scenario.

    Args:
        suite: name of the suite.
        name: name of the scenario.
        known: names of the suite's scenarios.

    Raises:
        ConfigError: if the scenario is unknown; the message suggests similar names.
    """
    names = list(known)
    if name not in names:
        raise ConfigError(f"env.scenario.name={name!r} is not a scenario of {suite}: {nearest(name, names)}")


def check_names(key: str, given: Mapping[str, Any], known: Iterable[str], owner: str) -> None:
    """Check that a scenario has parameters of the given names.

    Args:
        key: the config key that holds them, such as `env.kwargs`.
        given: values by name.
        known: names that the scenario accepts.
        owner: name of the scenario.

    Raises:
        ConfigError: if a name is unknown; the message suggests similar names.
    """
    names = list(known)
    for name, value in given.items():
        if name not in names:
            hint = nearest(name, names) if names else "it has none"
            raise ConfigError(f"{key}.{name}={value!r} is not a parameter of {owner}: {hint}")


def construct(cls: Callable[..., T], kwargs: Mapping[str, Any], owner: str) -> T:
    """Construct an environment from `env.kwargs`.

    Args:
        cls: class of the environment.
        kwargs: arguments of the constructor by name.
        owner: name of the scenario.

    Returns:
        The environment.

    Raises:
        ConfigError: if an argument is unknown or the constructor rejects its value.
    """
    check_names("env.kwargs", kwargs, inspect.signature(cls).parameters, owner)
    try:
        return cls(**kwargs)
    except (TypeError, ValueError, AssertionError, NotImplementedError) as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(f"env.kwargs={dict(kwargs)} is invalid for {owner}: {reason}") from error
