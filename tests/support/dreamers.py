"""A system that always acts 0, and whose model believes that nothing changes any more."""

from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Dream, Observation, System, SystemSpec
from support import toys
from support.toys import Config as Config


def build(config: Config, spec: SystemSpec) -> System:
    return toys.build(config, spec)._replace(dream=dream)


def dream(shared: Any, observation: Observation, action: jax.Array, context: int, key: jax.Array) -> Dream:
    """Repeat the last observation seen, one more in each further step; the reward is the sum of the action."""
    steps, shape = jnp.arange(len(action)), action.shape[:2]
    later = jnp.maximum(steps - context + 1, 0).astype(jnp.float32)

    def repeated(leaf: jax.Array) -> jax.Array:
        return leaf[jnp.minimum(steps, context - 1)] + later.reshape(-1, *(1,) * (leaf.ndim - 1))

    reward = action.reshape(*shape, -1).sum(axis=-1).astype(jnp.float32)
    continues = jnp.broadcast_to(jnp.where(later > 0, 0.75, 1.0)[:, None], shape)
    return Dream(jax.tree.map(repeated, observation.agent_view), reward, continues)


def overrides(**values: Any) -> list[str]:
    return toys.overrides(**{"module": "support.dreamers", **values})
