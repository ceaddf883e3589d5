"""Actions that represent a policy, as inputs of a critic, and how far they lie out of bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stoix_like.base_types import Distribution
from stoix_like.envs.spaces import Box, Discrete, Space
from stoix_like.errors import ConfigError
from stoix_like.systems.parts.action_vectors import clip_to_bounds, unit
from stoix_like.utils.jax_utils import prepend_dims


def proposals(space: Space, pi: Distribution, num_samples: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return actions whose weighted sums are expectations of a policy: all of a discrete space, otherwise samples.

    Samples of a nearly deterministic policy would all be the same action, and nothing could be learned from them.

    Returns actions `[S, *B, *shape]`, and the logarithms `[S, *B]` of their weights, up to a constant.
    """
    if isinstance(space, Discrete):
        action = jnp.arange(space.n).reshape(-1, *(1 for _ in pi.batch_shape))
        action = jnp.broadcast_to(action, (space.n, *pi.batch_shape))
        return action, pi.log_prob(action)
    action = pi.sample(seed=key, sample_shape=(num_samples,))
    return action, jnp.zeros((num_samples, *pi.batch_shape))


def excess(space: Box, action: jax.Array) -> jax.Array:
    """Compute the distance of actions from the bounds, `||a - clip(a, minimum, maximum)||`.

    `action`: `[..., *shape]`.
    Returns `[...]`, 0 within the bounds, in units of half the range of each entry.
    """
    beyond = (action - clip_to_bounds(space, action)) / prepend_dims(unit(space), action.ndim)
    return jnp.linalg.norm(beyond.reshape(*action.shape[: action.ndim - len(space.shape)], -1), axis=-1)


def check_bounded(space: Space) -> None:
    """Refuse `action_penalty` where actions are discrete or unbounded."""
    if not isinstance(space, Box) or not space.bounded:
        raise ConfigError("system.action_penalty=true needs continuous actions with bounds: use false")
