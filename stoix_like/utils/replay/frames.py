"""Replay of stacked frames that stores each frame once, and builds the stacks when it samples.

The newest frame of every step goes into a ring of its environment. A stack is stored as the positions of its frames,
which belong to the steps before; at the start of an episode, its first frame fills the stack. The last frame of an
episode belongs to no step, and goes into a ring for the ends of episodes.

Shape letters: T time, N environments per shard, B windows per batch, K frames per stack, R frames in the ring of an
environment, M frames in the ring of ends, D numbers per frame.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import TimeStep, Trajectory, Transition
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX
from stoix_like.utils.replay.types import Batch, Replay

# Room for the ends of episodes, per environment: of all episodes, if they have as many steps on average.
_STEPS_PER_END = 32
_MIN_ENDS = 16


class FramePool(NamedTuple):
    """The frames of one shard."""

    frames: jax.Array  # `[N * R + M, D]` the rings of the environments, and the ring of ends
    # `[N * R]` int32, for the step with its newest frame here, position of the newest frame of its successor.
    successor: jax.Array
    owner: jax.Array  # `[M]` int32, position of the step that ended its episode with this frame
    # Int32, index of the next step in the ring of each environment; holds the successor of the last one.
    next_step: jax.Array
    next_end: jax.Array  # int32, index in the ring of ends of the next end
    age: jax.Array  # `[N]` int32, steps since the start of the episode, at most K - 1, of the next step
    continues: jax.Array  # `[N]` bool, whether the last step did not end its episode


class FrameReplayState(NamedTuple):
    """The frames, and the state of a replay buffer that stores positions of frames as observations."""

    pool: FramePool
    buffer: Any


def store_frames_once(
    replay: Replay, num_frames: int, shape: tuple[int, ...], steps_per_env: int, has_successors: bool
) -> Replay:
    """Let a replay buffer store positions of frames instead of stacks of frames.

    Samples equal those from the replay buffer with stacks. Where a truncated step is so old that the last frame of its
    episode has been overwritten, because episodes are short, the weight is zero.

    `shape`: shape of the agent's view, `[..., C * K]`.
    """

    def init(timestep: TimeStep) -> FrameReplayState:
        view = timestep.observation.agent_view
        pool = _init(view, num_frames, steps_per_env)
        positions = jnp.zeros((len(view), num_frames), jnp.int32)
        observation = timestep.observation._replace(agent_view=positions)
        return FrameReplayState(pool, replay.init(timestep._replace(observation=observation)))

    def add(state: FrameReplayState, trajectory: Trajectory) -> FrameReplayState:
        steps = trajectory.transitions
        pool, positions = _add(state.pool, steps, num_frames)
        # The successor has the positions of its own step, which `_successor` moves on by one.
        steps = steps._replace(
            observation=steps.observation._replace(agent_view=positions),
            next_observation=steps.next_observation._replace(agent_view=positions),
        )
        return FrameReplayState(pool, replay.add(state.buffer, trajectory._replace(transitions=steps)))

    def sample(state: FrameReplayState, key: jax.Array, importance_exponent: Any = 1.0) -> Batch:
        batch, pool = replay.sample(state.buffer, key, importance_exponent), state.pool
        first, last = batch.observation.agent_view, batch.next_observation.agent_view
        weight = batch.weight
        if has_successors:
            last, exists = _successor(pool, last)
            # A terminated step needs no successor.
            weight = jnp.where(exists | (batch.discount == 0.0), weight, 0.0)
        return batch._replace(
            observation=batch.observation._replace(agent_view=_stack(pool, first, shape)),
            next_observation=batch.next_observation._replace(agent_view=_stack(pool, last, shape)),
            weight=weight,
        )

    def set_priorities(state: FrameReplayState, indices: jax.Array, priorities: jax.Array) -> FrameReplayState:
        return state._replace(buffer=replay.set_priorities(state.buffer, indices, priorities))

    return replay._replace(init=init, add=add, sample=sample, set_priorities=set_priorities)


def _init(view: jax.Array, num_frames: int, steps_per_env: int) -> FramePool:
    """Return an empty pool for views `[N, ..., C * K]`."""
    num_envs = len(view)
    # The oldest stack has K - 1 older frames, and the successor of the newest step one that is newer.
    ring = num_envs * (steps_per_env + num_frames)
    num_ends = num_envs * (steps_per_env // _STEPS_PER_END + _MIN_ENDS)
    if ring + num_ends > INT32_MAX:
        raise ConfigError(
            f"system.total_buffer_size: {ring + num_ends:,} frames per shard are more than a 32-bit index can reach:"
            " use a smaller buffer"
        )
    return FramePool(
        frames=jnp.zeros((ring + num_ends, math.prod(view.shape[1:]) // num_frames), view.dtype),
        successor=jnp.zeros(ring, jnp.int32),
        owner=jnp.zeros(num_ends, jnp.int32),
        next_step=jnp.zeros((), jnp.int32),
        next_end=jnp.zeros((), jnp.int32),
        age=jnp.zeros(num_envs, jnp.int32),
        continues=jnp.zeros(num_envs, bool),
    )


def _add(pool: FramePool, steps: Transition, num_frames: int) -> tuple[FramePool, jax.Array]:
    """Add the frames of `[T, N]` steps; return the positions of the frames of their stacks, too: `[T, N, K]`."""
    num_steps, num_envs = steps.reward.shape
    ring, num_ends = len(pool.successor), len(pool.owner)
    length, nowhere = ring // num_envs, len(pool.frames)

    def positions(time: jax.Array) -> jax.Array:
        """Return the positions in `frames` of times `[..., N or 1, ...]` since the next step, with N on axis 1."""
        row = length * jnp.arange(num_envs).reshape(1, -1, *(1,) * (time.ndim - 2))
        return row + (pool.next_step + time) % length

    time = jnp.arange(num_steps)[:, None]
    age = time - jax.lax.cummax(jnp.where(steps.is_first, time, -pool.age[None]), axis=0)
    # Before the start of the episode, its first frame.
    back = jnp.minimum(age[..., None], jnp.arange(num_frames - 1, -1, -1)[None, None])
    stacks = positions(time[..., None] - back)

    # The last step of the rollout before also ends an episode, if another one starts here without an end, as after a
    # resumption.
    ended = steps.terminated | steps.truncated
    ends = jnp.concatenate([(pool.continues & steps.is_first[0])[None], ended])
    rank = jnp.cumsum(ends.ravel(), dtype=jnp.int32).reshape(ends.shape) - 1
    total = rank[-1, -1] + 1
    slot = (pool.next_end + rank) % num_ends
    is_stored = ends & (rank >= total - num_ends)

    # Of the step before the rollout, and of its own steps.
    before = positions(jnp.arange(-1, num_steps)[:, None])
    after = positions(jnp.arange(num_steps + 1)[:, None])
    views = steps.observation.agent_view, steps.next_observation.agent_view
    newest, newest_successor = (_newest(view, num_frames) for view in views)
    last = jnp.concatenate([pool.frames[after[0]][None], newest_successor])
    where = jnp.concatenate([after, jnp.where(is_stored, ring + slot, nowhere)])
    frames = jnp.concatenate([newest, newest_successor[-1:], last])
    changed = jnp.concatenate([ends[:1], jnp.ones_like(ended)])
    pool = FramePool(
        frames=pool.frames.at[where].set(frames, mode="drop"),
        successor=pool.successor.at[jnp.where(changed, before, nowhere)].set(
            jnp.where(ends, ring + slot, after), mode="drop"
        ),
        owner=pool.owner.at[jnp.where(is_stored, slot, num_ends)].set(before, mode="drop"),
        next_step=(pool.next_step + num_steps) % length,
        next_end=(pool.next_end + total) % num_ends,
        age=jnp.minimum(age[-1] + 1, num_frames - 1),
        continues=~ended[-1],
    )
    return pool, stacks


def _successor(pool: FramePool, stacks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the stacks that follow the stacks of steps, `[B, K]`, and whether they exist, `[B]`."""
    step, ring = stacks[:, -1], len(pool.successor)
    newest = pool.successor[step]
    overwritten = (newest >= ring) & (pool.owner[jnp.maximum(newest - ring, 0)] != step)
    return jnp.concatenate([stacks[:, 1:], newest[:, None]], axis=-1), ~overwritten


def _stack(pool: FramePool, positions: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the views `[B, *shape]` with the frames at `[B, K]`."""
    batch, num_frames = positions.shape
    frames = pool.frames[positions].reshape(batch, num_frames, *shape[:-1], shape[-1] // num_frames)
    return jnp.moveaxis(frames, 1, -2).reshape(batch, *shape)


def _newest(view: jax.Array, num_frames: int) -> jax.Array:
    """Return the newest frames `[T, N, D]` of views `[T, N, ..., C * K]`."""
    channels = view.shape[-1] // num_frames
    return view[..., -channels:].reshape(*view.shape[:2], -1)
