"""Observations of several agents, each with what all of them see, for centralised critics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.envs.spaces import Box, Dict, ObservationSpace

OWN, WORLD = "own", "world"


def with_world(views: Any, world: jax.Array | None = None) -> dict[str, Any]:
    """Add what all agents see to the observation of each.

    Args:
        views: the observations of one environment's agents, `[A, ...]`.
        world: the state of the environment `[W]`, or as each agent sees it `[A, W]`; None: the observations of all
            agents, side by side along the last axis, or flattened where they are dictionaries or scalars.

    Returns:
        The entries `own` and `world`, `[A, ...]`.
    """
    num_agents = len(jax.tree.leaves(views)[0])
    if world is None:
        if isinstance(views, dict) or views.ndim == 1:
            world = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(views)])
        else:
            world = jnp.concatenate(list(views), axis=-1)
        world = jnp.repeat(world[None], num_agents, axis=0)
    elif world.ndim == 1:
        world = jnp.repeat(world[None], num_agents, axis=0)
    return {OWN: views, WORLD: world}


def world_space(own: ObservationSpace, views: Any) -> Dict:
    """Return the space of what `with_world` returns.

    Args:
        own: the space of each agent's observation.
        views: shapes and dtypes of what it returns, `[A, ...]`.

    Returns:
        The space.
    """
    world = views[WORLD]
    high = 255 if world.dtype == jnp.uint8 else np.inf
    return Dict({OWN: own, WORLD: Box(0 if high == 255 else -np.inf, high, world.shape[1:], world.dtype)})
