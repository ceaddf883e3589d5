"""The environments of gymnax.

gymnax's own `step` resets by itself and hides the true successor, so the adapter calls what lies below it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces as gymnax_spaces

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs.arguments import check_names, check_scenario, construct
from stoix_like.envs.environment import (
    Environment,
    State,
    VectorEnvironment,
    Vectorize,
    restart,
    strongly_typed,
    transition,
)
from stoix_like.envs.spaces import Box, Discrete, Space
from stoix_like.errors import ConfigError
from stoix_like.schema import scalar

# Why some that gymnax registers are left out.
_REFUSED = {"MNISTBandit-bsuite": "it would download its images"}

# No reward is left beyond the last step of these, so their horizon is the end of the task and not a limit that cuts
# it: a bootstrap would add up, without end, a value that is never corrected.
_HORIZON_ENDS_TASK = frozenset({"DiscountingChain-bsuite"})

# What these declare as the bounds of their observations does not hold: rewards and contexts lie outside.
_BOUNDS_DO_NOT_HOLD = frozenset({"GaussianBandit-misc", "MemoryChain-bsuite", "MetaMaze-misc"})


class GymnaxEnvironment(Environment):
    """One environment of gymnax.

    Args:
        env: as `gymnax.make` returns it.
        params: its parameters.
        name: the id that gymnax knows it by.
    """

    def __init__(self, env: Any, params: Any, name: str) -> None:
        self._env, self.params = env, params
        self._horizon_ends_task = name in _HORIZON_ENDS_TASK
        declared = env.observation_space(params)
        self._num_classes = declared.n if isinstance(declared, gymnax_spaces.Discrete) else None
        self.action_space = _convert_actions(env.action_space(params))
        view = jax.eval_shape(self.reset, jax.random.key(0))[1].observation.agent_view
        low, high = (0.0, 1.0) if self._num_classes is not None else (declared.low, declared.high)
        if name in _BOUNDS_DO_NOT_HOLD:
            low, high = -np.inf, np.inf
        self.observation_space = Box(_bound(low), _bound(high), view.shape, view.dtype)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.reset`."""
        with _its_own_rules():
            view, state = self._env.reset_env(key, self.params)
        return strongly_typed(state), restart(self._observation(view))

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.step`."""
        with _its_own_rules():
            view, state, reward, terminated, _ = self._env.step_env(key, state, action, self.params)
            at_limit = self._env.is_truncated(state, self.params)
        if self._horizon_ends_task:
            terminated = terminated | at_limit
        return strongly_typed(state), transition(self._observation(view), reward, terminated, at_limit)

    def _observation(self, view: jax.Array) -> Observation:
        if self._num_classes is not None:
            return Observation(jax.nn.one_hot(view, self._num_classes, dtype=jnp.float32))
        return Observation(view if view.dtype == jnp.uint8 else jnp.asarray(view, jnp.float32))


def scenarios() -> list[str]:
    """The ids of the environments, as gymnax spells them; those that need a download are left out."""
    return [name for name in gymnax.registered_envs if name not in _REFUSED]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of gymnax.

    Args:
        name: one of `scenarios()`.
        kwargs: arguments of its constructor by name.
        params: fields of its parameters to replace by name.

    Returns:
        The environments.

    Raises:
        ConfigError: if the name, an argument or a parameter is unknown, or a value does not fit.
    """
    if name in _REFUSED:
        raise ConfigError(f"env.scenario.name={name!r} cannot be used: {_REFUSED[name]}")
    check_scenario("gymnax", name, scenarios())
    env, _ = gymnax.make(name)
    if kwargs:
        env = construct(type(env), kwargs, name)
    defaults = env.default_params
    check_names("env.params", params, [entry.name for entry in dataclasses.fields(defaults)], name)
    fitted = {key: _fit(name, key, value, getattr(defaults, key)) for key, value in params.items()}
    return Vectorize(GymnaxEnvironment(env, dataclasses.replace(defaults, **fitted), name))


def _its_own_rules() -> AbstractContextManager[Any]:
    # Swimmer adds arrays of different rank, which a stricter setting around us must not refuse.
    return jax.numpy_rank_promotion("allow")


def _fit(name: str, key: str, value: Any, default: Any) -> Any:
    """`value` in the type of the default that it replaces."""
    fitted = _array_like(value, default) if np.ndim(default) else scalar(type(default), value)
    if fitted is None or not np.all(np.isfinite(fitted)):
        raise ConfigError(f"env.params.{key}={value!r} does not fit {name}, whose default is {default!r}")
    if key == "max_steps_in_episode" and fitted < 1:
        raise ConfigError(f"env.params.{key}={value!r} must be at least 1")
    return fitted


def _array_like(value: Any, default: Any) -> np.ndarray | None:
    try:
        array = np.asarray(value, np.asarray(default).dtype)
    except (TypeError, ValueError):
        return None
    return array if array.shape == np.shape(default) else None


def _bound(bound: Any) -> np.ndarray | float:
    array = np.asarray(bound, np.float32)
    return array if array.ndim else float(array)


def _convert_actions(space: Any) -> Space:
    if isinstance(space, gymnax_spaces.Discrete):
        return Discrete(space.n)
    return Box(_bound(space.low), _bound(space.high), tuple(space.shape))
