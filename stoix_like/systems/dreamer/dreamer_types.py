"""Types and the train ratio of DreamerV3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, between
from stoix_like.utils.replay import StreamReplayConfig


@dataclass(frozen=True, kw_only=True)
class TrainRatioConfig(StreamReplayConfig):
    """Hyperparameters of systems whose gradient steps follow from how often each step is replayed.

    Attributes:
        train_ratio: replayed steps per environment step.
    """

    train_ratio: Annotated[int, between(1, INT32_MAX)]

    def gradient_steps(self, num_envs: int, num_shards: int) -> int:
        """Return the gradient steps per update, for environments per shard and shards of the whole run."""
        replayed = self.train_ratio * self.rollout_length * num_envs * num_shards
        return replayed // (self.total_batch_size * self.sequence_length)

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that an update consists of whole gradient steps; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        steps, batch = self.rollout_length * num_envs * num_shards, self.total_batch_size * self.sequence_length
        if self.train_ratio * steps % batch:
            near = max(1, round(self.train_ratio * steps / batch))
            advice = (
                f"system.train_ratio={near * batch // steps}"
                if near * batch % steps == 0
                else f"a multiple of {batch} for arch.total_num_envs × system.rollout_length × system.train_ratio"
            )
            raise ConfigError(
                f"system.train_ratio={self.train_ratio} makes {self.train_ratio * steps:,} replayed steps per update of"
                f" {steps:,}, no multiple of {batch:,} (total_batch_size × sequence_length): use {advice}"
            )


class Params(NamedTuple):
    """Parameters of the world model, the policy and the critic."""

    model: Any
    actor: Any
    critic: Any


class DreamerShared(NamedTuple):
    """The shared state: parameters, the slow average of the critic's, optimiser state, percentiles of returns."""

    params: Params
    slow_critic: Any
    opt_state: Any
    return_scale: Any
