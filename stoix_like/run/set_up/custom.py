"""Custom callbacks and loggers, from import paths or as Python objects."""

from __future__ import annotations

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
    built = [_build(entry, f"{CALLBACKS}.{number}") for number, entry in enumerate(config.callbacks)]
    stop = config.arch.stop_at_return
    short = [] if stop is None else [StopAtReturn(stop)]
    for callback in config.custom_callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks has a {type(callback).__name__}: use an object of a subclass of"
                " stoix_like.callbacks.Callback"
            )
    return [*short, *built, *config.custom_callbacks]


def _build(entry: Any, key: str) -> Callback:
    built = build_target(entry, key, "my_module.MyCallback")
    if not isinstance(built, Callback):
        raise ConfigError(
            f"{key}._target_={entry['_target_']} returned a {type(built).__name__}: use a subclass of"
            " stoix_like.callbacks.Callback"
        )
    return built


def make_custom_loggers(config: RunConfig) -> list[Logger]:
    """Build the custom loggers: those of the configuration, and those passed from Python."""
    found = []
    for name, entry in config.loggers.items():
        key = f"logger.{name}"
        logger = build_target(entry, key, "my_module.MyLogger")
        found.append(_checked(logger, f"{key}._target_={entry['_target_']} returned"))
    return found + [_checked(logger, "loggers has") for logger in config.custom_loggers]


def _checked(logger: Any, where: str) -> Logger:
    missing = [name for name in _METHODS if not callable(getattr(logger, name, None))]
    if missing or isinstance(logger, type):
        what = f"the class {logger.__name__}" if isinstance(logger, type) else f"a {type(logger).__name__}"
        lacks = "" if isinstance(logger, type) else f" without {', '.join(missing)}"
        raise ConfigError(f"{where} {what}{lacks}: use an object of a subclass of stoix_like.loggers.Logger")
    checked: Logger = logger
    return checked
