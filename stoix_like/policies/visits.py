"""The states that a policy visits, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.acting import act_and_step, start_episodes
from stoix_like.base_types import Observation, RolloutState, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError

# Steps per compiled call; the lengths of the episodes are unknown in advance.
_CHUNK = 128
# Of the observations that are kept.
_MAX_BYTES = 2**29
# Folded into the key of the seed, so that no training or evaluation starts in the same states.
_STREAM = 0x515


class Visits(NamedTuple):
    """M steps of E episodes, one episode after the other, as host arrays.

    Attributes:
        observation: `[M, ...]` what was acted on.
        action: `[M, ...]`, in the units of the suite.
        reward: `[M]`, of the suite.
        episode: `[M]` int, the episode of each step.
        returns: `[E]` sums of the rewards.
        finished: `[E]` bool, whether the episode ended; otherwise its last steps are missing.
    """

    observation: Observation
    action: np.ndarray
    reward: np.ndarray
    episode: np.ndarray
    returns: np.ndarray
    finished: np.ndarray


class _Step(NamedTuple):
    observation: Observation
    action: jax.Array
    reward: jax.Array
    valid: jax.Array


def check_seed(seed: int) -> None:
    """Check the seed of an evaluation.

    Args:
        seed: the seed.

    Raises:
        ConfigError: it is out of range.
    """
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed={seed} is out of range: it must be at least 0 and below 2**32")


def play(env: VectorEnvironment, system: System, shared: Any, episodes: int, max_steps: int, seed: int) -> Visits:
    """Play whole episodes with `eval_act`, and keep every step.

    Args:
        env: environments without automatic reset.
        system: the system.
        shared: its trained state.
        episodes: number of episodes, E, played side by side.
        max_steps: steps after which an episode is stopped; also once the observations take half a GiB.
        seed: seed of the start states and of sampled actions.

    Returns:
        The steps.

    Raises:
        HostEnvironmentError: an environment on the host failed.
    """

    def step(carry: tuple[RolloutState, jax.Array], key: jax.Array) -> tuple[tuple[RolloutState, jax.Array], _Step]:
        (state, done), (act_key, env_key) = carry, jax.random.split(key)
        after, action, _ = act_and_step(
            env, system.eval_act, shared, state, act_key, jax.random.split(env_key, episodes)
        )
        kept = _Step(state.timestep.observation, env.native_action(action), after.timestep.reward, ~done)
        return (after, done | after.timestep.terminated | after.timestep.truncated), kept

    start_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), _STREAM))
    start = jax.jit(lambda keys: start_episodes(env, system, keys))
    play_chunk = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))
    carry = start(jax.random.split(start_key, episodes)), jnp.zeros(episodes, bool)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(carry[0].timestep.observation))
    limit = min(max_steps, max(1, _MAX_BYTES // size))
    chunks: list[_Step] = []
    for first in range(0, limit, _CHUNK):
        keys = jax.random.split(jax.random.fold_in(key, first), min(_CHUNK, limit - first))
        carry, chunk = play_chunk(carry, keys)
        env.check()
        chunks.append(jax.device_get(chunk))
        if bool(carry[1].all()):
            break
    env.release(carry[0].env_state)
    return _joined(chunks, np.asarray(carry[1]))


def _joined(chunks: list[_Step], finished: np.ndarray) -> Visits:
    """Put steps `[T, E]` one episode after the other, without those after the ends of episodes."""
    steps = jax.tree.map(lambda *parts: np.concatenate(parts).swapaxes(0, 1), *chunks)
    valid = steps.valid
    observation, action, reward = jax.tree.map(
        lambda leaf: leaf[valid], (steps.observation, steps.action, steps.reward)
    )
    episode = np.broadcast_to(np.arange(len(valid))[:, None], valid.shape)[valid]
    returns = np.where(valid, steps.reward, 0.0).sum(axis=1, dtype=np.float64)
    return Visits(observation, action, reward, episode, returns, finished)
