"""Keys of exploration noise that is correlated in time: the same key draws the same noise again."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stoix_like.base_types import TimeStep
from stoix_like.utils.jax_utils import Scalar


def persist_noise_keys(keys: jax.Array, timestep: TimeStep, key: jax.Array, correlation: Scalar) -> jax.Array:
    """Keep the noise key of each environment with some probability, for noise that is correlated in time.

    The marginal distribution of the noise is unchanged; the correlation between successive steps is the probability of
    keeping the key. A new episode starts with a new key.

    Args:
        keys: `[N]` keys of the last step.
        timestep: the time step to act on.
        key: a new key.
        correlation: probability of keeping a key, in [0, 1].

    Returns:
        `[N]` keys for the noise of this step.
    """
    new_key, keep_key = jax.random.split(key)
    keep = jax.random.bernoulli(keep_key, correlation, keys.shape)
    return jnp.where(keep & ~timestep.starts_episode, keys, jax.random.split(new_key, keys.shape))


def initial_noise_keys(num_envs: int) -> jax.Array:
    """Return placeholder keys `[N]`, which `persist_noise_keys` replaces at the first step of an episode."""
    return jax.random.split(jax.random.key(0), num_envs)


def hold_noise_keys(keys: jax.Array, timestep: TimeStep, key: jax.Array, steps: int) -> jax.Array:
    """Keep the noise key of each environment for a number of steps of its episode.

    Args:
        keys: `[N]` keys of the last step.
        timestep: the time step to act on.
        key: a new key.
        steps: steps between two new keys, at least 1; a new episode starts with a new key.

    Returns:
        `[N]` keys for the noise of this step.
    """
    renew = timestep.starts_episode | (timestep.episode.episode_length % steps == 0)
    return jnp.where(renew, jax.random.split(key, keys.shape), keys)
