"""Acting in the environments of one shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stoix_like.base_types import Actor, EpisodeMetrics, Trajectory, Transition
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.runner.hoist import MAX_BYTES_PER_ENV, hoist

Act = Callable[[Any, Actor, jax.Array], tuple[Any, jax.Array, Any]]


def rollout(
    env: VectorEnvironment, act: Act, shared: Any, actor: Actor, key: jax.Array, length: int
) -> tuple[Actor, Trajectory, EpisodeMetrics]:
    """Act for `length` steps in every environment.

    Args:
        env: environments with automatic reset.
        act: the system's `act`.
        shared: the agent's shared state.
        actor: where the last rollout ended.
        key: one key.
        length: T, steps per environment.

    Returns:
        The actor afterwards, the trajectory `[T, N, ...]`, and the episode metrics `[T, N]` of every step.
    """
    num_envs = actor.timestep.reward.shape[0]
    key_begin, key_act, key_env = jax.random.split(key, 3)
    first = actor._replace(env_state=env.begin_rollout(key_begin, actor.env_state))

    def step(actor: Actor, keys: tuple[jax.Array, jax.Array]) -> tuple[Actor, tuple[Transition, EpisodeMetrics]]:
        carry, action, extras = act(shared, actor, keys[0])
        env_state, timestep = env.step(keys[1], actor.env_state, action)
        transition = Transition(
            observation=actor.timestep.observation,
            action=action,
            reward=timestep.reward,
            terminated=timestep.terminated,
            truncated=timestep.truncated,
            next_observation=timestep.next_observation,
            extras=extras,
        )
        return Actor(env_state, timestep, carry), (transition, timestep.episode)

    keys = (jax.random.split(key_act, length), jax.random.split(key_env, (length, num_envs)))
    example = jax.tree.map(lambda leaf: leaf[0], keys)
    draw, rest = hoist(step, first, example, MAX_BYTES_PER_ENV * num_envs)
    last, (transitions, episodes) = jax.lax.scan(rest, first, jax.vmap(draw)(keys), length)
    return last, Trajectory(transitions, first.carry), episodes


def random_act(act: Act, env: VectorEnvironment) -> Act:
    """The system's `act` with its actions replaced by uniformly random legal ones, for the warm-up.

    Args:
        act: the system's `act`; its recurrent state and extras are kept as they are.
        env: whose action space is drawn from.

    Returns:
        A function with the signature of `act`.
    """

    def explore(shared: Any, actor: Actor, key: jax.Array) -> tuple[Any, jax.Array, Any]:
        key_act, key_space = jax.random.split(key)
        carry, action, extras = act(shared, actor, key_act)
        keys = jax.random.split(key_space, action.shape[0])
        legal = actor.timestep.observation.action_mask
        return carry, jax.vmap(env.action_space.sample)(keys, legal).astype(action.dtype), extras

    return explore
