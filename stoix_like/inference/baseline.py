"""Other policies on the episodes of an evaluation: random actions, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Acted, Observation, PyTree, RolloutState, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.opponents import RANDOM
from stoix_like.envs.wrappers.base import agent_action
from stoix_like.loggers.formats import format_number
from stoix_like.user_code import guarded, import_object

BaselinePolicy = Callable[[Observation, jax.Array], Any]
"""`(observation, key) -> action`: of one environment, in its own units, as a function that jax can trace."""
_FORM = "(observation, key) -> action, of one environment"


def with_policy(system: System, policy: str | BaselinePolicy, env: VectorEnvironment) -> System:
    """Replace what a system does in evaluations, in environments that do not rescale actions."""
    space = env.action_space

    def fault(action: Any) -> str | None:
        shape, dtype = jnp.shape(action), jnp.result_type(action)
        if shape != space.shape:
            return f"returns an array of shape {list(shape)}, not {list(space.shape)}"
        is_exact = not jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(space.dtype, jnp.floating)
        return None if is_exact else f"returns {dtype}, and actions are {jnp.dtype(space.dtype)}"

    def draw(observation: Observation, key: jax.Array) -> jax.Array:
        return space.sample(key, observation.action_mask)

    advice = f"it must be {RANDOM} or the import path of a function {_FORM}"
    given = draw if policy == RANDOM else policy if callable(policy) else import_object(policy, "policy", advice)
    choose = guarded(given, "policy", policy, _FORM, fault)

    def eval_act(shared: PyTree, state: RolloutState, key: jax.Array) -> Acted:
        observation = state.timestep.observation
        keys = jax.random.split(key, state.timestep.reward.shape[0])
        action = jax.vmap(choose)(observation, keys).astype(space.dtype)
        return state.carry, action if policy == RANDOM else agent_action(env, action), ()

    return system._replace(init_carry=lambda _: (), eval_act=eval_act)


def compared(baseline: Mapping[str, Any]) -> str:
    """Return the results of a baseline in a line."""
    values = {name: format_number(value) for name, value in baseline.items() if name.startswith(("diff", "episode"))}
    ends = "" if baseline["difference_ci_low"] is None else " [{difference_ci_low}, {difference_ci_high}]"
    return (
        "  {policy}: return {episode_return_mean}; difference of the run {difference}" + ends + ", on the same episodes"
    ).format(policy=baseline["policy"], **values)
