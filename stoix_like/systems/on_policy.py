"""What systems that learn from each rollout alone share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import jax

from stoix_like.base_types import PyTree, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import above, at_least, between
from stoix_like.utils.jax_utils import random_order


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(SystemConfig):
    """Hyperparameters of every system that learns from minibatches of its last rollout.

    Attributes:
        epochs: passes over each rollout.
        num_minibatches: minibatches per pass.
        decay_learning_rates: linearly to zero over the run.
        max_grad_norm: the gradients of each optimiser are clipped to this norm.
        gamma: discount per step.
        reward_scale: rewards are multiplied by this before learning.
    """

    epochs: Annotated[int, at_least(1)]
    num_minibatches: Annotated[int, at_least(1)]
    decay_learning_rates: bool
    max_grad_norm: Annotated[float, above(0.0)]
    gamma: Annotated[float, between(0.0, 1.0)]
    reward_scale: Annotated[float, above(0.0)]

    def check(self, num_envs: int, num_shards: int) -> None:
        """Refuse a rollout that does not divide into minibatches, and random steps, from which nothing is learnt."""
        if self.warmup_steps:
            raise ConfigError(
                f"system.warmup_steps={self.warmup_steps}: this system learns from its own steps alone: use 0"
            )
        batch = self.rollout_length * num_envs
        if batch % self.num_minibatches:
            raise ConfigError(
                f"system.num_minibatches={self.num_minibatches} does not divide the batch of a shard, rollout_length"
                f" {self.rollout_length} x {num_envs} environments = {batch}: use a divisor of {batch}"
            )


def make_minibatches(key: jax.Array, batch: PyTree, num_minibatches: int) -> PyTree:
    """Shuffle a batch and deal it out.

    Args:
        key: one key.
        batch: arrays `[B, ...]`.
        num_minibatches: M, a divisor of B.

    Returns:
        Arrays `[M, B / M, ...]`, all in the same order.
    """
    order = random_order(key, jax.tree.leaves(batch)[0].shape[0])
    return jax.tree.map(lambda x: x[order].reshape(num_minibatches, -1, *x.shape[1:]), batch)
