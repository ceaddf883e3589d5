"""Acting in environments, shared by rollouts, evaluation and rendering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stoix_like.base_types import LastAction, RolloutState, System
from stoix_like.envs.environment import VectorEnvironment

Act = Callable[[Any, RolloutState, jax.Array], tuple[Any, jax.Array, Any]]
"""`(shared, RolloutState, key) -> (carry, action, extras)`, the signature of `System.act` and `System.eval_act`."""


def start_episodes(env: VectorEnvironment, system: System, keys: jax.Array) -> RolloutState:
    """Reset the environments.

    Args:
        env: the environments.
        system: the system that will act in them.
        keys: `[N]`, one per environment.

    Returns:
        The initial state of a rollout.
    """
    env_state, timestep = env.reset(keys)
    return RolloutState(env_state, timestep, system.init_carry(keys.shape[0]))


def act_and_step(
    env: VectorEnvironment, act: Act, shared: Any, state: RolloutState, act_key: jax.Array, env_keys: jax.Array
) -> tuple[RolloutState, jax.Array, Any]:
    """Choose an action in every environment and take one step.

    Args:
        env: the environments.
        act: a system's `act` or `eval_act`.
        shared: the agent's shared state.
        state: the state before the step.
        act_key: one key, for `act`.
        env_keys: `[N]`, one per environment.

    Returns:
        The next state, the actions `[N, ...]`, and the extras of `act`.
    """
    carry, action, extras = act(shared, state, act_key)
    env_state, timestep = env.step(env_keys, state.env_state, action)
    return RolloutState(env_state, timestep, carry), action, extras


def random_act(act: Act, env: VectorEnvironment) -> Act:
    """Replace the actions of `act` by uniformly random legal actions, for the warm-up.

    Args:
        act: a system's `act`; its carry, apart from a `LastAction`, and extras are kept.
        env: the environments, for their action space.

    Returns:
        A function with the signature of `act`.
    """

    def explore(shared: Any, state: RolloutState, key: jax.Array) -> tuple[Any, jax.Array, Any]:
        key_act, key_space = jax.random.split(key)
        carry, action, extras = act(shared, state, key_act)
        keys = jax.random.split(key_space, action.shape[0])
        legal = state.timestep.observation.action_mask
        action = jax.vmap(env.action_space.sample)(keys, legal).astype(action.dtype)
        return carry._replace(action=action) if isinstance(carry, LastAction) else carry, action, extras

    return explore
