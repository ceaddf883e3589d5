"""Loggers: console, metrics file, TensorBoard, Weights & Biases."""

from stoix_like.loggers.base import Logger, RunInfo, plain, scalars
from stoix_like.loggers.make import LoggerConfig, check_available, check_sending, make_logger
from stoix_like.loggers.multi import MultiLogger

__all__ = [
    "Logger",
    "LoggerConfig",
    "MultiLogger",
    "RunInfo",
    "check_available",
    "check_sending",
    "make_logger",
    "plain",
    "scalars",
]
