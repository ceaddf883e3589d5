"""Adapter for the ports of MiniGrid in XLand-MiniGrid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import xminigrid
from xminigrid.core.constants import NUM_COLORS, NUM_TILES
from xminigrid.rendering.rgb_render import render
from xminigrid.types import TimeStep as XLandTimeStep

from stoix_like.envs.arguments import check_names, check_scenario, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import Discrete
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.errors import ConfigError

# Registered in xminigrid, but not supported here, with the reason.
_UNSUPPORTED = {
    name: "xminigrid would download its rules and goals"
    for name in xminigrid.registered_environments()
    if name.startswith("XLand-MiniGrid")
}


class XMiniGridEnvironment(SuiteEnvironment):
    """A grid world of xminigrid, seen from the agent."""

    def __init__(self, env: Any, params: Any) -> None:
        self._env, self.params = env, params
        self.truncates_after = params.max_steps
        self.action_space = Discrete(env.num_actions(params))
        self.observation_space = self.box(0, max(NUM_TILES, NUM_COLORS) - 1)

    def start(self, key: jax.Array) -> tuple[Any, State]:
        timestep = self._env.reset(self.params, key)
        return timestep.observation, timestep.state

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        # Nothing is random after the reset.
        before = XLandTimeStep(state=state, step_type=None, reward=None, discount=None, observation=None)
        after = self._env.step(self.params, before, action)
        # Both kinds of end have the step type LAST; only a termination has no discount.
        return after.observation, after.state, after.reward, after.discount == 0.0, after.last()

    def scene(self) -> Scene:
        return from_pictures(lambda state: render(state.grid, state.agent, self.params.view_size), fps=8)


def scenarios() -> list[str]:
    """List the ids of the supported environments."""
    return [name for name in xminigrid.registered_environments() if name not in _UNSUPPORTED]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of xminigrid."""
    check_scenario("xminigrid", name, scenarios(), _UNSUPPORTED)
    check_names("env.kwargs", kwargs, (), name)
    env, defaults = xminigrid.make(name)
    known = {"max_steps": defaults.max_steps, "view_size": defaults.view_size}
    fitted = fit_params(known, params, name, positive=("max_steps",))
    if (view_size := fitted.get("view_size", defaults.view_size)) < 3 or view_size % 2 == 0:
        raise ConfigError(f"env.params.view_size={view_size} must be odd and at least 3")
    return Vectorize(XMiniGridEnvironment(env, defaults.replace(**fitted)))
