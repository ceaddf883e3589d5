"""Hyperparameters of replay."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.errors import ConfigError, multiples_near
from stoix_like.schema import INT32_MAX, between
from stoix_like.utils.replay.data import DataConfig
from stoix_like.utils.replay.relabel import RelabelConfig
from stoix_like.utils.replay.types import Step


@dataclass(frozen=True, kw_only=True)
class BufferConfig(DataConfig):
    """Sizes of every replay buffer. Totals are over all devices and update batches."""

    is_replay: ClassVar[bool] = True
    total_buffer_size: Annotated[int, between(1, 2**53)]  # capacity of the replay buffer, in environment steps
    total_batch_size: Annotated[int, between(1, INT32_MAX)]  # samples per gradient step

    @abstractmethod
    def buffer_unit(self, num_envs: int, num_shards: int, rollout_length: int) -> int:
        """Return the number of steps that the buffer holds a multiple of."""

    def buffer_size(self, num_envs: int, num_shards: int, rollout_length: int) -> int:
        """Return the capacity of the buffer in steps: `total_buffer_size`, rounded down."""
        return self.total_buffer_size - self.total_buffer_size % self.buffer_unit(num_envs, num_shards, rollout_length)

    def _check_totals(self, num_envs: int, num_shards: int, rollout_length: int, largest: int) -> None:
        """Check that a shard stores at most `largest` steps, and that the batch divides over the shards."""
        if self.buffer_size(num_envs, num_shards, rollout_length) // num_shards > largest:
            unit = self.buffer_unit(num_envs, num_shards, rollout_length)
            raise ConfigError(
                f"system.total_buffer_size={self.total_buffer_size} is too large for the indices of"
                f" {num_shards} shard(s): use at most {largest * num_shards // unit * unit}"
            )
        if self.total_batch_size % num_shards:
            raise ConfigError(
                f"system.total_batch_size={self.total_batch_size} must be a multiple of {num_shards}, the number of"
                f" shards: use {multiples_near(self.total_batch_size, num_shards)}"
            )
        batch, share = self.total_batch_size // num_shards, self.data_fraction
        if self.data is not None and not self.only_data and batch == 1 and getattr(self, "prioritised", False):
            raise ConfigError(
                f"system.total_batch_size={self.total_batch_size}: of one prioritised sample per shard, none is of"
                f" system.data={self.data}: use at least {2 * num_shards}"
            )
        # Of a share that is traced, or changes over the run, the program takes what it rounds to.
        fixed = self.data is not None and self.final_data_fraction is None and isinstance(share, float)
        number = round(share * batch) if fixed else None
        if number == 0 and share > 0.0:
            raise ConfigError(
                f"system.data_fraction={share:g} of {batch} sample(s) of a shard rounds to none: use at least"
                f" {1 / batch:g}, or a larger system.total_batch_size"
            )
        if number == batch and share < 1.0:
            raise ConfigError(
                f"system.data_fraction={share:g} of {batch} sample(s) of a shard rounds to all: use a larger"
                " system.total_batch_size, a smaller share, or 1 to sample nothing else"
            )


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(BufferConfig, RelabelConfig):
    """Hyperparameters of a buffer of steps, or of windows of steps."""

    whole_windows: ClassVar[bool] = False
    relabels: ClassVar[bool] = True  # whether samples have one target each, which may be one of another goal
    epochs: Annotated[int, between(1, 1_000_000)]  # gradient steps per update
    n_step: Annotated[int, between(1, INT32_MAX - 1)]  # rewards per target
    store_next_observation: bool  # whether to store each observation twice

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update."""
        return self.epochs

    @property
    def prioritised(self) -> bool:
        """True if windows are sampled by priority."""
        return False

    @property
    def return_steps(self) -> int:
        """Rewards per target, in steps: of a chunk of actions, as many."""
        return self.n_step

    @property
    def chunk(self) -> int:
        """Actions per sample, see `systems.parts.chunks`."""
        return 1

    def joined(self, windows: Step, axis: int) -> Step:
        """Join the actions of windows, where samples have several; see `systems.parts.chunks`."""
        return windows

    @property
    def window(self) -> int:
        """Number of consecutive steps per sample, W."""
        return self.return_steps if self.store_next_observation else self.return_steps + 1

    @property
    def window_keys(self) -> str:
        """The keys that determine the window, with their values, for messages."""
        return f"system.n_step={self.n_step}"

    @property
    def block_length(self) -> int:
        """Number of consecutive steps that are stored together; a window starts with each of these blocks."""
        return 1

    @property
    def per_env_rows(self) -> bool:
        """True if the buffer stores steps in order, in one row per environment."""
        return self.window > 1 or self.prioritised or self.whole_windows or self.relabel is not None

    @property
    def max_steps_per_env(self) -> int | None:
        """Steps of windows with priorities are counted in 32 bits."""
        return INT32_MAX if self.prioritised else None

    def buffer_unit(self, num_envs: int, num_shards: int, rollout_length: int) -> int:
        """Whole rollouts, each one slice of the buffer."""
        return num_shards * num_envs * math.lcm(rollout_length, self.block_length)

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Check that the batch divides over the shards, and that the first update can sample a batch."""
        self.check_data(has_all=not self.whole_windows)
        self.check_relabel(self.relabels, self.store_next_observation)
        if self.whole_windows and not self.store_next_observation:
            raise ConfigError(
                "system.store_next_observation=false: this system needs the successor of every step: use true"
            )
        # Places in the ring are sums of two indices. Priorities are searched by a uniform float32: more windows than it
        # has values would never be drawn.
        largest, rollout = 2**24 * self.block_length if self.prioritised else 2**30, config.rollout_length
        self._check_totals(num_envs, num_shards, rollout, min(largest, 2**30))
        if self.only_data:
            return
        total_envs = num_envs * num_shards
        capacity = self.buffer_size(num_envs, num_shards, rollout) // total_envs
        if capacity < max(rollout, self.window):
            raise ConfigError(
                f"system.total_buffer_size={self.total_buffer_size} holds {capacity} step(s) of each of {total_envs}"
                f" environments, in whole rollouts, fewer than system.rollout_length={rollout} or the"
                f" {self.window} step(s) of a window ({self.window_keys}): use at least"
                f" {total_envs * _rounded_up(self.window, rollout)}"
            )
        self._check_start(config, total_envs, capacity)

    def _check_start(self, config: Any, total_envs: int, capacity: int) -> None:
        """Check that the buffer, and the steps before the first update, can hold a batch."""
        needed = (-(-self.total_batch_size // total_envs) - 1) * self.block_length + self.window
        if capacity < needed:
            raise ConfigError(
                f"system.total_batch_size={self.total_batch_size} exceeds the windows that"
                f" system.total_buffer_size={self.total_buffer_size} can hold: use a total_buffer_size of at least"
                f" {_rounded_up(needed, config.rollout_length) * total_envs}"
            )
        first = config.warmup_steps + config.rollout_length
        if first < needed:
            raise ConfigError(
                f"system.warmup_steps={config.warmup_steps}: the first update finds {first} step(s) of each of"
                f" {total_envs} environments, too few for system.total_batch_size={self.total_batch_size}: use at least"
                f" {_rounded_up(needed - config.rollout_length, config.rollout_length)}"
            )


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@dataclass(frozen=True, kw_only=True)
class PrioritisedReplayConfig(ReplayConfig):
    """Hyperparameters of a buffer that can sample windows by priority (Schaul et al. 2016, arXiv:1511.05952)."""

    prioritised: bool = False  # whether windows are sampled by priority; the exponents have no effect otherwise
    # Traced in populations, which type checks of this package at run time must allow.
    # Exponent of the last loss in the sampling probability of a window.
    priority_exponent: Annotated[float | jax.Array, between(0.0, 1.0)] = 0.5
    # Initial exponent of the importance weights, annealed to 1 over the run.
    importance_sampling_exponent: Annotated[float | jax.Array, between(0.0, 1.0)] = 0.4

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        values = super().schedules(updates, num_updates)
        first, last = (self.importance_exponent(end, num_updates) for end in (0, num_updates))
        if self.prioritised and first != last:
            values["importance-sampling exponent"] = self.importance_exponent(updates, num_updates)
        return values

    def importance_exponent(self, updates: Any, num_updates: int) -> Any:
        """Return the exponent of the importance weights after a number of updates, which may be traced."""
        least = self.importance_sampling_exponent
        return least + (1.0 - least) * updates / num_updates

    def priorities(self, losses: jax.Array, weights: jax.Array) -> jax.Array:
        """Compute the priorities of windows.

            p = (max(loss, 0) + 1e-6)^priority_exponent

        Source: Schaul et al. 2016, section 3.3, with the loss in place of the absolute error.

        `losses`: `[B]`, with `loss` in its own units; it is negative only by rounding.
        `weights`: `[B]`, the weights of the batch.
        Returns `[B]`, zero for windows of weight zero, which have no target.
        """
        priorities = (jnp.maximum(losses, 0.0) + 1e-6) ** self.priority_exponent
        return jnp.where(weights > 0.0, priorities, 0.0)


@dataclass(frozen=True, kw_only=True)
class WholeWindowsConfig(ReplayConfig):
    """Hyperparameters of a buffer with windows that are sampled step by step."""

    whole_windows: ClassVar[bool] = True
    relabels: ClassVar[bool] = False
