"""First episodes of different lengths, so that environments do not end their episodes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import PyTree, TimeStep
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.wrappers.agents import of_first_agent
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX
from stoix_like.utils.jax_utils import fold_in_each

# Folded into the keys of the first reset, so that start states and lengths are independent.
_LENGTH_STREAM = 0x57A6


class Stagger(NamedTuple):
    """Truncation of the first episode of each environment at a random step."""

    # `(keys [N]) -> remaining`, the steps until it is truncated, at the first reset.
    init: Callable[[jax.Array], PyTree]
    # `(remaining, timestep [N, ...]) -> (remaining, timestep)`, after each step.
    truncate: Callable[[Any, TimeStep], tuple[Any, TimeStep]]


IN_LOCKSTEP = Stagger(lambda keys: (), lambda remaining, timestep: (remaining, timestep))
"""The identity: first episodes are as long as all others."""


def make_stagger(enabled: bool, env: VectorEnvironment, time_limit: int | None) -> Stagger:
    """Build the truncation of first episodes, or the identity.

    The length of the first episode is uniform in 1 … L, for a time limit of L steps, as if training had started in the
    midst of it. Episodes that last until the time limit then end at different times in different environments. All
    steps are learned from, and the truncated episodes are not counted among the episodes.
    """
    if not enabled:
        return IN_LOCKSTEP
    limit = env.truncates_after or time_limit
    if env.on_host or limit in (None, INT32_MAX):
        raise ConfigError(
            "env.staggered_starts=true truncates first episodes up to a time limit, but "
            + ("the environments reset themselves:" if env.on_host else "none is known: set env.time_limit, or")
            + " use false"
        )

    def init(keys: jax.Array) -> jax.Array:
        keys = fold_in_each(keys, _LENGTH_STREAM)
        drawn = jax.vmap(lambda key: jax.random.randint(key, (), 1, limit + 1))(keys)
        return of_first_agent(drawn, env.num_agents)

    def truncate(remaining: jax.Array, timestep: TimeStep) -> tuple[jax.Array, TimeStep]:
        truncated = timestep.truncated | ((remaining == 1) & ~timestep.terminated)
        timestep = timestep._replace(truncated=truncated)
        return jnp.where(truncated | timestep.terminated, 0, jnp.maximum(remaining - 1, 0)), timestep

    return Stagger(init, truncate)
