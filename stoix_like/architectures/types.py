"""Sizes, state and metrics of a compiled training program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from stoix_like.architectures.sums import Count, FloatSum
from stoix_like.base_types import Metrics

Hyperparams = dict[str, Any]
"""Per-member hyperparameters by name; traced inside a program."""
Given = Mapping[str, jax.Array]
"""Leaves of the shared state by name that a warm-up plays with, in place of new ones, see `jax_utils.named`."""


class Inputs(NamedTuple):
    """Inputs of a run besides its environments: arguments of its programs, the same for all members and shards."""

    data: Any = None  # recorded data; None without any
    teacher: Any = None  # the parameters of a teacher; None without one


NO_INPUTS = Inputs()


class ProgramSpec(NamedTuple):
    """The sizes of a training program."""

    num_members: int  # members of the population; with more than one, every array has a leading population axis
    num_envs: int  # environments per shard, N; of several agents, their rows
    rollout_length: int  # steps per environment between two updates, T
    warmup_steps: int = 0  # random steps per environment before the first update, a multiple of `rollout_length`
    on_nan_ignore: bool = False  # whether training continues after a metric or a parameter became non-finite
    # Updates per block; after each block, a call stores the sums of the interval; None stores none.
    every_updates: int | None = None
    max_blocks: int = 1  # blocks that one call may have at most
    most_truncations: int | None = None
    lone_shards: bool = False  # whether each device has a single shard, so that the axis over its shards is omitted
    diagnostics: bool = False  # whether a call diagnoses the networks after its last update
    offline: bool = False  # whether the agent learns only from recorded data, and no environment is stepped


class EpisodeSums(NamedTuple):
    """Sums, minima and maxima over finished episodes, all scalars."""

    number: Count
    return_sum: FloatSum
    return_min: jax.Array
    return_max: jax.Array
    length_sum: Count
    measures: dict[str, FloatSum] = {}  # noqa: RUF012 (never changed)


class MetricSums(NamedTuple):
    """Sums over the updates of an interval, which may span several calls."""

    metrics: dict[str, FloatSum]  # the system's metrics by name, each a `FloatSum` over healthy updates
    healthy_updates: jax.Array  # updates before something became non-finite
    bad_metrics: Metrics  # by name, whether the metric was non-finite in the update that diverged


class Shard(NamedTuple):
    """Per-shard state, `[num_shards, ...]` in the whole run."""

    local: Any  # the agent's local state, such as a replay buffer
    rollout_state: Any  # `RolloutState` at the end of the last rollout
    key: Any  # PRNG key of the next update
    episodes: Any  # `EpisodeSums` of the interval so far


class LearnerState(NamedTuple):
    """The complete state of training."""

    shared: Any  # the agent's shared state, replicated over the devices
    shards: Any  # `Shard`, with its leading axis split over the devices
    healthy: Any  # bool, False once a metric or a parameter became non-finite; in a population, freezes the member
    sums: Any  # `MetricSums` of the interval so far


class RunningSums(NamedTuple):
    """Sums since the start of the interval, `[max_blocks]` after each block of a call; unused blocks do not count."""

    # The system's metrics by name, each a `FloatSum` over healthy updates and averaged over shards.
    metrics: dict[str, FloatSum]
    healthy_updates: jax.Array  # updates before something became non-finite
    episodes: EpisodeSums  # the episodes that finished


class IntervalMetrics(NamedTuple):
    """Metrics of the updates between two evaluations."""

    metrics: Metrics  # the system's metrics, averaged over the interval's healthy updates and all shards
    episodes: EpisodeSums  # the episodes that finished in the interval
    healthy_updates: jax.Array  # updates of the interval before something became non-finite
    bad_metrics: Metrics  # by name, whether the metric was non-finite in the update that diverged
    blocks: Any = ()  # `RunningSums` after each block of `ProgramSpec.every_updates` updates of the call; empty without
    diagnostics: Any = ()  # from the last update of the call, by name; empty without


class Program(NamedTuple):
    """The jitted functions of a training run.

    With a population, every argument and result has a leading population axis, except `num_updates`, `new_interval`,
    `number` and `inputs`.
    """

    init: Any  # `(hyperparams, key, shard_keys [num_shards], inputs, given={}, warm_up=True) -> LearnerState`
    # `(LearnerState, hyperparams, num_updates [], new_interval [], inputs) -> (LearnerState, metrics)`.
    train: Any
    rollouts: Any  # `(LearnerState, hyperparams, number []) -> scalar`, rollouts from a state, to measure their time
