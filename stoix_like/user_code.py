"""Code of users: objects imported by their path, and functions that a configuration names.

Whatever such code raises, `SystemExit` included, is a refusal that names the key, the object and what went wrong.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from stoix_like import signals
from stoix_like.errors import ConfigError, raised_at, reason

P = ParamSpec("P")
R = TypeVar("R")


def user_errors() -> tuple[type[BaseException], ...]:
    """Return what code of users may raise, for `except`; Ctrl-C, and the exit for a signal, are the program's own."""
    return (Exception,) if signals.received() is not None else (Exception, SystemExit)


def import_object(path: Any, key: str, wanted: str) -> Any:
    """Import an object."""
    module, _, name = str(path).rpartition(".")
    if not module:
        raise ConfigError(f"{key}={path} is not an import path: {wanted}")
    with refusing(f"{key}={path} cannot be imported", wanted):
        return getattr(importlib.import_module(module), name)


def name_of(value: Any) -> Any:
    """Return how messages and records name a function of a user."""
    function = value
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    if not callable(function):
        return value
    function = function if hasattr(function, "__qualname__") else type(function)
    path = f"{function.__module__}.{function.__qualname__}"
    code = getattr(function, "__code__", None)
    if code is None or not ("<" in path or function.__module__ == "__main__"):
        return path
    return f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"


@contextlib.contextmanager
def refusing(problem: str, advice: str) -> Iterator[None]:
    """Turn whatever code of users raises into a refusal `{problem} ({reason}): {advice}`."""
    try:
        yield
    except ConfigError:
        raise
    except user_errors() as error:
        place = raised_at(error).strip(" ()")
        raise ConfigError(f"{problem} ({', '.join(filter(None, (reason(error), place)))}): {advice}") from error


def guarded(
    function: Callable[P, R], key: str, name: Any, form: str, fault: Callable[[R], str | None]
) -> Callable[P, R]:
    """Return a function that refuses what a function of a user raises, and results that are not what it must return.

    `fault`: says what is wrong with a result, as in `returns a list`; None if nothing is.
    """
    advice, name = f"it must be a function {form}", name_of(name)
    if not callable(function):
        raise ConfigError(f"{key}={name} is not a function: {advice}")

    @functools.wraps(function, updated=())
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with refusing(f"{key}={name} failed", advice):
            result = function(*args, **kwargs)
            wrong = "returns None" if result is None else fault(result)
        if wrong is not None:
            raise ConfigError(f"{key}={name} {wrong}: {advice}")
        return result

    return call
