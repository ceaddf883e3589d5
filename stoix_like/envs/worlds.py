"""Observations of several agents, each with what all of them see, for centralised critics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.envs.spaces import Dict, ObservationSpace, space_of
from stoix_like.utils.jax_utils import as_floats

OWN, WORLD = "own", "world"


def with_world(views: Any, world: jax.Array | None = None) -> dict[str, Any]:
    """Add what all agents see to the observation of each.

    `views`: the observations of one environment's agents, `[A, ...]`.
    `world`: the state of the environment `[W]`, or as each agent sees it `[A, W]`, converted to float32.
    Returns the entries `own` and `world`, `[A, ...]`.
    """
    leaves = jax.tree.leaves(views)
    if world is None:
        one_number = isinstance(views, dict) or views.ndim == 1
        parts = [as_floats(leaf).ravel() for leaf in leaves] if one_number else list(views)
        world = jnp.concatenate(parts, axis=-1)[None]
    else:
        world = jnp.atleast_2d(jnp.asarray(world, jnp.float32))
    world = jnp.broadcast_to(world, (len(leaves[0]), *world.shape[1:]))
    return {OWN: views, WORLD: world}


def world_space(own: ObservationSpace, views: Any) -> Dict:
    """Return the space of what `with_world` returns. `views`: shapes and dtypes of what it returns, `[A, ...]`."""
    return Dict({OWN: own, WORLD: space_of(views[WORLD], batch_dims=1)})
