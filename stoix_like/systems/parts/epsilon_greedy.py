"""Epsilon-greedy exploration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from stoix_like.networks.heads import Epsilon
from stoix_like.schema import Part, between

# Arguments of a head for the policy without exploration.
GREEDY = {"epsilon": 0.0}
# Hyperparameters with which an evaluation takes only the greedy action.
NEVER_RANDOM = {"evaluation_epsilon": 0.0}


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedyConfig(Part):
    """Hyperparameters of epsilon-greedy exploration."""

    initial_epsilon: Annotated[float, between(0.0, 1.0)]  # probability of a random action in the first update
    training_epsilon: Annotated[float, between(0.0, 1.0)]  # probability of a random action after the decay
    exploration_fraction: Annotated[float, between(0.0, 1.0)]  # fraction of the run over which epsilon decays linearly
    evaluation_epsilon: Annotated[float, between(0.0, 1.0)]  # probability of a random action in greedy evaluation

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        return {"epsilon": float(make_epsilon_schedule(self, num_updates)(jnp.asarray(updates)))}


def make_epsilon_schedule(config: EpsilonGreedyConfig, num_updates: int) -> Callable[[jax.Array], jax.Array]:
    """Build a linear schedule of the probability of a random action.

        epsilon(k) = training + (initial - training) * max(0, 1 - k / (fraction * num_updates))

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", extended data table 1.
    """
    ends = config.initial_epsilon, config.training_epsilon
    if not any(isinstance(end, jax.Array) for end in ends) and ends[0] == ends[1]:
        # Then nothing depends on the fraction, which searches leave out.
        return lambda updates: jnp.asarray(config.training_epsilon, jnp.float32)

    def epsilon(updates: jax.Array) -> jax.Array:
        left = jnp.maximum(0.0, 1.0 - updates / jnp.maximum(config.exploration_fraction * num_updates, 1.0))
        # Without decay, the first update uses training_epsilon, too.
        left = jnp.where(config.exploration_fraction > 0.0, left, 0.0)
        return config.training_epsilon + (config.initial_epsilon - config.training_epsilon) * left

    return epsilon


def choose_action(pi: Any, epsilon: Epsilon, key: jax.Array) -> jax.Array:
    """Draw actions of an epsilon-greedy policy; without random numbers, which ONNX lacks, where none is random."""
    never_random = not isinstance(epsilon, jax.Array) and epsilon == 0.0
    return pi.mode() if never_random else pi.sample(seed=key)
