"""The loggers that a configuration asks for."""

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
    """The keys of `logger`. The metrics file is always written and has none."""

    console: ConsoleConfig = dataclasses.field(default_factory=ConsoleConfig)
    tensorboard: TensorBoardConfig = dataclasses.field(default_factory=TensorBoardConfig)
    wandb: WandbConfig = dataclasses.field(default_factory=WandbConfig)


def check_available(config: LoggerConfig) -> None:
    """See that what the configuration asks for is installed, without importing it.

    Args:
        config: which loggers are asked for.

    Raises:
        MissingExtraError: an optional package is missing; names the extra that brings it.
    """
    if config.tensorboard.enabled and not _installed("tensorboardX"):
        raise MissingExtraError("logger.tensorboard", "tensorboardX", "loggers")
    if config.wandb.enabled and not _installed("wandb"):
        raise MissingExtraError("logger.wandb", "wandb", "loggers")


def make_logger(config: LoggerConfig, run_dir: pathlib.Path) -> MultiLogger:
    """Make the loggers of a run; nothing is opened or written before they are started.

    Args:
        config: which loggers are asked for, next to the metrics file.
        run_dir: the directory of the run.

    Returns:
        One logger that stands for all of them, and that never raises an `Exception`.

    Raises:
        MissingExtraError: an optional package is missing.
    """
    check_available(config)
    loggers: list[Logger] = [JsonlLogger(run_dir / "metrics.jsonl")]
    if config.tensorboard.enabled:
        loggers.append(TensorBoardLogger(run_dir / "tensorboard"))
    if config.wandb.enabled:
        loggers.append(WandbLogger(config.wandb, run_dir))
    # Last to start, so that what W&B has to say stands above the progress bar, and first to give the terminal back.
    if config.console.enabled:
        loggers.append(ConsoleLogger(config.console))
    return MultiLogger(loggers)


def _installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a placeholder in `sys.modules`
        return False
    # Without an origin it is a mere directory of that name, such as the `wandb/` that W&B leaves where it was run.
    return spec is not None and spec.origin is not None
