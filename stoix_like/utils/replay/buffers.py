"""Flashbax buffers of steps and of blocks of steps, to which rollouts are added as slices.

Shape letters: T time, N environments per shard, L stored steps or blocks per environment, P steps per block, B windows
per batch.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Axes, PyTree, SystemSpec, TimeStep, Transition
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.replay.config import ReplayConfig
from stoix_like.utils.replay.streams import StreamState, end_streams
from stoix_like.utils.replay.sum_tree import set_priorities
from stoix_like.utils.replay.types import Step


def make_buffer(config: ReplayConfig, spec: SystemSpec) -> Any:
    """Build the flashbax buffer of a configuration, with implicit rank promotion allowed in its functions.

    Returns a buffer of items, or of rows of blocks `[N, L]`; None where recorded data take its place.
    """
    if config.only_data:
        return None
    import flashbax  # systems without replay start without it

    size = config.buffer_size(spec.num_envs, spec.num_shards, spec.rollout_length) // spec.num_shards
    batch = config.total_batch_size // spec.num_shards
    # Several gradient steps are a loop, and its gathers are fused with nothing before it.
    add = add_slice if config.epochs > 1 else _add_by_itself
    if not config.per_env_rows:
        buffer = flashbax.make_item_buffer(size, 1, batch)
        # Steps `[T, N, ...]` are a row `[1, T * N, ...]`.
        in_one_row = partial(jax.tree.map, lambda x: x.reshape(1, -1, *x.shape[2:]))
        buffer = buffer.replace(add=lambda state, steps: add(state, in_one_row(steps)))
    else:
        window = config.window // config.block_length
        length = size // (spec.num_envs * config.block_length)
        sizes: dict[str, Any] = {"max_length_time_axis": length, "min_length_time_axis": window}
        rows = (spec.num_envs, batch, window, 1)
        if config.prioritised:
            # Systems apply the exponent before `set_priorities`, because it may be traced. `add_rows` sets priorities
            # of new windows: flashbax would set them in several passes, item by item.
            buffer = flashbax.make_prioritised_trajectory_buffer(*rows, **sizes, priority_exponent=1.0)
            buffer = buffer.replace(set_priorities=set_priorities)
        else:
            buffer = flashbax.make_trajectory_buffer(*rows, **sizes)
        buffer = buffer.replace(add=add)
    functions = {field.name: getattr(buffer, field.name) for field in dataclasses.fields(buffer)}
    # jax.numpy_rank_promotion is a context manager that also works as a decorator.
    return buffer.replace(**{name: jax.numpy_rank_promotion("allow")(f) for name, f in functions.items()})


def add_slice(state: Any, rows: PyTree) -> Any:
    """Append to the rows of a buffer where the last rollout ended: one slice, which flashbax scatters item by item.

    `state`: the state of a buffer of rows `[N, L]`; every rollout so far had the length of this one.
    `rows`: `[N, K, ...]`, where K divides L, so that no rollout starts before the end and ends after the start.
    """
    (length,) = {x.shape[1] for x in jax.tree.leaves(state.experience)}
    (added,) = {x.shape[1] for x in jax.tree.leaves(rows)}
    if length % added:
        raise ValueError(f"a buffer of {length} steps per row cannot take rollouts of {added} as slices")
    index = state.current_index

    def place(stored: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(stored, new.astype(stored.dtype), index, axis=1)

    experience = jax.tree.map(place, state.experience, rows)
    index += added
    return state.replace(experience=experience, current_index=index % length, is_full=state.is_full | (index >= length))


def _add_by_itself(state: Any, rows: PyTree) -> Any:
    """Append as `add_slice` does; on CPUs, in a loop, which the compiler does not fuse with what follows.

    It would fuse the slice with the gathers of a batch, too, which would read the old buffer: a copy in every update.
    """
    added = add_slice(state, rows)
    if not on_cpu():
        return added

    def write(_: Any, experience: PyTree) -> PyTree:
        return add_slice(state.replace(experience=experience), rows).experience

    # Twice, because the compiler removes loops of one trip.
    return added.replace(experience=jax.lax.fori_loop(0, 2, write, state.experience))


def example_step(config: ReplayConfig, spec: SystemSpec, timestep: TimeStep) -> Step:
    """Return the data of one step, without its values. `timestep`: `[N, ...]`, an example."""
    action = jax.eval_shape(spec.action_space.sample, jax.random.key(0))
    observation = jax.tree.map(lambda x: x[0], timestep.observation)
    return Step(
        observation,
        jnp.zeros(action.shape[config.chunk > 1 :], action.dtype),
        jnp.zeros((), jnp.float32),
        jnp.zeros((), bool),
        truncated=jnp.zeros((), bool) if config.per_env_rows else None,
        next_observation=observation if config.store_next_observation else None,
        extras=jnp.zeros((), jnp.float32) if config.whole_windows else None,
    )


def stored_steps(config: ReplayConfig, reward_scale: Scalar, steps: Transition, like: Step) -> Step:
    """Return what is stored of the steps of a rollout, with scaled rewards.

    `steps`: `[T, N, ...]`.
    Returns `[T, N, ...]`.
    """
    stored = Step(
        steps.observation,
        steps.action,
        steps.reward * reward_scale,
        steps.terminated,
        steps.truncated if config.per_env_rows else None,
        steps.next_observation if config.store_next_observation else None,
        steps.extras if config.whole_windows else None,
    )
    return jax.tree.map(lambda x, like: x.astype(like.dtype), stored, like)


def add_rows(config: ReplayConfig, buffer: Any, state: Any, stored: PyTree) -> Any:
    """Append blocks to the rows of a buffer. `stored`: `[N, L, ...]`, the blocks of each environment in order."""
    added = buffer.add(state, stored)
    if not config.prioritised:
        return added
    num_blocks = jax.tree.leaves(stored)[0].shape[1]
    added = added.replace(running_index=added.running_index + num_blocks)
    return _prefer_new(added, num_blocks, config.window // config.block_length)


def _prefer_new(state: Any, num_steps: int, window: int) -> Any:
    """Set the priority of the windows completed by a rollout to the largest one so far."""
    num_envs, length = jax.tree.leaves(state.experience)[0].shape[:2]
    start = state.running_index - num_steps - window + 1 + jnp.arange(num_steps + window - 1)
    # Other positions hold no window, or one that this write has partly overwritten.
    complete = (start >= 0) & (start >= state.running_index - length) & (start <= state.running_index - window)
    priority = jnp.where(complete, state.sum_tree_state.max_recorded_priority, 0.0)
    indices = length * jnp.arange(num_envs)[:, None] + (start % length)[None]
    return set_priorities(state, indices.ravel(), jnp.tile(priority, num_envs))


def importance_weights(probability: jax.Array, exponent: Any, axes: Axes) -> jax.Array:
    """Compute importance-sampling weights, scaled so that the largest one is 1.

        w_i = (min_j P(j) / P(i))^beta

    Source: Schaul et al. 2016, "Prioritized experience replay", section 3.4; the number of windows cancels.

    `probability`: `[B]`, with which each window of the batch was sampled.
    `exponent`: beta, in [0, 1].
    Returns `[B]`, in [0, 1].
    """
    possible = probability > 0.0
    least = jnp.min(jnp.where(possible, probability, jnp.inf))
    least = jax.lax.pmin(least, axes.names) if axes.names else least
    # Rounding in the sum tree very rarely selects a window of probability zero: it gets weight zero.
    return jnp.where(possible, (least / jnp.where(possible, probability, 1.0)) ** exponent, 0.0)


def end_episodes(local: PyTree) -> PyTree:
    """Truncate the episodes that continue after the last stored step, because other episodes follow in the buffer.

    `local`: the agent's local state, with any leading axes; only buffers of windows and of streams are changed.
    """

    def is_buffer(node: Any) -> bool:
        return isinstance(node, StreamState) or (hasattr(node, "experience") and hasattr(node, "current_index"))

    def truncate(node: Any) -> Any:
        if isinstance(node, StreamState):
            return end_streams(node)
        if not is_buffer(node):
            return node
        truncate_last = partial(_truncate_last, node.current_index)
        experience = jax.tree.map(truncate_last, node.experience, is_leaf=lambda part: isinstance(part, Step))
        return node.replace(experience=experience)

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
