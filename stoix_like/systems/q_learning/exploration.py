"""How often a value-based agent acts at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import SystemConfig
from stoix_like.envs.spaces import Discrete
from stoix_like.schema import between


@dataclass(frozen=True, kw_only=True)
class EpsilonConfig(SystemConfig):
    """Probabilities of a random action.

    Attributes:
        action_spaces: what such an agent can act in.
        initial_epsilon: in the first update.
        training_epsilon: once exploration has faded.
        exploration_fraction: part of the run in which it fades, linearly; 0: `training_epsilon` from the beginning.
        evaluation_epsilon: when evaluating; with `arch.evaluation_greedy=false`, as in training.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    initial_epsilon: Annotated[float, between(0.0, 1.0)]
    training_epsilon: Annotated[float, between(0.0, 1.0)]
    exploration_fraction: Annotated[float, between(0.0, 1.0)]
    evaluation_epsilon: Annotated[float, between(0.0, 1.0)]


def make_epsilon_schedule(config: EpsilonConfig, num_updates: int) -> Callable[[jax.Array], jax.Array]:
    """The probability of a random action as it fades over a run.

        epsilon(k) = training + (initial - training) * max(0, 1 - k / (fraction * num_updates))

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", extended data table 1.

    Args:
        config: probabilities; they may be traced.
        num_updates: updates of the whole run.

    Returns:
        A function of k, the number of updates made.
    """

    def epsilon(updates: jax.Array) -> jax.Array:
        left = jnp.maximum(0.0, 1.0 - updates / jnp.maximum(config.exploration_fraction * num_updates, 1.0))
        # Without any fading, not even the first update.
        left = jnp.where(config.exploration_fraction > 0.0, left, 0.0)
        return config.training_epsilon + (config.initial_epsilon - config.training_epsilon) * left

    return epsilon
