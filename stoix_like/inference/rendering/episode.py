"""Recording of single episodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.architectures.acting import act_and_step, start_episodes
from stoix_like.base_types import PyTree, RolloutState, System
from stoix_like.envs.environment import State, VectorEnvironment

# Steps per compiled call; the length of the episode is unknown in advance.
_CHUNK = 256


class Recording(NamedTuple):
    """An episode of T steps as host arrays of T + 1 entries, starting with the reset.

    Attributes:
        states: `[T + 1, ...]` states of the suite's environment.
        views: `[T + 1, *view]` views of the agent, an array or a dictionary of arrays.
        returns: `[T + 1]` sums of the rewards so far.
        finished: `[T + 1]` bool; the last is False only if recording stopped before the end of the episode.
    """

    states: State
    views: PyTree
    returns: np.ndarray
    finished: np.ndarray


def record_episode(system: System, shared: Any, env: VectorEnvironment, key: jax.Array, max_steps: int) -> Recording:
    """Record one episode played with `eval_act`.

    Args:
        system: the system.
        shared: the trained state of one member.
        env: environments without automatic reset, with their wrappers.
        key: a typed PRNG key.
        max_steps: steps after which recording stops.

    Returns:
        The episode.
    """
    reset_key, key = jax.random.split(key)

    def snapshot(state: RolloutState) -> Recording:
        native = env.native_state(state.env_state)
        episode, view = state.timestep.episode, state.timestep.next_observation.agent_view
        fields: Any = jax.tree.map(lambda leaf: leaf[0], (native, view, episode.episode_return, episode.finished))
        return Recording(*fields)

    @jax.jit
    def start(key: jax.Array) -> tuple[RolloutState, Recording]:
        state = start_episodes(env, system, key[None])
        return state, jax.tree.map(lambda leaf: leaf[None], snapshot(state))

    @jax.jit
    def play(shared: Any, state: RolloutState, keys: jax.Array) -> tuple[RolloutState, Recording]:
        def step(state: RolloutState, key: jax.Array) -> tuple[RolloutState, Recording]:
            act_key, env_key = jax.random.split(key)
            state, _, _ = act_and_step(env, system.eval_act, shared, state, act_key, env_key[None])
            return state, snapshot(state)

        return jax.lax.scan(step, state, keys)

    state, first = start(reset_key)
    chunks = [jax.device_get(first)]
    while not chunks[-1].finished.any() and (len(chunks) - 1) * _CHUNK < max_steps:
        keys = jax.random.split(jax.random.fold_in(key, len(chunks)), _CHUNK)
        state, chunk = play(shared, state, keys)
        chunks.append(jax.device_get(chunk))
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)
    ends = np.flatnonzero(whole.finished)
    length = min(ends[0] if ends.size else max_steps, max_steps)
    return jax.tree.map(lambda leaf: leaf[: length + 1], whole)
