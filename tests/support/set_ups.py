"""Runs from their overrides."""

from stoix_like.config import parse_config
from stoix_like.loggers import MultiLogger
from stoix_like.run.set_up.setup import RunSetup, set_up
from stoix_like.run.training_loop import TrainingLoop
from support.composed import compose_config


def setup_of(*overrides: str) -> RunSetup:
    return set_up(parse_config(compose_config(overrides)))


def loop_of(*overrides: str, writer=None) -> TrainingLoop:
    return TrainingLoop(setup_of(*overrides), MultiLogger([]), writer)


def trained(*overrides: str) -> TrainingLoop:
    loop = loop_of(*overrides)
    loop.train()
    return loop
