"""Overrides of the configuration, given from Python."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stoix_like.errors import ConfigError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Overrides = Sequence[str] | Mapping[str, Any]
"""A list, `["env=gymnax/acrobot", "arch.seed=1"]`, or a dictionary, `{"env": "gymnax/acrobot", "arch.seed": 1}`."""


def to_overrides(overrides: Overrides) -> list[str]:
    """Convert overrides to Hydra's form."""
    if isinstance(overrides, str):
        raise ConfigError(
            f"overrides={overrides!r} is a string: pass a list, [{overrides!r}], or a dictionary of keys and values"
        )
    if isinstance(overrides, Mapping):
        return [f"{_key(key)}={_value(key, value)}" for key, value in overrides.items()]
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(f"overrides: {override!r} is not a string: write 'key=value', or pass a dictionary")
    return list(overrides)


def check_given_once(overrides: Sequence[str], **arguments: Any) -> None:
    """Refuse an override of a choice that is another argument.

    `**arguments`: the choices that are arguments, such as `system`; None: not given.
    """
    for override in overrides:
        group, _, value = override.partition("=")
        # A dictionary sets keys of the choice.
        if arguments.get(group) not in (None, value) and not value.startswith("{"):
            raise ConfigError(
                f"{override}: {group} is given twice, as an argument and as an override: leave the override out"
            )


def with_overrides(function: FunctionT) -> FunctionT:
    """Let a function that takes overrides say so where a key is passed as an argument."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        unknown = {name: value for name, value in kwargs.items() if name not in parameters}
        if unknown:
            first = next(iter(parameters))
            raise TypeError(
                f"{function.__name__}() has no argument {' and no '.join(unknown)}: keys of the configuration are"
                f" overrides, {function.__name__}({first}, {unknown!r})"
            )
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def _key(key: Any) -> str:
    if not isinstance(key, str) or "=" in key:
        raise ConfigError(f"overrides: the key {key!r} must be a string without '=', such as 'arch.seed'")
    return key


def _value(key: str, value: Any) -> str:
    """Write a value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # also float64, which is a float
        return _value(key, value.item())
    if isinstance(value, (int, float)):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_name(key, name)}:{_value(key, item)}' for name, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_value(key, item) for item in value)}]"
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if not isinstance(value, str):
        raise ConfigError(
            f"{key}={value!r} is a {type(value).__name__}: use a string, a number, true, false, None, a list or a"
            " dictionary"
        )
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_/]*", value) and value.lower() not in _WORDS:
        return value
    return quoted(value)


def _name(key: str, name: Any) -> str:
    """Write the key of a dictionary, which Hydra's grammar takes without quotes only."""
    if isinstance(name, str) and not re.fullmatch(r"[\w.$%*@?+/-]+( +[\w.$%*@?+/-]+)*", name):
        raise ConfigError(f"{key}: an override cannot have the key {name!r}: write it in a YAML file")
    return name if isinstance(name, str) else _value(key, name)


def is_hydras(override: str) -> bool:
    """Return whether an override is one of Hydra's own configuration, such as `hydra.launcher.n_jobs=2`."""
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


def is_launchers(override: str) -> bool:
    """Return whether an override chooses or configures Hydra's launcher."""
    return is_hydras(override) and override.lstrip("+~")[len("hydra.") :].startswith("launcher")


def quoted(text: str) -> str:
    """Quote a text as the value of an override, whatever characters it contains."""
    # In Hydra's grammar, backslashes escape only in front of a quote.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text) + "'"


# Unquoted, these are no strings.
_WORDS = ("true", "false", "null", "nan", "inf")
