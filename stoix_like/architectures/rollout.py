"""Rollouts in the environments of one shard."""

from __future__ import annotations

from typing import Any

import jax

from stoix_like.architectures.acting import Act, act_and_step
from stoix_like.architectures.randomness import MAX_BYTES_PER_ENV, hoist
from stoix_like.base_types import EpisodeMetrics, RolloutState, Trajectory, Transition
from stoix_like.envs.environment import VectorEnvironment


def rollout(
    env: VectorEnvironment,
    act: Act,
    shared: Any,
    state: RolloutState,
    key: jax.Array,
    length: int,
    hoist_randomness: bool = True,
) -> tuple[RolloutState, Trajectory, EpisodeMetrics]:
    """Act for `length` steps in every environment.

    Args:
        env: environments with automatic reset.
        act: the system's `act`.
        shared: the agent's shared state.
        state: the state at the end of the last rollout.
        key: one key.
        length: T, steps per environment.
        hoist_randomness: draw the random numbers of all steps before the loop over time, see `hoist`.

    Returns:
        The state at the end, the trajectory `[T, N, ...]`, and the episode metrics `[T, N]` of every step.
    """
    num_envs = state.timestep.reward.shape[0]
    key_start, key_act, key_env = jax.random.split(key, 3)
    first = state._replace(env_state=env.start_rollout(key_start, state.env_state))

    def step(state: RolloutState, keys: tuple[jax.Array, jax.Array]) -> Any:
        after, action, extras = act_and_step(env, act, shared, state, *keys)
        transition = Transition(
            observation=state.timestep.observation,
            action=action,
            reward=after.timestep.reward,
            terminated=after.timestep.terminated,
            truncated=after.timestep.truncated,
            next_observation=after.timestep.next_observation,
            is_first=state.timestep.starts_episode,
            extras=extras,
        )
        return after, (transition, after.timestep.episode)

    keys = (jax.random.split(key_act, length), jax.random.split(key_env, (length, num_envs)))
    inputs: Any = keys
    if hoist_randomness:
        example = jax.tree.map(lambda leaf: leaf[0], keys)
        draw, step = hoist(step, first, example, MAX_BYTES_PER_ENV * num_envs)
        inputs = jax.vmap(draw)(keys)
    last, (transitions, episodes) = jax.lax.scan(step, first, inputs, length)
    return last, Trajectory(transitions, first.carry), episodes
