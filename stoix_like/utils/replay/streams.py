"""Replay of sequences of entries, for world models, which see the end of an episode and the start of the next one.

Each environment is a stream of entries: an observation, the action that led to it and the reward on arrival. A step
that ends its episode is followed by an entry of its true successor, where the episode ends (`is_last`), and then by the
first entry of the next episode (`is_first`), with zero action and reward. So a truncated episode ends with an
entry that did not terminate, and no other pass needs the true successors.

The streams of a shard are rows of L entries of one array, each a ring with its own write position. Sequences start at
every P-th entry, for which the latent state of the world model before it is stored: first from acting, then from
the gradient steps, which `refresh` writes back.

Shape letters: T time, N environments per shard, L stored entries per environment, P entries between two starts, W
entries per sequence, B sequences per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, SystemSpec, TimeStep, Trajectory
from stoix_like.errors import ConfigError, multiples_near
from stoix_like.schema import INT32_MAX, between
from stoix_like.utils.jax_utils import Scalar, append_dims
from stoix_like.utils.replay.config import BufferConfig
from stoix_like.utils.replay.data import with_data


@dataclass(frozen=True, kw_only=True)
class StreamReplayConfig(BufferConfig):
    """Hyperparameters of a buffer of sequences of entries. Totals are over all shards.

    Each environment step is an entry, and the end of an episode another one.
    """

    sequence_length: Annotated[int, between(2, 2**20)]  # entries per sequence
    # Entries between two stored latent states, at which sequences can start; 1: every entry.
    latent_period: Annotated[int, between(1, 2**20)]
    # Sequences of each batch that end with the newest entries, at most one per environment.
    online_sequences: Annotated[int, between(0, INT32_MAX)]

    def buffer_unit(self, num_envs: int, num_shards: int, rollout_length: int) -> int:
        """Rollouts have entries of their own for the ends of episodes."""
        return num_shards * num_envs * self.latent_period

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Check that sequences fit, and that the first update finds one of each environment."""
        length, period, rollout = self.sequence_length, self.latent_period, config.rollout_length
        self._check_totals(num_envs, num_shards, rollout, 2**30)
        if self.only_data:
            return
        if length % period:
            raise ConfigError(
                f"system.sequence_length={length} must be a multiple of system.latent_period={period}: use"
                f" {multiples_near(length, period)}"
            )
        if self.online_sequences > self.total_batch_size:
            raise ConfigError(
                f"system.online_sequences={self.online_sequences} exceeds"
                f" system.total_batch_size={self.total_batch_size}: use at most {self.total_batch_size}"
            )
        if self.online_sequences % num_shards:
            raise ConfigError(
                f"system.online_sequences={self.online_sequences} must be a multiple of {num_shards}, the number of"
                f" shards: use {multiples_near(self.online_sequences, num_shards)}"
            )
        total_envs = num_envs * num_shards
        capacity = self.buffer_size(num_envs, num_shards, rollout) // total_envs
        # The oldest entry of a full row can be just behind a start; each step of a rollout can end an episode.
        needed = max(length + (period if period > 1 else 0), -(-2 * rollout // period) * period)
        if capacity < needed:
            raise ConfigError(
                f"system.total_buffer_size={self.total_buffer_size} holds {capacity} entries of each of {total_envs}"
                f" environments, too few for system.sequence_length={length} with system.latent_period={period} or for"
                f" twice system.rollout_length={rollout}: use at least {needed * total_envs}"
            )
        first = config.warmup_steps + rollout
        if first < length:
            raise ConfigError(
                f"system.warmup_steps={config.warmup_steps}: the first update finds {first} step(s) of each of"
                f" {total_envs} environments, too few for system.sequence_length={length}: use at least"
                f" {-(-(length - rollout) // rollout) * rollout}"
            )


class Stream(NamedTuple):
    """Consecutive entries of environments."""

    observation: Observation  # `[W, B, ...]`
    action: jax.Array  # `[W, B, ...]`, the action that led to the observation; zero where `is_first`
    reward: jax.Array  # `[W, B]`, the scaled reward on arrival; zero where `is_first`
    is_first: jax.Array  # `[W, B]` bool, whether the observation is the first of its episode
    is_last: jax.Array  # `[W, B]` bool, whether the episode ended there: no action follows
    terminated: jax.Array  # `[W, B]` bool, whether the episode terminated there; False at a truncation


class StreamBatch(NamedTuple):
    """Batch of sequences."""

    entries: Stream  # `[W, B, ...]`
    latent: PyTree  # `[B, ...]`, the latent state before the first entry; of no meaning where that is a first one
    indices: tuple[jax.Array, jax.Array]  # `[B]` rows and `[B]` starts, for `StreamReplay.refresh`


class StreamState(NamedTuple):
    """The streams of one shard."""

    entries: Stream  # `[N * L, ...]`, the rows of all environments; observations and latent states are flat
    latents: PyTree  # `[N * L / P, ...]`, the latent state before every P-th entry
    position: jax.Array  # `[N]` int32, index in its row of the next entry
    size: jax.Array  # `[N]` int32, entries in the row
    latent: PyTree  # `[N, ...]`, the latent state after the observation of the last step
    action: jax.Array  # `[N, ...]`, the action of the last step
    reward: jax.Array  # `[N]`, its scaled reward


class StreamReplay(NamedTuple):
    """Replay buffer of one shard, as functions of its state. Within an update, `add` precedes the first `sample`."""

    # `(timestep) -> state`, an empty buffer; `timestep` `[N, ...]` is an example.
    init: Callable[[TimeStep], StreamState]
    # `(state, trajectory) -> state`; the extras of a transition are the latent state after its observation.
    add: Callable[[StreamState, Trajectory], StreamState]
    sample: Callable[[StreamState, jax.Array], StreamBatch]  # `(state, key) -> StreamBatch`
    # `(state, indices, latents [W, B, ...]) -> state`.
    refresh: Callable[[StreamState, tuple[jax.Array, jax.Array], PyTree], StreamState]


def make_stream_replay(
    config: StreamReplayConfig, spec: SystemSpec, latent: PyTree, reward_scale: Scalar = 1.0
) -> StreamReplay:
    """Build the replay buffer of a configuration.

    `latent`: `[...]`, the latent state of one environment, an example with the dtypes to store.
    """
    num_envs, num_shards, period = spec.num_envs, spec.num_shards, config.latent_period
    num_entries = config.buffer_size(num_envs, num_shards, spec.rollout_length) // num_shards
    length = num_entries // num_envs
    batch = config.total_batch_size // num_shards
    online = min(config.online_sequences // num_shards, num_envs)
    view = jax.eval_shape(spec.observation_space.sample, jax.random.key(0))

    def flat(observation: Any) -> Any:
        """Return observations with views `[..., *shape]` as rows: an accelerator would pad the axes of an image."""
        return observation._replace(agent_view=_flatten(observation.agent_view, view))

    def starts(state: StreamState) -> tuple[jax.Array, jax.Array]:
        """Return the first start in each row, and the number of starts, `[N]` each."""
        oldest = (state.position - state.size) % length
        skipped = -oldest % period
        count = (state.size - skipped - config.sequence_length) // period + 1
        return oldest + skipped, jnp.maximum(count, 0)

    def init(timestep: TimeStep) -> StreamState:
        action = jax.eval_shape(spec.action_space.sample, jax.random.key(0))
        observation = jax.tree.map(lambda x: x[0], timestep.observation)
        flag, reward = jnp.zeros((), bool), jnp.zeros((), jnp.float32)
        entry = Stream(flat(observation), action, reward, flag, flag, flag)

        def rows(tree: Any, count: int) -> Any:
            return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), tree)

        return StreamState(
            entries=rows(entry, num_entries),
            latents=rows(_flatten(latent, latent), num_entries // period),
            position=jnp.zeros(num_envs, jnp.int32),
            size=jnp.zeros(num_envs, jnp.int32),
            latent=rows(latent, num_envs),
            action=rows(action, num_envs),
            reward=rows(reward, num_envs),
        )

    def add(state: StreamState, trajectory: Trajectory) -> StreamState:
        steps = trajectory.transitions
        like = state.entries
        action = steps.action.astype(like.action.dtype)
        reward = (steps.reward * reward_scale).astype(like.reward.dtype)
        is_first, ended, no = steps.is_first, steps.terminated | steps.truncated, jnp.zeros_like(steps.is_first)
        # An observation comes after the step before it, its true successor after its own step.
        after = jax.tree.map(lambda x, last: x.astype(last.dtype), steps.extras, state.latent)
        led, arrived, latents_before = jax.tree.map(
            lambda last, xs: jnp.concatenate([last[None], xs[:-1]]),
            (state.action, state.reward, state.latent),
            (action, reward, after),
        )
        led, arrived = (jnp.where(append_dims(is_first, x.ndim), jnp.zeros_like(x), x) for x in (led, arrived))
        observed = Stream(flat(steps.observation), led, arrived, is_first, no, no)
        successor = Stream(flat(steps.next_observation), action, reward, no, ended, steps.terminated)
        num_added = jnp.cumsum(1 + ended.astype(jnp.int32), axis=0)
        newest = state.position[None] + num_added - 1
        rows = length * jnp.arange(num_envs)[None]
        at_observed = rows + (newest - ended) % length
        # Where a step does not end its episode, `num_entries` is beyond the end.
        at_successor = jnp.where(ended, rows + newest % length, num_entries)
        entries, latents = state.entries, state.latents
        for places, entry, before_it in ((at_observed, observed, latents_before), (at_successor, successor, after)):
            entries = _write(entries, places, entry)
            is_start = (places % period == 0) & (places < num_entries)
            blocks = jnp.where(is_start, places // period, num_entries // period)
            latents = _write(latents, blocks, _flatten(before_it, latent))
        last = jax.tree.map(lambda x: x[-1], (after, action, reward))
        size = jnp.minimum(state.size + num_added[-1], length)
        return StreamState(entries, latents, (newest[-1] + 1) % length, size, *last)

    def sample(state: StreamState, key: jax.Array) -> StreamBatch:
        key_online, key_uniform = jax.random.split(key)
        first, count = starts(state)
        total = jnp.cumsum(count)
        drawn = jax.random.randint(key_uniform, (batch - online,), 0, total[-1])
        row = jnp.searchsorted(total, drawn, side="right", method="compare_all")
        step = drawn - (total[row] - count[row])
        if online:
            newest = (jax.random.randint(key_online, (), 0, num_envs) + jnp.arange(online)) % num_envs
            row, step = jnp.concatenate([newest, row]), jnp.concatenate([count[newest] - 1, step])
        start = (first[row] + period * step) % length
        places = (length * row)[None] + (start[None] + jnp.arange(config.sequence_length)[:, None]) % length
        entries = jax.tree.map(lambda x: x[places], state.entries)
        observation = entries.observation._replace(agent_view=_unflatten(entries.observation.agent_view, view))
        stored = jax.tree.map(lambda x: x[(length * row + start) // period], state.latents)
        return StreamBatch(entries._replace(observation=observation), _unflatten(stored, latent), (row, start))

    def refresh(state: StreamState, indices: tuple[jax.Array, jax.Array], latents: PyTree) -> StreamState:
        row, start = indices
        behind = (start[None] + jnp.arange(period, config.sequence_length + 1, period)[:, None]) % length
        blocks = ((length * row)[None] + behind) // period
        # Behind the newest entry is the oldest one, or none.
        blocks = jnp.where(behind == state.position[row][None], num_entries // period, blocks)
        values = jax.tree.map(lambda x: x[period - 1 :: period], latents)
        # A diverged member may continue from the parameters of another: unknown latents are zero, as in recorded data.
        values = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)), values)
        blocks = _last_of_equal(blocks, num_entries // period)
        return state._replace(latents=_write(state.latents, blocks, _flatten(values, latent)))

    draw = partial(_draw, spec, batch, config.sequence_length, latent, reward_scale)
    return with_data(config, spec, StreamReplay(init, add, sample, refresh), draw, axes=(1, 0, 0))


def _draw(
    spec: SystemSpec, batch: int, length: int, latent: PyTree, reward_scale: Scalar, key: jax.Array
) -> StreamBatch:
    """Draw sequences of recorded data, which start like episodes: the latent state before them is unknown."""
    data, rows = spec.data, len(spec.data.reward)
    first = jax.random.randint(key, (batch,), 0, max(rows - length + 1, 1))
    places = jnp.minimum(first[None] + jnp.arange(length)[:, None], rows - 1)
    starts, is_last = data.is_first(places), ~jnp.asarray(data.valid)[places]
    is_first, before = starts.at[0].set(True), data.take(places - 1, reward_scale)
    # The reward of a first entry within an episode is known, and a target.
    led = jnp.where(append_dims(is_first, before.action.ndim), jnp.zeros_like(before.action), before.action)
    arrived = jnp.where(starts, 0.0, before.reward)
    observation = jax.tree.map(lambda x: jnp.asarray(x)[places], data.observation)
    entries = Stream(observation, led, arrived, is_first, is_last, is_last & before.terminated)
    unknown = jax.tree.map(lambda x: jnp.zeros((batch, *x.shape), x.dtype), latent)
    # Beyond the rows of the buffer, where `refresh` writes nothing.
    nowhere = jnp.full(batch, spec.num_envs, jnp.int32), jnp.zeros(batch, jnp.int32)
    return StreamBatch(entries, unknown, nowhere)


def end_streams(state: StreamState) -> StreamState:
    """Mark the newest entry of each row as the last of its episode, with any leading axes of the state."""
    is_last = state.entries.is_last
    rows = is_last.reshape(*state.position.shape, -1)
    newest = (state.position[..., None] - 1) % rows.shape[-1]
    is_newest = (jax.lax.broadcasted_iota(jnp.int32, rows.shape, rows.ndim - 1) == newest) & (state.size > 0)[..., None]
    return state._replace(entries=state.entries._replace(is_last=(rows | is_newest).reshape(is_last.shape)))


def _write(stored: PyTree, places: jax.Array, values: PyTree) -> PyTree:
    """Write `[T, N, ...]` values to `[T, N]` places, and none that are beyond the end."""
    return jax.tree.map(lambda x, value: x.at[places].set(value.astype(x.dtype), mode="drop"), stored, values)


def _last_of_equal(places: jax.Array, nowhere: int) -> jax.Array:
    """Replace all but the last of equal places by `nowhere`: the order of writes to one place is undefined."""
    order = jnp.argsort(places.ravel(), stable=True)
    ordered = places.ravel()[order]
    is_last = jnp.concatenate([ordered[1:] != ordered[:-1], jnp.ones(1, bool)])
    return (
        jnp.zeros_like(ordered)
        .at[order]
        .set(jnp.where(is_last, ordered, nowhere), unique_indices=True)
        .reshape(places.shape)
    )


def _flatten(tree: PyTree, like: PyTree) -> PyTree:
    """Return arrays `[..., *shape]` as `[..., D]`, with the shapes of `like`; numbers stay without an axis.

    Four bytes of an image are one number: a TPU tiles rows of bytes in two ways, and would copy the buffer in between.
    """

    def flatten(x: jax.Array, like: Any) -> jax.Array:
        if like.ndim <= 1:
            return x
        x = x.reshape(*x.shape[: x.ndim - like.ndim], -1)
        if _is_packed(like):
            x = jax.lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, 4), jnp.uint32)
        return x

    return jax.tree.map(flatten, tree, like)


def _unflatten(tree: PyTree, like: PyTree) -> PyTree:
    """Return arrays `[..., D]` as `[..., *shape]`, with the shapes of `like`."""

    def unflatten(x: jax.Array, like: Any) -> jax.Array:
        if like.ndim <= 1:
            return x
        shape = (*x.shape[:-1], *like.shape)
        return (jax.lax.bitcast_convert_type(x, like.dtype) if _is_packed(like) else x).reshape(shape)

    return jax.tree.map(unflatten, tree, like)


def _is_packed(like: Any) -> bool:
    """Return whether four entries of an array are stored as one number."""
    return bool(jnp.issubdtype(like.dtype, jnp.integer)) and like.dtype.itemsize == 1 and like.size % 4 == 0
