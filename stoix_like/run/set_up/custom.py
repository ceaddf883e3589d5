"""Custom callbacks and loggers, from import paths or as Python objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoix_like.callbacks import Callback, StopAtReturn
from stoix_like.config import CALLBACKS, RunConfig
from stoix_like.envs.custom import build_target
from stoix_like.errors import ConfigError
from stoix_like.loggers import Logger

_METHODS = ("start", "log", "finish", "close")


def as_tuple(name: str, given: Any) -> tuple[Any, ...]:
    """Return what is passed from Python as a sequence."""
    try:
        return tuple(given)
    except TypeError:
        raise ConfigError(f"{name}={type(given).__name__} is not a list: pass {name}=[…]") from None


def make_callbacks(config: RunConfig) -> list[Callback]:
    """Build the callbacks of a run: of `arch.stop_at_return`, of the configuration, and those passed from Python."""
    named = {f"{CALLBACKS}.{number}": entry for number, entry in enumerate(config.callbacks)}
    found = _build(named, "my_module.MyCallback") + [("callbacks has", one) for one in config.custom_callbacks]
    for where, callback in found:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"{where} a {type(callback).__name__}: use an object of a subclass of stoix_like.callbacks.Callback"
            )
    stop = config.arch.stop_at_return
    return [*([] if stop is None else [StopAtReturn(stop)]), *(callback for _, callback in found)]


def make_custom_loggers(config: RunConfig) -> list[Logger]:
    """Build the custom loggers: those of the configuration, and those passed from Python."""
    found = _build({f"logger.{name}": entry for name, entry in config.loggers.items()}, "my_module.MyLogger")
    return [_checked(one, where) for where, one in found + [("loggers has", one) for one in config.custom_loggers]]


def _build(entries: Mapping[str, Any], example: str) -> list[tuple[str, Any]]:
    """Build objects from import paths by key, each with where it comes from."""
    built = {key: build_target(entry, key, example) for key, entry in entries.items()}
    return [(f"{key}._target_={entries[key]['_target_']} returned", found) for key, found in built.items()]


def _checked(logger: Any, where: str) -> Logger:
    missing = [name for name in _METHODS if not callable(getattr(logger, name, None))]
    if missing or isinstance(logger, type):
        what = f"the class {logger.__name__}" if isinstance(logger, type) else f"a {type(logger).__name__}"
        lacks = "" if isinstance(logger, type) else f" without {', '.join(missing)}"
        raise ConfigError(f"{where} {what}{lacks}: use an object of a subclass of stoix_like.loggers.Logger")
    checked: Logger = logger
    return checked
