"""One episode, remembered step by step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.base_types import Actor, System
from stoix_like.envs.environment import Environment, State
from stoix_like.envs.wrappers import Vectorize

# Steps of one compiled call; the episode's length is not known beforehand.
_CHUNK = 256


class Recording(NamedTuple):
    """An episode of T steps on the host: T + 1 entries, of which the first is its beginning.

    Attributes:
        states: of the suite's own environment, `[T + 1, ...]`.
        views: what the agent saw, `[T + 1, *view]`.
        returns: `[T + 1]`, the sum of the rewards so far.
        finished: `[T + 1]` bool; the last is False only where the episode was cut before its end.
    """

    states: State
    views: np.ndarray
    returns: np.ndarray
    finished: np.ndarray


def record_episode(system: System, shared: Any, env: Environment, key: jax.Array, max_steps: int) -> Recording:
    """Play one episode by `eval_act`.

    Args:
        system: the system.
        shared: its trained state, of one member.
        env: the environment as the system knows it, with every wrapper.
        key: a typed PRNG key.
        max_steps: an episode that has not ended by then is cut.

    Returns:
        The episode.
    """
    vector = Vectorize(env)
    reset_key, key = jax.random.split(key)

    def snapshot(actor: Actor) -> Recording:
        env_state, timestep, _ = jax.tree.map(lambda leaf: leaf[0], actor)
        episode = timestep.episode
        view = timestep.next_observation.agent_view
        return Recording(env.native_state(env_state), view, episode.episode_return, episode.finished)

    @jax.jit
    def begin(key: jax.Array) -> tuple[Actor, Recording]:
        env_state, timestep = vector.reset(key[None])
        actor = Actor(env_state, timestep, system.init_carry(1))
        return actor, jax.tree.map(lambda leaf: leaf[None], snapshot(actor))

    @jax.jit
    def play(shared: Any, actor: Actor, keys: jax.Array) -> tuple[Actor, Recording]:
        def step(actor: Actor, key: jax.Array) -> tuple[Actor, Recording]:
            act_key, env_key = jax.random.split(key)
            carry, action, _ = system.eval_act(shared, actor, act_key)
            env_state, timestep = vector.step(env_key[None], actor.env_state, action)
            actor = Actor(env_state, timestep, carry)
            return actor, snapshot(actor)

        return jax.lax.scan(step, actor, keys)

    actor, first = begin(reset_key)
    chunks = [jax.device_get(first)]
    while not chunks[-1].finished.any() and (len(chunks) - 1) * _CHUNK < max_steps:
        keys = jax.random.split(jax.random.fold_in(key, len(chunks)), _CHUNK)
        actor, chunk = play(shared, actor, keys)
        chunks.append(jax.device_get(chunk))
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)
    ends = np.flatnonzero(whole.finished)
    length = min(ends[0] if ends.size else max_steps, max_steps)
    return jax.tree.map(lambda leaf: leaf[: length + 1], whole)
