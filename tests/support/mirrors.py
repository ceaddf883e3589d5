"""Functions that mirror steps."""

import jax.numpy as jnp


def pendulum(view, action):
    """Mirror a pendulum at the vertical: its angle, its angular speed and its torque change their signs."""
    return [(jnp.concatenate([view[..., :1], -view[..., 1:]], axis=-1), -action)]


def truncated(view, action):
    """Return a view that is too short."""
    return [(view[..., :1], action)]
