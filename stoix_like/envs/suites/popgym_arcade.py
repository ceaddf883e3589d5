"""Adapter for POPGym Arcade.

Its `step_env` reports time limits differently from task to task, so the adapter takes only terminations from it and
counts steps itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from popgym_arcade import environments
from popgym_arcade.registration import REGISTERED_ENVIRONMENTS

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_scenario, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize
from stoix_like.envs.spaces import Discrete
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX

_KWARGS = {"partial_obs": False, "obs_size": 128}
_LIMIT = "max_steps_in_episode"


class PopgymArcadeEnvironment(SuiteEnvironment):
    """A game of POPGym Arcade without its time limit."""

    truncates_after = INT32_MAX

    def __init__(self, env: Any, params: Any) -> None:
        self._env, self.params = env, params
        self.action_space = Discrete(env.action_space(params).n)
        self.observation_space = self.box(0, 255)

    def start(self, key: jax.Array) -> Any:
        return self._env.reset_env(key, self.params)

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        view, state, reward, _, info = self._env.step_env(key, state, action, self.params)
        return view, state, reward, info["terminated"], False

    def observe(self, native: jax.Array) -> Observation:
        return Observation(native.astype(jnp.uint8))  # one family of games returns bytes as floats


def scenarios() -> list[str]:
    """List the ids of the games."""
    return list(REGISTERED_ENVIRONMENTS)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of POPGym Arcade."""
    check_scenario("popgym_arcade", name, scenarios())
    arguments = _KWARGS | fit_params(_KWARGS, kwargs, name, key="env.kwargs")
    if arguments["obs_size"] not in (128, 256):
        raise ConfigError(f"env.kwargs.obs_size={kwargs['obs_size']!r} is invalid for {name}: use 128 or 256")
    with jax.numpy_rank_promotion("allow"):
        env = getattr(environments, name)(**arguments)
    # gymnax 1 asks for the discount under another name than the games, which were written for its predecessor.
    env.is_terminated = env.is_terminal
    defaults = env.default_params
    # Two families of games have another name for it.
    limit_name = _LIMIT if hasattr(env, _LIMIT) else "max_episode_length"
    known, limit = vars(defaults), getattr(env, limit_name)
    fitted = {_LIMIT: limit} | fit_params(known | {_LIMIT: limit}, params, name)
    # The rewards of some games are scaled by it, of some as they are built.
    if getattr(env, "reward_scale", None) == 1.0 / limit:
        env.reward_scale = 1.0 / fitted[_LIMIT]
    setattr(env, limit_name, fitted[_LIMIT])
    # Games that read the limit from their parameters would report it as a termination.
    endless = {key: INT32_MAX if key == _LIMIT else value for key, value in fitted.items() if key in known}
    return TimeLimit(Vectorize(PopgymArcadeEnvironment(env, defaults.replace(**endless))), fitted[_LIMIT])
