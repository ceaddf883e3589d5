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
    """Inputs of a run besides its environments: arguments of its programs, the same for all members and shards.

    Attributes:
        data: recorded data, see `utils.replay.data`; None without any.
        teacher: the parameters of a teacher, see `systems.parts.teacher`; None without one.
    """

    data: Any = None
    teacher: Any = None


NO_INPUTS = Inputs()


class ProgramSpec(NamedTuple):
    """The sizes of a training program.

    Attributes:
        num_members: members of the population; with more than one, every array has a leading population axis.
        num_envs: environments per shard, N; of several agents, their rows.
        rollout_length: steps per environment between two updates, T.
        warmup_steps: random steps per environment before the first update, a multiple of `rollout_length`.
        on_nan_ignore: whether training continues after a metric or a parameter became non-finite.
        every_updates: updates per block, after each of which a call stores the sums of the interval; None stores none.
        max_blocks: blocks that one call may have at most.
        most_truncations: see `rollout.rollout`.
        lone_shards: whether each device has a single shard, so that the axis over its shards is omitted.
        diagnostics: whether a call diagnoses the networks after its last update, see `systems.diagnostics`.
        offline: whether the agent learns only from recorded data, and no environment is stepped.
    """

    num_members: int
    num_envs: int
    rollout_length: int
    warmup_steps: int = 0
    on_nan_ignore: bool = False
    every_updates: int | None = None
    max_blocks: int = 1
    most_truncations: int | None = None
    lone_shards: bool = False
    diagnostics: bool = False
    offline: bool = False


class EpisodeSums(NamedTuple):
    """Sums, minima and maxima over finished episodes, all scalars."""

    number: Count
    return_sum: FloatSum
    return_min: jax.Array
    return_max: jax.Array
    length_sum: Count
    measures: dict[str, FloatSum] = {}  # noqa: RUF012 (never changed)


class MetricSums(NamedTuple):
    """Sums over the updates of an interval, which may span several calls.

    Attributes:
        metrics: the system's metrics by name, each a `FloatSum` over healthy updates.
        healthy_updates: updates before something became non-finite.
        bad_metrics: by name, whether the metric was non-finite in the update that diverged.
    """

    metrics: dict[str, FloatSum]
    healthy_updates: jax.Array
    bad_metrics: Metrics


class Shard(NamedTuple):
    """Per-shard state, `[num_shards, ...]` in the whole run.

    Attributes:
        local: the agent's local state, such as a replay buffer.
        rollout_state: `RolloutState` at the end of the last rollout.
        key: PRNG key of the next update.
        episodes: `EpisodeSums` of the interval so far.
    """

    local: Any
    rollout_state: Any
    key: Any
    episodes: Any


class LearnerState(NamedTuple):
    """The complete state of training.

    Attributes:
        shared: the agent's shared state, replicated over the devices.
        shards: `Shard`, with its leading axis split over the devices.
        healthy: bool, False once a metric or a parameter became non-finite; in a population, freezes the member.
        sums: `MetricSums` of the interval so far.
    """

    shared: Any
    shards: Any
    healthy: Any
    sums: Any


class RunningSums(NamedTuple):
    """Sums since the start of the interval, `[max_blocks]` after each block of a call; only blocks that it has count.

    Attributes:
        metrics: the system's metrics by name, each a `FloatSum` over healthy updates and averaged over shards.
        healthy_updates: updates before something became non-finite.
        episodes: the episodes that finished.
    """

    metrics: dict[str, FloatSum]
    healthy_updates: jax.Array
    episodes: EpisodeSums


class IntervalMetrics(NamedTuple):
    """Metrics of the updates between two evaluations.

    Attributes:
        metrics: the system's metrics, averaged over the interval's healthy updates and all shards.
        episodes: the episodes that finished in the interval.
        healthy_updates: updates of the interval before something became non-finite.
        bad_metrics: by name, whether the metric was non-finite in the update that diverged.
        blocks: `RunningSums` after each block of `ProgramSpec.every_updates` updates of the call; empty without.
        diagnostics: those of the last update of the call, by name; empty without.
    """

    metrics: Metrics
    episodes: EpisodeSums
    healthy_updates: jax.Array
    bad_metrics: Metrics
    blocks: Any = ()
    diagnostics: Any = ()


class Program(NamedTuple):
    """The jitted functions of a training run.

    With a population, every argument and result has a leading population axis, except `num_updates`, `new_interval`,
    `number` and `inputs`.

    Attributes:
        init: `(hyperparams, key, shard_keys [num_shards], inputs, given={}, warm_up=True) -> LearnerState`.
        train: `(LearnerState, hyperparams, num_updates [], new_interval [], inputs) -> (LearnerState, metrics)`;
            `new_interval` resets the sums; otherwise the current interval continues. Donates the state.
        rollouts: `(LearnerState, hyperparams, number []) -> scalar`, rollouts from a state, to measure their time.
    """

    init: Any
    train: Any
    rollouts: Any
