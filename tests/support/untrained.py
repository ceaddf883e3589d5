"""Agents before training, for policies."""

import jax

from stoix_like.config import parse_config
from stoix_like.inference.setup import set_up_inference
from support.composed import compose_config


def untrained(*overrides):
    setup = set_up_inference(parse_config(compose_config([*overrides])))
    _, timestep = jax.jit(setup.env.reset)(jax.random.split(jax.random.key(0), setup.spec.num_envs))
    return setup, jax.jit(setup.build_system().init)(jax.random.key(1), timestep).shared
