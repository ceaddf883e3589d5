"""Hyperparameters of parts of DreamerV3, and the types of its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import optax

from stoix_like.base_types import PyTree, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, Part, Range, above, between
from stoix_like.utils.replay import StreamReplayConfig
from stoix_like.utils.training import clip_by_parameter_norm, laprop


@dataclass(frozen=True, kw_only=True)
class TrainRatioConfig(StreamReplayConfig):
    """Hyperparameters of a replay buffer, where gradient steps follow from how often each step is replayed."""

    train_ratio: Annotated[int, between(1, INT32_MAX)]  # replayed steps per environment step

    def steps_per_update(self, rollout_length: int, num_envs: int, num_shards: int) -> int:
        """Return the gradient steps per update, for environments per shard and shards of the whole run; one on data."""
        if self.only_data:
            return 1
        replayed = self.train_ratio * rollout_length * num_envs * num_shards
        return replayed // (self.total_batch_size * self.sequence_length)

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that an update consists of whole gradient steps."""
        super().check(config, num_envs, num_shards)
        if self.only_data:
            return
        steps, batch = config.rollout_length * num_envs * num_shards, self.total_batch_size * self.sequence_length
        if self.train_ratio * steps % batch:
            near = round(self.train_ratio * steps / batch)
            sequences, rest = divmod(self.train_ratio * steps, self.sequence_length)
            advice = f"a multiple of {batch} for arch.total_num_envs × system.rollout_length × system.train_ratio"
            if near and near * batch % steps == 0:
                advice = f"system.train_ratio={near * batch // steps}"
            elif near == 0 and sequences and rest == 0 and sequences % num_shards == 0:
                fewer = self.online_sequences > sequences
                online = f" system.online_sequences={sequences}" if fewer else ""
                advice = f"system.total_batch_size={sequences}{online}, for one gradient step per update"
            elif near == 0 and batch % steps == 0:
                advice = f"system.train_ratio={batch // steps}, or a smaller system.total_batch_size"
            raise ConfigError(
                f"system.train_ratio={self.train_ratio} makes {self.train_ratio * steps:,} replayed steps per update of"
                f" {steps:,}, no multiple of {batch:,} (total_batch_size × sequence_length): use {advice}"
            )


@dataclass(frozen=True, kw_only=True)
class LaPropConfig(Part):
    """Hyperparameters of the optimiser."""

    lr: Annotated[float, above(0.0)]  # learning rate of all networks
    lr_warmup_steps: Annotated[int, between(1, INT32_MAX)]  # gradient steps over which the rate grows linearly to `lr`
    max_relative_norm: Annotated[float, above(0.0)]  # largest norm of an array's gradient, in norms of the array
    momentum_decay: Annotated[float, Range(0.0, 1.0, without_high=True)]  # decay of the mean of the gradients
    rms_decay: Annotated[float, Range(0.0, 1.0, without_high=True)]  # decay of the mean of the squared gradients

    def make_optimiser(self) -> optax.GradientTransformation:
        """Build the optimiser of all networks; its learning rate grows linearly at first."""
        rate = optax.linear_schedule(0.0, self.lr, self.lr_warmup_steps)
        clip = clip_by_parameter_norm(self.max_relative_norm)
        return optax.chain(clip, laprop(rate, self.momentum_decay, self.rms_decay, eps=1e-20))


class DreamerParams(NamedTuple):
    """Parameters of the world model, the policy and the critic."""

    model_params: PyTree
    actor_params: PyTree
    critic_params: PyTree


class DreamerShared(NamedTuple):
    """The shared state: parameters, the slow average of the critic's, optimiser state, percentiles of returns."""

    params: DreamerParams
    slow_critic: PyTree
    opt_state: PyTree
    return_scale: PyTree
