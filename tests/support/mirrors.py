"""Functions that mirror steps."""

import jax.numpy as jnp


def pendulum(view, action):
    """Mirror a pendulum at the vertical: its angle, its angular speed and its torque change their signs."""
    return [(jnp.concatenate([view[..., :1], -view[..., 1:]], axis=-1), -action)]


def truncated(view, action):
    """Return a view that is too short."""
    return [(view[..., :1], action)]


def leaves(view, action):
    """End the process, without a word."""
    raise SystemExit(0)


def fails(view, action):
    """Look for what is not there."""
    return {}["absent"]


def nothing(view, action):
    """Return nothing."""


def one_argument(view):
    """Take other arguments."""
    return []


def pairs_of_numbers(view, action):
    """Return no pairs of arrays."""
    return 3
