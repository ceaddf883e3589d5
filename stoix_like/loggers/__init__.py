"""Loggers: console, metrics file, TensorBoard, Weights & Biases.

`metrics.jsonl` is always written. A logger that raises is reported once and dropped, and training continues. Records
that `metrics.jsonl` could not take, as on a full disk, are written with the next one, and no torn line stays. Loggers
receive flat dictionaries of Python numbers and never touch jax.
"""

from stoix_like.loggers.base import Logger, RunInfo, scalars
from stoix_like.loggers.make import LoggerConfig, check_available, make_logger, sending_loggers
from stoix_like.loggers.multi import MultiLogger
from stoix_like.storage.files import plain

__all__ = [
    "Logger", "LoggerConfig", "MultiLogger", "RunInfo", "check_available", "make_logger", "plain", "scalars",
    "sending_loggers",
]  # fmt: skip
