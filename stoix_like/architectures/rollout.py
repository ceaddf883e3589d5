"""Rollouts in the environments of one shard."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from stoix_like.architectures.acting import Act, act_and_step
from stoix_like.architectures.randomness import MAX_BYTES_PER_ENV, hoist
from stoix_like.base_types import EpisodeMetrics, RolloutState, TimeStep, Trajectory, Transition
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.utils.packing import pack_steps, unpack


class Rollout(NamedTuple):
    """A trajectory `[T, N, ...]`, and the episode metrics `[T, N]` of every step."""

    trajectory: Trajectory
    episodes: EpisodeMetrics


def rollout(
    env: VectorEnvironment,
    act: Act,
    shared: Any,
    state: RolloutState,
    key: jax.Array,
    length: int,
    hoist_randomness: bool = True,
) -> tuple[RolloutState, Rollout]:
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
        The state at the end, and the rollout.
    """
    num_envs = state.timestep.reward.shape[0]
    key_start, key_act, key_env = jax.random.split(key, 3)
    first = state._replace(env_state=env.start_rollout(key_start, state.env_state))

    def step(state: RolloutState, keys: tuple[jax.Array, jax.Array]) -> Any:
        after, action, extras = act_and_step(env, act, shared, state, *keys)
        transition = make_transition(state.timestep, action, extras, after.timestep)
        return after, pack_steps((transition, after.timestep.episode), 1)

    keys = (jax.random.split(key_act, length), jax.random.split(key_env, (length, num_envs)))
    inputs: Any = keys
    if hoist_randomness:
        example = jax.tree.map(lambda leaf: leaf[0], keys)
        draw, step = hoist(step, first, example, MAX_BYTES_PER_ENV * num_envs)
        inputs = jax.vmap(draw)(keys)
    last, steps = jax.lax.scan(step, first, inputs, length)
    transitions, episodes = unpack(steps)
    return last, Rollout(Trajectory(transitions, first.carry), episodes)


def make_transition(before: TimeStep, action: jax.Array, extras: Any, after: TimeStep) -> Transition:
    """Join what is remembered of one step.

    Args:
        before: the time step acted on.
        action: `[N, ...]`, the actions taken.
        extras: the extras of `act`.
        after: the time step that followed.

    Returns:
        The transition `[N, ...]`.
    """
    return Transition(
        observation=before.observation,
        action=action,
        reward=after.reward,
        terminated=after.terminated,
        truncated=after.truncated,
        next_observation=after.next_observation,
        is_first=before.starts_episode,
        extras=extras,
    )
