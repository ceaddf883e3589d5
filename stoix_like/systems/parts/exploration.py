"""Exploration by noise that may persist in time, as functions passed to algorithms.

Noise persists as its key: the same key draws the same noise again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Distribution, PyTree, SystemConfig, TimeStep
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, at_least, between
from stoix_like.utils.jax_utils import Scalar


class Exploration(NamedTuple):
    """Functions that sample actions from a policy."""

    init_carry: Callable[[int], PyTree]  # `(num_envs) -> carry`, the carry of `act` at the start of an episode
    # `(policy, carry, timestep, key) -> (carry, action [N])`.
    sample: Callable[[Distribution, PyTree, TimeStep, jax.Array], tuple[PyTree, jax.Array]]


def make_exploration(steps: int | None, init_carry: Callable[[int], PyTree]) -> Exploration:
    """Build exploration by noise that each environment keeps for some steps (gSDE), or by independent samples."""
    if steps is None:
        return Exploration(init_carry, lambda pi, carry, timestep, key: (carry, pi.sample(seed=key)))

    def sample(pi: Distribution, keys: jax.Array, timestep: TimeStep, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        renew = timestep.starts_episode | (timestep.episode.episode_length % steps == 0)
        keys = jnp.where(renew, jax.random.split(key, keys.shape), keys)
        return keys, jax.vmap(lambda pi, key: pi.sample(seed=key))(pi, keys)

    return Exploration(initial_noise_keys, sample)


@dataclass(frozen=True, kw_only=True)
class ExplorationNoise(Part):
    """Hyperparameters of the noise of a deterministic policy."""

    exploration_noise: Annotated[float, at_least(0.0)]  # standard deviation of the noise, in half action ranges
    max_exploration_noise: Annotated[float | None, at_least(0.0)] = None  # largest standard deviation, likewise
    noise_correlation: Annotated[float, between(0.0, 1.0)]  # correlation of the noise between successive steps

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check the order of the scales."""
        if self.max_exploration_noise is not None and self.max_exploration_noise < self.exploration_noise:
            raise ConfigError(
                f"system.max_exploration_noise={self.max_exploration_noise} must not be below"
                f" system.exploration_noise={self.exploration_noise}: use at least that, or null"
            )


@dataclass(frozen=True, kw_only=True)
class IndependentNoise(ExplorationNoise):
    """Hyperparameters of noise that is independent between steps and has one scale; the carry has no place for more."""

    max_exploration_noise: None = None  # none; all environments have the same noise
    noise_correlation: Literal[0] = 0  # none


class NormalNoise(NamedTuple):
    """Normal noise for the actions of a deterministic policy."""

    init_carry: Callable[[int], PyTree]  # `(num_envs) -> carry`, the carry of `act` at the start of an episode
    # `(carry, timestep, key, shape) -> (carry, noise [N, *shape])`.
    draw: Callable[[PyTree, TimeStep, jax.Array, tuple[int, ...]], tuple[PyTree, jax.Array]]


def make_normal_noise(config: ExplorationNoise) -> NormalNoise:
    """Build normal noise; its scale may differ between environments.

    Source: Seo et al. 2025 (FastTD3), arXiv:2505.22642, section 2, for the scale of each environment.
    """
    scale, max_scale, correlation = config.exploration_noise, config.max_exploration_noise, config.noise_correlation

    def draw(keys: jax.Array, timestep: TimeStep, key: jax.Array, shape: tuple[int, ...]) -> PyTree:
        keys = persist_noise_keys(keys, timestep, key, correlation)
        return keys, jax.vmap(lambda key: jax.random.normal(key, shape))(keys)

    def draw_same(keys: jax.Array, timestep: TimeStep, key: jax.Array, shape: tuple[int, ...]) -> PyTree:
        keys, noise = draw(keys, timestep, key, shape)
        return keys, scale * noise

    if max_scale is None:
        return NormalNoise(initial_noise_keys, draw_same)
    span = max_scale - scale

    def draw_own(carry: PyTree, timestep: TimeStep, key: jax.Array, shape: tuple[int, ...]) -> PyTree:
        keys, scales = carry
        # `draw` uses the same key for whether an environment keeps its noise, which only counts within an episode.
        new = scale + span * jax.random.uniform(jax.random.fold_in(key, 1), scales.shape)
        scales = jnp.where(timestep.starts_episode, new, scales)
        keys, noise = draw(keys, timestep, key, shape)
        return (keys, scales), jax.vmap(jnp.multiply)(scales, noise)

    return NormalNoise(lambda num_envs: (initial_noise_keys(num_envs), jnp.zeros((num_envs,))), draw_own)


def initial_noise_keys(num_envs: Any) -> jax.Array:
    """Return placeholder keys `[N]` of noise, which the first step of an episode replaces."""
    return jax.random.split(jax.random.key(0), num_envs)


def persist_noise_keys(keys: jax.Array, timestep: TimeStep, key: jax.Array, correlation: Scalar) -> jax.Array:
    """Keep the noise key of each environment with some probability, for noise that is correlated in time.

    The marginal distribution of the noise is unchanged; the correlation between successive steps is the probability of
    keeping the key. A new episode starts with a new key.

    `keys`: `[N]` keys of the last step.
    `correlation`: probability of keeping a key, in [0, 1].
    Returns `[N]` keys for the noise of this step.
    """
    new_key, keep_key = jax.random.split(key)
    keep = jax.random.bernoulli(keep_key, correlation, keys.shape)
    return jnp.where(keep & ~timestep.starts_episode, keys, jax.random.split(new_key, keys.shape))
