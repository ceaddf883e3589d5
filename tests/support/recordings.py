"""Recorded episodes of gymnax."""

import jax
import numpy as np

from stoix_like.base_types import Axes
from stoix_like.envs import factory
from stoix_like.envs.scenes.base import RecordedEpisode
from stoix_like.rendering.episode import Recorder
from support.set_ups import config_of
from support.toys import make_recorder


def make(name, *overrides):
    config = config_of("env=gymnax", f"env.scenario.name={name}", *overrides).env
    return factory.make_drawn(config)


def record(env, max_steps, act=None, seed=0):
    """Record an episode, by default with constant pushes to the left."""
    system = make_recorder(Axes())
    system = system if act is None else system._replace(eval_act=act)
    return Recorder(lambda hyperparams: system, env, max_steps).record({}, {}, jax.random.key(seed))


def still(states, views=None):
    count = len(views if states is None else next(iter(vars(states).values())))
    return RecordedEpisode(np.arange(count), states, views, np.zeros(count), np.zeros(count))
