"""Components of systems that learn only from their last rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import jax

from stoix_like.base_types import PyTree
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, above, between
from stoix_like.systems.gradient_descent import GradientConfig
from stoix_like.utils.jax_utils import random_order


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(GradientConfig):
    """Hyperparameters of systems that learn only from their last rollout.

    Attributes:
        gamma: discount per step.
        reward_scale: factor by which rewards are multiplied.
        normalize_rewards: whether rewards are first divided by the running standard deviation of the discounted return.
    """

    gamma: Annotated[float, between(0.0, 1.0)]
    reward_scale: Annotated[float, above(0.0)]
    normalize_rewards: bool = False

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update: one, on the whole rollout."""
        return 1

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that there is no warm-up; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        if self.warmup_steps:
            raise ConfigError(
                f"system.warmup_steps={self.warmup_steps}: this system learns only from its last rollout: use 0"
            )


@dataclass(frozen=True, kw_only=True)
class MinibatchConfig(OnPolicyConfig):
    """Hyperparameters of systems that learn from minibatches of their last rollout.

    Attributes:
        epochs: passes over each rollout.
        num_minibatches: minibatches per epoch.
    """

    epochs: Annotated[int, between(1, 1_000_000)]
    num_minibatches: Annotated[int, between(1, INT32_MAX)]

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update."""
        return self.epochs * self.num_minibatches

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that minibatches divide the rollout; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        batch = self.rollout_length * num_envs
        if batch % self.num_minibatches:
            raise ConfigError(
                f"system.num_minibatches={self.num_minibatches} must divide the per-shard batch of {batch:,}"
                f" (system.rollout_length {self.rollout_length} × {num_envs} envs): use a divisor of {batch}"
            )


def make_minibatches(key: jax.Array, batch: PyTree, num_minibatches: int) -> PyTree:
    """Shuffle a batch and split it into minibatches.

    Args:
        key: one key.
        batch: arrays `[B, ...]`.
        num_minibatches: M, a divisor of B.

    Returns:
        Arrays `[M, B / M, ...]`, all shuffled in the same order.
    """
    order = random_order(key, jax.tree.leaves(batch)[0].shape[0])
    return jax.tree.map(lambda x: x[order].reshape(num_minibatches, -1, *x.shape[1:]), batch)
