"""Acting in environments, shared by rollouts, evaluation and rendering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import LastAction, RolloutState, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.spaces import Box, Mixed

Act = Callable[[Any, RolloutState, jax.Array], tuple[Any, jax.Array, Any]]
"""`(shared, RolloutState, key) -> (carry, action, extras)`, the signature of `System.act` and `System.eval_act`."""


def start_episodes(env: VectorEnvironment, system: System, keys: jax.Array) -> RolloutState:
    """Reset the environments. `keys`: `[N]`, one per environment."""
    env_state, timestep = env.reset(keys)
    return RolloutState(env_state, timestep, system.init_carry(keys.shape[0]))


def game_keys(env: VectorEnvironment, key: jax.Array) -> jax.Array:
    """Return the keys of one environment: one, or one for each of its agents."""
    return key[None] if env.num_agents == 1 else jax.random.split(key, env.num_agents)


def act_and_step(
    env: VectorEnvironment, act: Act, shared: Any, state: RolloutState, act_key: jax.Array, env_keys: jax.Array
) -> tuple[RolloutState, jax.Array, Any]:
    """Act and take one step in each of N environments; return the next state, the actions, and the extras of `act`."""
    carry, action, extras = act(shared, state, act_key)
    env_state, timestep = env.step(env_keys, state.env_state, action)
    return RolloutState(env_state, timestep, carry), action, extras


def random_act(act: Act, env: VectorEnvironment, probability: float = 1.0) -> Act:
    """Replace actions of `act` by uniformly random legal ones, each with a probability."""

    def explore(shared: Any, state: RolloutState, key: jax.Array) -> tuple[Any, jax.Array, Any]:
        key_act, key_space = jax.random.split(key)
        carry, action, extras = act(shared, state, key_act)
        num_envs = action.shape[0]
        legal = state.timestep.observation.action_mask
        drawn = jax.vmap(env.action_space.sample)(jax.random.split(key_space, num_envs), legal).astype(action.dtype)
        if probability < 1.0:
            replaced = jax.random.bernoulli(jax.random.fold_in(key_space, num_envs), probability, (num_envs,))
            drawn = jnp.where(jnp.expand_dims(replaced, tuple(range(1, drawn.ndim))), drawn, action)
        return _acted(carry, drawn, extras)

    return explore


def noisy_act(act: Act, env: VectorEnvironment, scale: float) -> Act:
    """Add normal noise to the continuous actions of `act`, and clip them to their bounds."""
    space = env.action_space
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    deviation = scale * Box(low, high, space.shape).half_width
    if isinstance(space, Mixed):
        deviation = np.where(space.is_continuous, deviation, 0.0)

    def explore(shared: Any, state: RolloutState, key: jax.Array) -> tuple[Any, jax.Array, Any]:
        key_act, key_noise = jax.random.split(key)
        carry, action, extras = act(shared, state, key_act)
        noise = deviation[None].astype(action.dtype) * jax.random.normal(key_noise, action.shape, action.dtype)
        return _acted(carry, jnp.clip(action + noise, low[None], high[None]), extras)

    return explore


def _acted(carry: Any, action: jax.Array, extras: Any) -> tuple[Any, jax.Array, Any]:
    """Return what `act` returns, with another action."""
    return carry._replace(action=action) if isinstance(carry, LastAction) else carry, action, extras
