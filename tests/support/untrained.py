"""Agents before training, for policies."""

import jax

from stoix_like.assembly import set_up_inference
from support.set_ups import config_of


def untrained(*overrides):
    """Return what a policy of a run acts with, and the shared state of its agent before training."""
    setup = set_up_inference(config_of(*overrides))
    _, timestep = jax.jit(setup.env.reset)(jax.random.split(jax.random.key(0), setup.spec.num_envs))
    return setup, jax.jit(setup.build_system().init)(jax.random.key(1), timestep).shared
