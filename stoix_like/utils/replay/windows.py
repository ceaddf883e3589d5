"""Replay of single steps and of n-step windows, built on flashbax.

A window starts at any stored step and ends after `n_step` steps, or with the actions of a chunk, or with its episode,
whichever comes first. Its target is

    sum_{k <= m} gamma^k r_k + gamma^{m+1} (1 - terminated_m) v(successor of step m),   m the last step of the window

so a window that ends with a truncated step bootstraps from the true successor, like one that ends after `n_step` steps.

Shape letters: T time, N environments per shard, L stored steps per environment, W steps per window, B windows per
batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import SystemSpec, TimeStep, Trajectory, Transition
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.replay.buffers import add_rows, example_step, importance_weights, make_buffer, stored_steps
from stoix_like.utils.replay.config import ReplayConfig
from stoix_like.utils.replay.data import Data, with_data
from stoix_like.utils.replay.frames import store_frames_once
from stoix_like.utils.replay.relabel import Relabel, make_relabel
from stoix_like.utils.replay.types import Batch, Replay, Step


def make_replay(config: ReplayConfig, spec: SystemSpec, gamma: Scalar, reward_scale: Scalar = 1.0) -> Replay:
    """Build the replay buffer of a configuration: of single steps, of windows, or of windows with priorities.

    Stacked frames are stored once, see `store_frames_once`.
    """
    buffer, relabel = make_buffer(config, spec), make_relabel(config, spec, gamma, reward_scale)

    def init(timestep: TimeStep) -> Any:
        step = example_step(config, spec, timestep)
        return buffer.init(step if config.relabel is None else step._replace(extras=jnp.int32(0)))

    def add(state: Any, trajectory: Trajectory) -> Any:
        like = state.experience if config.relabel is None else state.experience._replace(extras=None)
        stored = stored_steps(config, reward_scale, trajectory.transitions, like)
        if not config.per_env_rows:
            return buffer.add(state, stored)
        rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), stored)
        return add_rows(config, buffer, state, config.numbered(state, rows))

    def sample(state: Any, key: jax.Array, importance_exponent: Any = 1.0) -> Batch:
        drawn = buffer.sample(state, key)
        if config.per_env_rows:
            steps = relabel.replayed(buffer.sample, state, key, drawn.experience)
            steps = config.joined(steps, 1)
            windows = jax.vmap(partial(_window_target, config, gamma))(steps)
        else:
            windows = _step_targets(drawn.experience, gamma)
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

    replay = _store_views_once(config, spec, Replay(init, add, sample, sample_steps, set_priorities))
    draw = partial(_draw, config, spec, relabel, gamma, reward_scale)
    return with_data(config, spec, replay, draw, axes=(0,) * len(Batch._fields))


def _draw(
    config: ReplayConfig, spec: SystemSpec, relabel: Relabel, gamma: Scalar, reward_scale: Scalar, key: jax.Array
) -> Batch:
    """Draw windows of recorded data."""
    data: Data = spec.data
    rows = data.windows(key, config.total_batch_size // spec.num_shards, config.return_steps)
    steps = relabel.recorded(key, rows, data.take(rows, reward_scale))
    steps = config.joined(steps, 0)
    batch = jax.vmap(partial(_window_target, config, gamma), in_axes=1)(steps)
    return batch._replace(next_action=data.next_action(rows[0])) if config.only_data else batch


def _store_views_once(config: ReplayConfig, spec: SystemSpec, replay: Replay) -> Replay:
    """Let a replay buffer store each frame of stacked ones once, unless it stores whole windows."""
    space: Any = spec.observation_space
    num_frames = getattr(space, "stacked", 1)
    # Of a window, every truncated step needs the last frame of its episode, which may be overwritten.
    if num_frames == 1 or config.whole_windows:
        return replay
    capacity = config.buffer_size(spec.num_envs, spec.num_shards, spec.rollout_length)
    steps_per_env = -(-capacity // (spec.num_shards * spec.num_envs))
    return store_frames_once(replay, num_frames, space.shape, steps_per_env, config.store_next_observation)


def _step_targets(step: Step, gamma: Any) -> Batch:
    """Return the targets of windows of one step each, `[B, ...]`."""
    discount = gamma * (1.0 - step.terminated)
    assert step.next_observation is not None
    weight = jnp.ones_like(step.reward)
    return Batch(step.observation, step.action, step.reward, discount, step.next_observation, weight, None)


def _window_target(config: ReplayConfig, gamma: Any, window: Step) -> Batch:
    """Compute the target of a window `[W, ...]` from the steps of the episode that it starts in."""
    assert window.truncated is not None
    n_step = config.return_steps
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
