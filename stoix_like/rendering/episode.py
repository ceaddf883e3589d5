"""Recording of single episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.acting import act_and_step, game_keys, start_episodes
from stoix_like.architectures.types import Hyperparams
from stoix_like.base_types import RolloutState, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.host import HostEnvironment
from stoix_like.envs.scenes.base import RecordedEpisode

MAX_FRAMES = 500
# Pixels per side of the pictures that are kept.
_MAX_SIDE = 640
# Steps per compiled call; the length of the episode is unknown in advance.
_CHUNK = 256


class Recorder:
    """Recording of episodes played with `eval_act`, one at a time; its programs are compiled once."""

    def __init__(self, build: Callable[[Hyperparams], System], env: VectorEnvironment, max_steps: int) -> None:
        self._build, self._env, self._max_steps = build, env, max_steps
        # Pictures of environments on the host are taken between two calls.
        self._chunk = 1 if env.on_host else _CHUNK
        self._start = jax.jit(self._traced_start)
        self._play = jax.jit(self._traced_play)

    def record(self, shared: Any, hyperparams: Hyperparams, key: jax.Array) -> RecordedEpisode:
        """Record one episode."""
        kept: dict[int, RecordedEpisode] = {}
        stride = 1
        for step, snapshot in self._episode(shared, hyperparams, key):
            if step % stride == 0:
                kept[step] = snapshot
            # One more for the last step.
            if len(kept) == MAX_FRAMES:
                stride *= 2
                kept = {at: each for at, each in kept.items() if at % stride == 0}
        kept[step] = snapshot
        return jax.tree.map(lambda *each: np.stack(each), *kept.values())

    def _episode(self, shared: Any, hyperparams: Hyperparams, key: jax.Array) -> Iterator[tuple[int, RecordedEpisode]]:
        """Yield the steps of an episode, from 0 to its end, without the axis K."""
        reset_key, key = jax.random.split(key)
        state, chunk = self._start(hyperparams, reset_key)
        step = calls = 0
        while True:
            on_host = jax.device_get(chunk)
            for i in range(len(on_host.finished)):
                # Copied, so that a kept step does not keep its chunk.
                snapshot = jax.tree.map(lambda leaf, i=i: np.copy(leaf[i]), on_host)
                yield step, self._with_picture(snapshot, state)
                if snapshot.finished or step == self._max_steps:
                    self._env.release(state.env_state)
                    return
                step += 1
            calls += 1
            keys = jax.random.split(jax.random.fold_in(key, calls), self._chunk)
            state, chunk = self._play(shared, hyperparams, state, keys)

    def _with_picture(self, snapshot: RecordedEpisode, state: RolloutState) -> RecordedEpisode:
        native = self._env.unwrapped
        if not isinstance(native, HostEnvironment):
            return snapshot
        picture = native.picture(self._env.native_state(state.env_state))
        stride = -(-max(picture.shape[:2]) // _MAX_SIDE)
        # Copied, so that the whole picture is not kept.
        return snapshot._replace(states=np.copy(picture[::stride, ::stride]))

    def _snapshot(self, state: RolloutState) -> RecordedEpisode:
        native = self._env.native_state(state.env_state)
        episode, view = state.timestep.episode, state.timestep.next_observation.agent_view
        rows: Any = (episode.episode_length, native, view, episode.episode_return, episode.finished)
        return RecordedEpisode(*jax.tree.map(lambda leaf: _plain(leaf[0]), rows))

    def _traced_start(self, hyperparams: Hyperparams, key: jax.Array) -> tuple[RolloutState, RecordedEpisode]:
        state = start_episodes(self._env, self._build(hyperparams), game_keys(self._env, key))
        return state, jax.tree.map(lambda leaf: leaf[None], self._snapshot(state))

    def _traced_play(
        self, shared: Any, hyperparams: Hyperparams, state: RolloutState, keys: jax.Array
    ) -> tuple[RolloutState, RecordedEpisode]:
        system = self._build(hyperparams)

        def step(state: RolloutState, key: jax.Array) -> tuple[RolloutState, RecordedEpisode]:
            act_key, env_key = jax.random.split(key)
            env_keys = game_keys(self._env, env_key)
            state, _, _ = act_and_step(self._env, system.eval_act, shared, state, act_key, env_keys)
            return state, self._snapshot(state)

        return jax.lax.scan(step, state, keys)


def _plain(leaf: jax.Array) -> jax.Array:
    """Return the data of PRNG keys: numpy has no type for keys."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
