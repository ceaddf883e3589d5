"""Episodes, and what the learned model of a system predicts of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.acting import act_and_step, start_episodes
from stoix_like.architectures.types import Hyperparams
from stoix_like.base_types import Dream, Observation, PyTree, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import ObservationSpace

CONTEXT, LENGTH = 5, 50
"""Observations that the model sees, and all observations, unless stated otherwise."""


class DreamedEpisode(NamedTuple):
    """The first T observations of an episode, and a dream of them, as host arrays.

    Attributes:
        name: `dreamer/dreamer_v3 on gymnax/CartPole-v1`.
        space: the space of one observation.
        legend: names of features of the observation.
        context: number of observations that the model saw; it predicts the others.
        view: `[T, *view]`, an array or a dictionary of arrays.
        reward: `[T]`, of the steps that led to the observations, as training counts them; 0 for the first.
        terminated: `[T]` bool.
        dream: `[T, ...]`, float32.
    """

    name: str
    space: ObservationSpace
    legend: Legend
    context: int
    view: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    dream: Dream


class _Entry(NamedTuple):
    """An observation, and the step that led to it; one of them at a time is followed by the end of the episode."""

    observation: Observation
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    ended: jax.Array


class Dreamer:
    """Episodes played with `eval_act`, and dreams of them; the program is compiled once.

    Args:
        name: name of the run, see `DreamedEpisode.name`.
        build: builds the system from the hyperparameters of a member; the system has `dream`.
        env: environments without automatic reset, with the rewards of training.
        max_steps: steps after which an episode stops.
        context: observations that the model sees, at least 1, and fewer than all.
        length: largest number of observations, T.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Hyperparams], System],
        env: VectorEnvironment,
        max_steps: int,
        context: int = CONTEXT,
        length: int = LENGTH,
    ) -> None:
        self._name, self._build, self._env = name, build, env
        self._length = min(length, max_steps + 1)
        self._context = min(context, self._length - 1)
        self._play_and_dream = jax.jit(self._traced)

    def dream(self, shared: Any, hyperparams: Hyperparams, key: jax.Array) -> DreamedEpisode:
        """Play one episode, and dream it.

        Args:
            shared: the trained state of one member.
            hyperparams: its hyperparameters, as `build` takes them.
            key: a typed PRNG key.

        Returns:
            The episode up to its end, or its first T observations.

        Raises:
            HostEnvironmentError: an environment on the host failed.
        """
        env_state, *found = self._play_and_dream(shared, hyperparams, key)
        entries, dream = jax.device_get(found)
        self._env.check()
        self._env.release(env_state)
        ended = entries.ended[:, 0]
        count = int(ended.argmax()) + 1 if ended.any() else self._length
        entries, dream = jax.tree.map(lambda leaf: leaf[:count, 0], (entries, dream))
        return DreamedEpisode(
            self._name,
            self._env.observation_space,
            self._env.legend(),
            self._context,
            entries.observation.agent_view,
            entries.reward,
            entries.terminated,
            jax.tree.map(np.float32, dream),
        )

    def _traced(self, shared: Any, hyperparams: Hyperparams, key: jax.Array) -> tuple[Any, _Entry, Dream]:
        system = self._build(hyperparams)
        assert system.dream is not None
        start_key, play_key, dream_key = jax.random.split(key, 3)
        start = start_episodes(self._env, system, start_key[None])

        def step(state: Any, key: jax.Array) -> tuple[Any, _Entry]:
            act_key, env_key = jax.random.split(key)
            state, action, _ = act_and_step(self._env, system.eval_act, shared, state, act_key, env_key[None])
            after = state.timestep
            ended = after.terminated | after.truncated
            return state, _Entry(after.next_observation, action, after.reward, after.terminated, ended)

        last, steps = jax.lax.scan(step, start, jax.random.split(play_key, self._length - 1))
        first = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), steps)
        first = first._replace(observation=start.timestep.observation)
        entries = jax.tree.map(lambda one, others: jnp.concatenate([one[None], others]), first, steps)
        # An environment says nothing sensible behind its end: repeat the last observation.
        end = jnp.where(entries.ended.any(), entries.ended.argmax(), self._length)
        rows = jnp.minimum(jnp.arange(self._length), end)
        seen, action = jax.tree.map(lambda leaf: leaf[rows], (entries.observation, entries.action))
        return last.env_state, entries, system.dream(shared, seen, action, self._context, dream_key)
