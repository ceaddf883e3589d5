"""Replay of single steps and of n-step windows, built on flashbax.

A window starts at any stored step and ends after `n_step` steps or with its episode, whichever comes first. Its
target is

    sum_{k <= m} gamma^k r_k + gamma^{m+1} (1 - terminated_m) v(successor of step m),   m the last step of the window

so a window that ends with a truncated step bootstraps from the true successor, like one that ends after `n_step` steps.

Shape letters: T time, N environments per shard, L stored steps per environment, W steps per window, B windows per
batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import flashbax
import jax
import jax.numpy as jnp

from stoix_like.base_types import Axes, Observation, PyTree, SystemConfig, SystemSpec, TimeStep, Trajectory, Transition
from stoix_like.errors import ConfigError, multiples_near
from stoix_like.schema import INT32_MAX, above, between
from stoix_like.utils.frame_replay import store_frames_once


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(SystemConfig):
    """Hyperparameters of every system that learns from replay. Totals are over all devices and update batches.

    Attributes:
        total_buffer_size: capacity of the replay buffer, in environment steps.
        total_batch_size: windows per gradient step.
        epochs: gradient steps per update.
        n_step: rewards per target.
        store_next_observation: whether to store each observation twice, as the observation of its own step and as a
            successor. Otherwise it is stored once, and windows that end with a truncated step get weight zero in the
            losses, because their successor is not stored.
        gamma: discount per step.
        reward_scale: factor of the rewards, applied before they are stored.
        has_replay: see `SystemConfig`.
        whole_windows: whether the steps of windows are sampled, by `Replay.sample_steps`, in place of their targets.
    """

    has_replay: ClassVar[bool] = True
    whole_windows: ClassVar[bool] = False
    total_buffer_size: Annotated[int, between(1, 2**53)]
    total_batch_size: Annotated[int, between(1, INT32_MAX)]
    epochs: Annotated[int, between(1, 1_000_000)]
    n_step: Annotated[int, between(1, INT32_MAX - 1)]
    store_next_observation: bool
    gamma: Annotated[float, between(0.0, 1.0)]
    reward_scale: Annotated[float, above(0.0)]

    @property
    def prioritised(self) -> bool:
        """Whether windows are sampled by priority."""
        return False

    @property
    def window(self) -> int:
        """Number of consecutive steps per sample, W."""
        return self.n_step if self.store_next_observation else self.n_step + 1

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
        """Whether the buffer stores steps in order, in one row per environment."""
        return self.window > 1 or self.prioritised or self.whole_windows

    @property
    def max_steps_per_env(self) -> int | None:
        """See `SystemConfig.max_steps_per_env`; steps of windows with priorities are counted in 32 bits."""
        return INT32_MAX if self.prioritised else None

    def buffer_unit(self, num_envs: int, num_shards: int) -> int:
        """Return the number that must divide `total_buffer_size`.

        Args:
            num_envs: environments of one shard.
            num_shards: shards of the whole run.
        """
        return num_shards * (num_envs * self.block_length if self.per_env_rows else 1)

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that buffer and batch divide over the shards, and that the first update can sample a batch.

        Args:
            num_envs: environments of one shard.
            num_shards: shards of the whole run.

        Raises:
            ConfigError: sizes that do not fit; names the key, its value and what would work.
        """
        if self.whole_windows and not self.store_next_observation:
            raise ConfigError(
                "system.store_next_observation=false: this system needs the successor of every step: use true"
            )
        unit = self.buffer_unit(num_envs, num_shards)
        if self.total_buffer_size % unit:
            factors = f"{num_shards} shard(s)" + (f" × {num_envs} environments" if self.per_env_rows else "")
            factors += f" × {self.block_length} steps per block" if self.block_length > 1 else ""
            raise ConfigError(
                f"system.total_buffer_size={self.total_buffer_size} must be a multiple of {unit} ({factors}): use"
                f" {multiples_near(self.total_buffer_size, unit)}"
            )
        # A sum tree has twice as many nodes as steps.
        largest = 2**30 if self.prioritised else INT32_MAX
        if self.total_buffer_size // num_shards > largest:
            raise ConfigError(
                f"system.total_buffer_size={self.total_buffer_size} is too large for the 32-bit indices of"
                f" {num_shards} shard(s): use at most {largest * num_shards // unit * unit}"
            )
        if self.total_batch_size % num_shards:
            raise ConfigError(
                f"system.total_batch_size={self.total_batch_size} must be a multiple of {num_shards}, the number of"
                f" shards: use {multiples_near(self.total_batch_size, num_shards)}"
            )
        total_envs = num_envs * num_shards
        capacity = self.total_buffer_size // total_envs
        if capacity < max(self.rollout_length, self.window):
            raise ConfigError(
                f"system.total_buffer_size={self.total_buffer_size} holds {capacity} step(s) of each of {total_envs}"
                f" environments, fewer than system.rollout_length={self.rollout_length} or the {self.window} step(s) of"
                f" a window ({self.window_keys}): use at least"
                f" {total_envs * max(self.rollout_length, self.window)}"
            )
        self._check_start(total_envs, capacity)

    def _check_start(self, total_envs: int, capacity: int) -> None:
        """Check that the buffer, and the steps before the first update, can hold a batch."""
        needed = (-(-self.total_batch_size // total_envs) - 1) * self.block_length + self.window
        if capacity < needed:
            raise ConfigError(
                f"system.total_batch_size={self.total_batch_size} exceeds the windows that"
                f" system.total_buffer_size={self.total_buffer_size} can hold: use a total_buffer_size of at least"
                f" {needed * total_envs}"
            )
        first = self.warmup_steps + self.rollout_length
        if first < needed:
            rollouts = -(-(needed - self.rollout_length) // self.rollout_length)
            raise ConfigError(
                f"system.warmup_steps={self.warmup_steps}: the first update finds {first} step(s) of each of"
                f" {total_envs} environments, too few for system.total_batch_size={self.total_batch_size}: use at least"
                f" {rollouts * self.rollout_length}"
            )


@dataclass(frozen=True, kw_only=True)
class PrioritisedReplayConfig(ReplayConfig):
    """Hyperparameters of systems that can sample windows by priority (Schaul et al. 2016, arXiv:1511.05952).

    Attributes:
        prioritised: whether windows are sampled by priority; the exponents have no effect otherwise.
        priority_exponent: exponent of the last loss in the sampling probability of a window.
        importance_sampling_exponent: initial exponent of the importance weights, annealed to 1 over the run.
    """

    prioritised: bool = False
    priority_exponent: Annotated[float, between(0.0, 1.0)] = 0.5
    importance_sampling_exponent: Annotated[float, between(0.0, 1.0)] = 0.4

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        """See `SystemConfig.schedules`."""
        others = super().schedules(updates, num_updates)
        if not self.prioritised:
            return others
        return {"importance-sampling exponent": self.importance_exponent(updates, num_updates), **others}

    def importance_exponent(self, updates: Any, num_updates: int) -> Any:
        """Return the exponent of the importance weights after a number of updates, which may be traced."""
        least = self.importance_sampling_exponent
        return least + (1.0 - least) * updates / num_updates

    def priorities(self, losses: jax.Array, weights: jax.Array) -> jax.Array:
        """Compute the priorities of windows.

            p = (max(loss, 0) + 1e-6)^priority_exponent

        Source: Schaul et al. 2016, section 3.3, with the loss in place of the absolute error.

        Args:
            losses: `[B]`, with `loss` in its own units; it is negative only where a loss has more terms than the error.
            weights: `[B]`, the weights of the batch.

        Returns:
            `[B]`, zero for windows of weight zero, which have no target.
        """
        priorities = (jnp.maximum(losses, 0.0) + 1e-6) ** self.priority_exponent
        return jnp.where(weights > 0.0, priorities, 0.0)


class Step(NamedTuple):
    """Stored data of one step; None where a field is not stored.

    Extras are one number per step, such as the log-probability of the action.
    """

    observation: Observation
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array | None
    next_observation: Observation | None
    extras: jax.Array | None = None


class Batch(NamedTuple):
    """Batch of windows, with one target per window.

    Attributes:
        observation: `[B, ...]` observation of the first step.
        action: `[B, ...]` action of the first step.
        reward: `[B]` discounted sum of the rewards of the window.
        discount: `[B]` discount of the bootstrap value: `gamma^steps`, zero where the episode terminated.
        next_observation: `[B, ...]` true successor of the last step.
        weight: `[B]` weight of the loss: the importance-sampling weight, and zero where there is no target.
        indices: `[B]` positions of the windows in the buffer, for `set_priorities`; None without priorities.
    """

    observation: Observation
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    next_observation: Observation
    weight: jax.Array
    indices: jax.Array | None


class Replay(NamedTuple):
    """Replay buffer of one shard, as functions of its state. Within an update, `add` precedes the first `sample`.

    Attributes:
        init: `(timestep) -> state`, an empty buffer; `timestep` `[N, ...]` is an example.
        add: `(state, trajectory) -> state`.
        sample: `(state, key, importance_exponent=1.0) -> Batch`; without priorities the exponent has no effect.
        sample_steps: `(state, key) -> Transition`, the steps of windows `[W, B, ...]`, without targets; the first
            of a window never counts as the first of its episode, which would need the step before it.
        set_priorities: `(state, indices, priorities [B]) -> state`; windows are sampled in proportion to priorities.
    """

    init: Callable[[TimeStep], Any]
    add: Callable[[Any, Trajectory], Any]
    sample: Callable[..., Batch]
    sample_steps: Callable[[Any, jax.Array], Transition]
    set_priorities: Callable[[Any, Any, jax.Array], Any]


def make_replay(config: ReplayConfig, spec: SystemSpec) -> Replay:
    """Build the replay buffer of a configuration: of single steps, of windows, or of windows with priorities.

    Stacked frames are stored once, see `frame_replay`.

    Args:
        config: checked hyperparameters; floats may be traced.
        spec: spaces, axes and sizes.

    Returns:
        The functions of the replay buffer.
    """
    buffer = make_buffer(config, spec)

    def init(timestep: TimeStep) -> Any:
        return buffer.init(example_step(config, spec, timestep))

    def add(state: Any, trajectory: Trajectory) -> Any:
        stored = stored_steps(config, trajectory.transitions, state.experience)
        if not config.per_env_rows:
            return buffer.add(state, stored)
        return add_rows(config, buffer, state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), stored))

    def sample(state: Any, key: jax.Array, importance_exponent: Any = 1.0) -> Batch:
        drawn = buffer.sample(state, key)
        if config.per_env_rows:
            windows = jax.vmap(lambda window: _window_target(window, config.n_step, config.gamma))(drawn.experience)
        else:
            windows = _step_targets(drawn.experience, config.gamma)
        if not config.prioritised:
            return windows
        weight = windows.weight * importance_weights(drawn.probabilities, importance_exponent, spec.axes)
        return windows._replace(weight=weight, indices=drawn.indices)

    def sample_steps(state: Any, key: jax.Array) -> Transition:
        windows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), buffer.sample(state, key).experience)
        ended = windows.terminated | windows.truncated
        is_first = jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])
        return Transition(**windows._asdict(), is_first=is_first)

    def set_priorities(state: Any, indices: jax.Array, priorities: jax.Array) -> Any:
        return buffer.set_priorities(state, indices, priorities) if config.prioritised else state

    replay = Replay(init, add, sample, sample_steps, set_priorities)
    space: Any = spec.observation_space
    num_frames = getattr(space, "stacked", 1)
    # Of a window, every truncated step needs the last frame of its episode, which may be overwritten.
    if num_frames == 1 or config.whole_windows:
        return replay
    steps_per_env = -(-config.total_buffer_size // (spec.num_shards * spec.num_envs))
    return store_frames_once(replay, num_frames, space.shape, steps_per_env, config.store_next_observation)


def end_episodes(local: PyTree) -> PyTree:
    """Truncate the episodes that go on after the last stored step, because other episodes follow in the buffer.

    Args:
        local: the agent's local state, with any leading axes; only buffers of windows are changed.

    Returns:
        The state.
    """

    def is_buffer(node: Any) -> bool:
        return hasattr(node, "experience") and hasattr(node, "current_index")

    def is_step(node: Any) -> bool:
        return isinstance(node, Step)

    def truncate(node: Any) -> Any:
        if not is_buffer(node):
            return node
        truncate_last = partial(_truncate_last, node.current_index)
        return node.replace(experience=jax.tree.map(truncate_last, node.experience, is_leaf=is_step))

    return jax.tree.map(truncate, local, is_leaf=is_buffer)


def _truncate_last(current_index: jax.Array, step: Any) -> Any:
    """Truncate the last stored step of each row, if it is the data of a step and did not terminate."""
    if not isinstance(step, Step) or step.truncated is None:
        return step
    # `[..., N, L]`, or `[..., N, L, P]` with blocks of P steps, and in rows of all steps.
    stored = step.truncated.shape
    rows = (*stored[: current_index.ndim + 1], -1)
    truncated, terminated = step.truncated.reshape(rows), step.terminated.reshape(rows)
    block_length = truncated.shape[-1] // stored[current_index.ndim + 1]
    last = (current_index[..., None, None] * block_length - 1) % truncated.shape[-1]
    truncated |= (jax.lax.broadcasted_iota(jnp.int32, truncated.shape, truncated.ndim - 1) == last) & ~terminated
    return step._replace(truncated=truncated.reshape(stored))


def make_buffer(config: ReplayConfig, spec: SystemSpec) -> Any:
    """Build the flashbax buffer of a configuration, with implicit rank promotion allowed in its functions.

    Args:
        config: checked hyperparameters.
        spec: sizes.

    Returns:
        A buffer of items, or of rows of blocks `[N, L]`.
    """
    size, batch = config.total_buffer_size // spec.num_shards, config.total_batch_size // spec.num_shards
    if not config.per_env_rows:
        buffer = flashbax.make_item_buffer(size, 1, batch, add_sequences=True, add_batches=True)
    else:
        window = config.window // config.block_length
        length = size // (spec.num_envs * config.block_length)
        sizes: dict[str, Any] = {"max_length_time_axis": length, "min_length_time_axis": window}
        rows = (spec.num_envs, batch, window, 1)
        if config.prioritised:
            # Systems apply the exponent before `set_priorities`, because it may be traced.
            sizes |= {"priority_exponent": 1.0, "device": jax.default_backend()}
            buffer = flashbax.make_prioritised_trajectory_buffer(*rows, **sizes)
        else:
            buffer = flashbax.make_trajectory_buffer(*rows, **sizes)
    functions = {field.name: getattr(buffer, field.name) for field in dataclasses.fields(buffer)}
    # jax.numpy_rank_promotion is a context manager that also works as a decorator.
    return buffer.replace(**{name: jax.numpy_rank_promotion("allow")(f) for name, f in functions.items()})


def example_step(config: ReplayConfig, spec: SystemSpec, timestep: TimeStep) -> Step:
    """Return the data of one step, without its values.

    Args:
        config: determines which fields are stored.
        spec: spaces.
        timestep: `[N, ...]`, an example.

    Returns:
        Arrays without a leading axis.
    """
    action = jax.eval_shape(spec.action_space.sample, jax.random.key(0))
    observation = jax.tree.map(lambda x: x[0], timestep.observation)
    return Step(
        observation,
        jnp.zeros(action.shape, action.dtype),
        jnp.zeros(()),
        jnp.zeros((), bool),
        truncated=jnp.zeros((), bool) if config.per_env_rows else None,
        next_observation=observation if config.store_next_observation else None,
        extras=jnp.zeros(()) if config.whole_windows else None,
    )


def stored_steps(config: ReplayConfig, steps: Transition, like: Step) -> Step:
    """Return what is stored of the steps of a rollout, with scaled rewards.

    Args:
        config: determines which fields are stored.
        steps: `[T, N, ...]`.
        like: stored steps, for their dtypes.

    Returns:
        `[T, N, ...]`.
    """
    stored = Step(
        steps.observation,
        steps.action,
        steps.reward * config.reward_scale,
        steps.terminated,
        steps.truncated if config.per_env_rows else None,
        steps.next_observation if config.store_next_observation else None,
        steps.extras if config.whole_windows else None,
    )
    return jax.tree.map(lambda x, like: x.astype(like.dtype), stored, like)


def add_rows(config: ReplayConfig, buffer: Any, state: Any, stored: PyTree) -> Any:
    """Append blocks to the rows of a buffer.

    Args:
        config: checked hyperparameters.
        buffer: from `make_buffer`.
        state: its state.
        stored: `[N, L, ...]`, the blocks of each environment in order.

    Returns:
        The next state, in which new windows have the largest priority so far.
    """
    added = buffer.add(state, stored)
    if not config.prioritised:
        return added
    num_blocks = jax.tree.leaves(stored)[0].shape[1]
    return _prefer_new(buffer, added, num_blocks, config.window // config.block_length)


def _step_targets(step: Step, gamma: Any) -> Batch:
    """Return the targets of windows of one step each, `[B, ...]`."""
    discount = gamma * (1.0 - step.terminated)
    assert step.next_observation is not None
    weight = jnp.ones_like(step.reward)
    return Batch(step.observation, step.action, step.reward, discount, step.next_observation, weight, None)


def _window_target(window: Step, n_step: int, gamma: Any) -> Batch:
    """Compute the target of a window `[W, ...]` from the steps of the episode that it starts in."""
    assert window.truncated is not None
    ended = (window.terminated | window.truncated)[:n_step]
    # One for every step before the end of the episode, zero after it.
    present = jnp.cumprod(jnp.concatenate([jnp.ones((1,)), 1.0 - ended[:-1]]))
    last = jnp.sum(present, dtype=jnp.int32) - 1
    reward = jnp.sum(present * gamma ** jnp.arange(n_step) * window.reward[:n_step])
    terminated = window.terminated[last]
    if window.next_observation is not None:
        successor, weight = jax.tree.map(lambda x: x[last], window.next_observation), jnp.ones(())
    else:
        # The step stored after a truncated one belongs to the next episode.
        successor = jax.tree.map(lambda x: x[last + 1], window.observation)
        weight = 1.0 - (window.truncated[last] & ~terminated)
    observation, action = jax.tree.map(lambda x: x[0], (window.observation, window.action))
    discount = gamma ** (last + 1) * (1.0 - terminated)
    return Batch(observation, action, reward, discount, successor, weight, None)


def importance_weights(probability: jax.Array, exponent: Any, axes: Axes) -> jax.Array:
    """Compute importance-sampling weights, scaled so that the largest one is 1.

        w_i = (min_j P(j) / P(i))^beta

    Source: Schaul et al. 2016, "Prioritized experience replay", section 3.4; the number of windows cancels.

    Args:
        probability: `[B]`, with which each window of the batch was sampled.
        exponent: beta, in [0, 1].
        axes: the axes that the batch is spread over.

    Returns:
        `[B]`, in [0, 1].
    """
    possible = probability > 0.0
    least = jnp.min(jnp.where(possible, probability, jnp.inf))
    least = jax.lax.pmin(least, axes.names) if axes.names else least
    # Rounding in the sum tree very rarely selects a window of probability zero: it gets weight zero.
    return jnp.where(possible, (least / jnp.where(possible, probability, 1.0)) ** exponent, 0.0)


def _prefer_new(buffer: Any, state: Any, num_steps: int, window: int) -> Any:
    """Set the priority of the windows completed by a rollout to the largest one so far; flashbax would round it."""
    num_envs, length = jax.tree.leaves(state.experience)[0].shape[:2]
    start = state.running_index - num_steps - window + 1 + jnp.arange(num_steps)
    # Other positions hold no window, or one that this write has partly overwritten.
    complete = (start >= 0) & (start >= state.running_index - length)
    priority = jnp.where(complete, state.sum_tree_state.max_recorded_priority, 0.0)
    indices = length * jnp.arange(num_envs)[:, None] + (start % length)[None]
    return buffer.set_priorities(state, indices.ravel(), jnp.tile(priority, num_envs))
