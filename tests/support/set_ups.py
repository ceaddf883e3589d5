"""Runs from their overrides."""

from stoix_like.config import parse_config
from stoix_like.loggers import MultiLogger
from stoix_like.run.set_up.setup import set_up
from stoix_like.run.training_loop import TrainingLoop
from support.composed import compose_config


def config_of(*overrides):
    return parse_config(compose_config(overrides))


def setup_of(*overrides):
    return set_up(config_of(*overrides))


def loop_of(*overrides, writer=None):
    return TrainingLoop(setup_of(*overrides), MultiLogger([]), writer)


def trained(*overrides):
    loop = loop_of(*overrides)
    loop.train()
    return loop
