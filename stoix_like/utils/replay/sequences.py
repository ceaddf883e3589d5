"""Replay of overlapping sequences with the recurrent state before them, built on flashbax.

Steps are stored in blocks of `sequence_period` steps, each with the recurrent state before its first step. A sequence
starts with any stored block.

Shape letters: T time, N environments per shard, P steps per block, L stored blocks per environment, W steps per
sequence, B sequences per batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, SystemSpec, TimeStep, Trajectory
from stoix_like.errors import ConfigError, multiples_near
from stoix_like.schema import between
from stoix_like.utils.jax_utils import Scalar, merge_leading_dims
from stoix_like.utils.replay.buffers import add_rows, example_step, importance_weights, make_buffer, stored_steps
from stoix_like.utils.replay.config import PrioritisedReplayConfig, ReplayConfig
from stoix_like.utils.replay.data import with_data
from stoix_like.utils.replay.types import Step


@dataclass(frozen=True, kw_only=True)
class BlockReplayConfig(ReplayConfig):
    """Hyperparameters of a buffer of sequences; others determine their length."""

    relabels: ClassVar[bool] = False
    sequence_period: Annotated[int, between(1, 2**20)]  # steps between the starts of two sequences

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Number of consecutive steps per sequence, W."""

    @property
    @abstractmethod
    def length_keys(self) -> str:
        """The keys that determine the length, with their values, for messages."""

    @property
    @abstractmethod
    def learned_steps(self) -> int:
        """Number of steps of a sequence that are learned from."""

    @property
    def window(self) -> int:
        """Number of steps of the blocks of a sequence."""
        return -(-self.num_steps // self.sequence_period) * self.sequence_period

    @property
    def window_keys(self) -> str:
        return f"{self.length_keys} in blocks of system.sequence_period={self.sequence_period}"

    @property
    def block_length(self) -> int:
        return self.sequence_period

    @property
    def per_env_rows(self) -> bool:
        return True

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Check that rollouts consist of whole blocks."""
        if config.rollout_length % self.sequence_period and not self.only_data:
            raise ConfigError(
                f"system.rollout_length={config.rollout_length} must be a multiple of"
                f" system.sequence_period={self.sequence_period}: use"
                f" {multiples_near(config.rollout_length, self.sequence_period)}"
            )
        if self.learned_steps < self.sequence_period and not self.only_data:
            raise ConfigError(
                f"system.sequence_period={self.sequence_period}, the steps between the starts of two sequences, exceeds"
                f" the {self.learned_steps} steps that are learned from ({self.length_keys}): use at most that, so that"
                " no step is left out"
            )
        super().check(config, num_envs, num_shards)


@dataclass(frozen=True, kw_only=True)
class PrioritisedBlockConfig(PrioritisedReplayConfig, BlockReplayConfig):
    """Hyperparameters of a buffer of sequences that can be sampled by priority."""


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(BlockReplayConfig):
    """Hyperparameters of a buffer of sequences."""

    sequence_length: Annotated[int, between(1, 2**20)]  # steps of a sequence that are learned from

    @property
    def num_steps(self) -> int:
        return self.sequence_length

    @property
    def learned_steps(self) -> int:
        return self.sequence_length

    @property
    def length_keys(self) -> str:
        return f"system.sequence_length={self.sequence_length}"


@dataclass(frozen=True, kw_only=True)
class StepSequenceConfig(SequenceConfig):
    """Hyperparameters of a buffer of sequences of steps with their true successors."""

    n_step: Literal[1] = 1  # none; not used
    store_next_observation: Literal[True] = True


@dataclass(frozen=True, kw_only=True)
class SequenceReplayConfig(SequenceConfig):
    """Hyperparameters of a buffer of sequences with recurrent states."""

    # Steps at the start of a sequence that only bring the recurrent state up to date.
    burn_in_length: Annotated[int, between(0, 2**20)]

    @property
    def num_steps(self) -> int:
        """Number of consecutive steps per sequence, W; one more where the last successor is the next observation."""
        return self.burn_in_length + self.sequence_length + (not self.store_next_observation)

    @property
    def length_keys(self) -> str:
        return f"system.burn_in_length={self.burn_in_length} and {super().length_keys}"


class Stored(NamedTuple):
    """The extras of a transition `[T, N, ...]` whose steps are stored with extras of their own."""

    carry: PyTree  # the recurrent state before the step; `()` where there is none
    extras: PyTree  # stored with every step, such as the policy that a search found


class Block(NamedTuple):
    """Stored data of consecutive steps."""

    steps: Step  # `[P, ...]`
    is_first: jax.Array  # `[P]` bool, whether a step is the first of its episode
    carry: PyTree  # `[...]`, the recurrent state before the first step


class SequenceBatch(NamedTuple):
    """Batch of sequences."""

    steps: Step  # `[W, B, ...]`
    is_first: jax.Array  # `[W, B]` bool, whether a step is the first of its episode
    carry: PyTree  # `[B, ...]`, the recurrent state of the behaviour policy before the first step
    weight: jax.Array  # `[1, B]` importance-sampling weight of the loss
    # `[B]` positions of the sequences in the buffer, for `set_priorities`; None without priorities.
    indices: jax.Array | None

    @property
    def observations(self) -> Observation:
        """The observations of all steps side by side, `[W * B, ...]`."""
        return jax.tree.map(partial(merge_leading_dims, num_dims=2), self.steps.observation)


class SequenceReplay(NamedTuple):
    """Replay buffer of one shard, as functions of its state. Within an update, `add` precedes the first `sample`."""

    init: Callable[[TimeStep], Any]  # `(timestep) -> state`, an empty buffer; `timestep` `[N, ...]` is an example
    # `(state, trajectory) -> state`; all trajectories have the same length.
    add: Callable[[Any, Trajectory], Any]
    sample: Callable[[Any, jax.Array, Any], SequenceBatch]  # `(state, key, importance_exponent) -> SequenceBatch`
    # `(state, indices, priorities [B]) -> state`; sequences are sampled in proportion to priorities.
    set_priorities: Callable[[Any, jax.Array, jax.Array], Any]


def make_sequence_replay(
    config: BlockReplayConfig, spec: SystemSpec, carry: PyTree, extras: PyTree = None, reward_scale: Scalar = 1.0
) -> SequenceReplay:
    """Build the replay buffer of a configuration.

    `carry`: `[...]`, the recurrent state of one environment, an example.
    `extras`: `[...]`, what is stored with each step, an example; None for nothing.
    """
    config.check_data(has_all=extras is None)
    buffer, period = make_buffer(config, spec), config.sequence_period
    num_samples = config.total_batch_size // spec.num_shards

    def init(timestep: TimeStep) -> Any:
        step = example_step(config, spec, timestep)._replace(extras=extras)
        steps, is_first = jax.tree.map(lambda x: jnp.stack([x] * period), (step, jnp.zeros((), bool)))
        return buffer.init(Block(steps, is_first, carry))

    def in_blocks(x: jax.Array) -> jax.Array:
        """Return an array `[T, N, ...]` as `[N, T / P, P, ...]`."""
        return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1, period, *x.shape[2:])

    def add(state: Any, trajectory: Trajectory) -> Any:
        transitions = trajectory.transitions
        remembered = transitions.extras if extras is not None else Stored(transitions.extras, None)
        steps = stored_steps(config, reward_scale, transitions, state.experience.steps._replace(extras=None))
        steps = steps._replace(extras=remembered.extras)
        steps, is_first = jax.tree.map(in_blocks, (steps, transitions.is_first))
        first_carry = jax.tree.map(lambda x: jnp.swapaxes(x[::period], 0, 1), remembered.carry)
        return add_rows(config, buffer, state, Block(steps, is_first, first_carry))

    def in_order(x: jax.Array) -> jax.Array:
        """Return the blocks `[B, W / P, P, ...]` of sequences as `[W, B, ...]`."""
        return jnp.swapaxes(x.reshape(x.shape[0], -1, *x.shape[3:]), 0, 1)[: config.num_steps]

    def sample(state: Any, key: jax.Array, importance_exponent: Any) -> SequenceBatch:
        drawn = buffer.sample(state, key)
        steps, is_first = jax.tree.map(in_order, (drawn.experience.steps, drawn.experience.is_first))
        carry = jax.tree.map(lambda x: x[:, 0], drawn.experience.carry)
        batch = SequenceBatch(steps, is_first, carry, jnp.ones((1, len(is_first[0]))), None)
        if not config.prioritised:
            return batch
        weight = importance_weights(drawn.probabilities, importance_exponent, spec.axes)
        return batch._replace(weight=weight[None], indices=drawn.indices)

    def set_priorities(state: Any, indices: jax.Array, priorities: jax.Array) -> Any:
        return buffer.set_priorities(state, indices, priorities) if config.prioritised else state

    def draw(key: jax.Array) -> SequenceBatch:
        rows = spec.data.windows(key, num_samples, config.num_steps, whole=True)
        steps = spec.data.take(rows, reward_scale)
        if not config.store_next_observation:
            steps = steps._replace(next_observation=None)
        # The recurrent state of the behaviour policy is unknown: use the start of an episode.
        start = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_samples, *x.shape)), carry)
        return SequenceBatch(steps, spec.data.is_first(rows), start, jnp.ones((1, num_samples)), None)

    replay = SequenceReplay(init, add, sample, set_priorities)
    return with_data(config, spec, replay, draw, axes=(1, 1, 0, 1, 0))
