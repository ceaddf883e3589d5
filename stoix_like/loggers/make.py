"""Construction of loggers from a configuration."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib

from stoix_like.errors import MissingExtraError
from stoix_like.loggers.base import Logger
from stoix_like.loggers.console import ConsoleConfig, ConsoleLogger
from stoix_like.loggers.jsonl import JsonlLogger
from stoix_like.loggers.multi import MultiLogger
from stoix_like.loggers.tensorboard import TensorBoardConfig, TensorBoardLogger
from stoix_like.loggers.wandb import WandbConfig, WandbLogger


@dataclasses.dataclass(frozen=True)
class LoggerConfig:
    """Configuration of `logger`. The metrics file is always written and has no keys."""

    console: ConsoleConfig = dataclasses.field(default_factory=ConsoleConfig)
    tensorboard: TensorBoardConfig = dataclasses.field(default_factory=TensorBoardConfig)
    wandb: WandbConfig = dataclasses.field(default_factory=WandbConfig)


def check_available(config: LoggerConfig) -> None:
    """Check that the packages of the enabled loggers are installed, without importing them.

    Args:
        config: configuration of the loggers.

    Raises:
        MissingExtraError: an optional package is missing; names the extra that installs it.
    """
    if config.tensorboard.enabled and not _installed("tensorboardX"):
        raise MissingExtraError("logger.tensorboard", "tensorboardX", "loggers")
    if config.wandb.enabled and not _installed("wandb"):
        raise MissingExtraError("logger.wandb", "wandb", "loggers")


def make_logger(config: LoggerConfig, run_dir: pathlib.Path) -> MultiLogger:
    """Build the loggers of a run; they open and write nothing before `start`.

    Args:
        config: configuration of the loggers other than the metrics file.
        run_dir: the run directory.

    Returns:
        One logger that calls all others and never raises an `Exception`.

    Raises:
        MissingExtraError: an optional package is missing.
    """
    check_available(config)
    loggers: list[Logger] = [JsonlLogger(run_dir / "metrics.jsonl")]
    if config.tensorboard.enabled:
        loggers.append(TensorBoardLogger(run_dir / "tensorboard"))
    if config.wandb.enabled:
        loggers.append(WandbLogger(config.wandb, run_dir))
    # The console starts last, so that W&B prints above the progress bar, and closes first to restore the terminal.
    if config.console.enabled:
        loggers.append(ConsoleLogger(config.console))
    return MultiLogger(loggers)


def _installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a placeholder in `sys.modules`
        return False
    # Without an origin it is a plain directory of that name, such as the `wandb/` that W&B creates.
    return spec is not None and spec.origin is not None
