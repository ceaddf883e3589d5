"""Loggers: console, metrics file, TensorBoard, Weights & Biases."""

from stoix_like.loggers.base import Logger, RunInfo, plain, scalars
from stoix_like.loggers.make import LoggerConfig, check_available, make_logger, sending_loggers
from stoix_like.loggers.multi import MultiLogger

__all__ = [
    "Logger",
    "LoggerConfig",
    "MultiLogger",
    "RunInfo",
    "check_available",
    "make_logger",
    "plain",
    "scalars",
    "sending_loggers",
]
