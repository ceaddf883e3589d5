"""The registry of loggers, and their construction from a configuration."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from stoix_like.errors import MissingExtraError
from stoix_like.loggers.base import Logger, LoggerSettings, VideoConfig
from stoix_like.loggers.console import ConsoleConfig
from stoix_like.loggers.jsonl import JsonlLogger
from stoix_like.loggers.multi import MultiLogger
from stoix_like.loggers.tensorboard import TensorBoardConfig
from stoix_like.loggers.wandb import WandbConfig
from stoix_like.schema import INT32_MAX, between, from_mapping


@dataclasses.dataclass(frozen=True)
class LoggerConfig:
    """Configuration of `logger`: one field per logger, videos, and metrics between evaluations.

    The metrics file is always written, without keys.
    """

    tensorboard: TensorBoardConfig = dataclasses.field(default_factory=TensorBoardConfig)
    wandb: WandbConfig = dataclasses.field(default_factory=WandbConfig)
    # The console starts last, so that W&B prints above the progress bar, and closes first to restore the terminal.
    console: ConsoleConfig = dataclasses.field(default_factory=ConsoleConfig)
    video: VideoConfig = dataclasses.field(default_factory=VideoConfig)
    # Updates between two records of training metrics; None: only at evaluations.
    every_updates: Annotated[int | None, between(1, INT32_MAX)] = None
    diagnostics: bool = False  # whether every evaluation records dormant units, ranks and norms of the networks


def check_available(config: LoggerConfig) -> None:
    """Check that the packages of the enabled loggers are installed, without importing them, and what else they need."""
    for name, settings in _enabled(config).items():
        if settings.package is not None and not _installed(settings.package):
            raise MissingExtraError(f"logger.{name}", settings.package, "loggers")
        settings.check()


def sending_loggers(values: Mapping[str, Any]) -> list[str]:
    """List the enabled loggers that send data to other machines."""
    found = []
    for name, settings in _settings(LoggerConfig()).items():
        path = f"logger.{name}"
        given = {setting.name: values.get(f"{path}.{setting.name}") for setting in dataclasses.fields(settings)}
        # Flat values hold no lists; they decide nothing here.
        plain_values = {name: value for name, value in given.items() if isinstance(value, bool | int | float | str)}
        if from_mapping(type(settings), plain_values, path).sends_data:
            found.append(name)
    return found


def make_logger(config: LoggerConfig, run_dir: pathlib.Path, own: Sequence[Logger] = ()) -> MultiLogger:
    """Build the loggers of a run; they open and write nothing before `start`."""
    enabled = [settings.make(run_dir) for settings in _enabled(config).values()]
    # The user's own come before the console, so that they print above the progress bar.
    return MultiLogger([JsonlLogger(run_dir / "metrics.jsonl"), *own, *enabled])


def _enabled(config: LoggerConfig) -> dict[str, LoggerSettings]:
    return {name: settings for name, settings in _settings(config).items() if settings.enabled}


def _settings(config: LoggerConfig) -> dict[str, LoggerSettings]:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if isinstance(value, LoggerSettings)}


def _installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a placeholder in `sys.modules`
        return False
    # Without an origin it is a plain directory of that name, such as the `wandb/` that W&B creates.
    return spec is not None and spec.origin is not None
