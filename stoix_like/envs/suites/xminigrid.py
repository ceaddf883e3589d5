"""Adapter for the ports of MiniGrid in XLand-MiniGrid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import xminigrid
from xminigrid.core.constants import NUM_COLORS, NUM_TILES
from xminigrid.rendering.rgb_render import render
from xminigrid.types import TimeStep as XLandTimeStep

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs.arguments import check_names, check_scenario, fit_params
from stoix_like.envs.environment import (
    Environment,
    State,
    VectorEnvironment,
    Vectorize,
    restart,
    strongly_typed,
    transition,
)
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError


class XMiniGridEnvironment(Environment):
    """A grid world of xminigrid, seen from the agent."""

    def __init__(self, env: Any, params: Any) -> None:
        self._env, self.params = env, params
        self.truncates_after = params.max_steps
        self.action_space = Discrete(env.num_actions(params))
        view = jax.eval_shape(self.reset, jax.random.key(0))[1].observation.agent_view
        self.observation_space = Box(0, max(NUM_TILES, NUM_COLORS) - 1, view.shape, view.dtype)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        with jax.numpy_rank_promotion("allow"):
            timestep = self._env.reset(self.params, key)
        return strongly_typed(timestep.state), restart(Observation(timestep.observation))

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        del key  # nothing is random after the reset
        before = XLandTimeStep(state=state, step_type=None, reward=None, discount=None, observation=None)
        with jax.numpy_rank_promotion("allow"):
            after = self._env.step(self.params, before, action)
        # Both kinds of end have the step type LAST; only a termination has no discount.
        view = Observation(after.observation)
        return strongly_typed(after.state), transition(view, after.reward, after.discount == 0.0, after.last())

    def scene(self) -> Scene:
        return from_pictures(lambda state: render(state.grid, state.agent, self.params.view_size), fps=8)


def scenarios() -> list[str]:
    """List the ids of the supported environments."""
    return [name for name in xminigrid.registered_environments() if not _needs_benchmark(name)]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of xminigrid."""
    if _needs_benchmark(name):
        raise ConfigError(f"env.scenario.name={name!r} is not supported: xminigrid would download its rules and goals")
    check_scenario("xminigrid", name, scenarios())
    check_names("env.kwargs", kwargs, (), name)
    env, defaults = xminigrid.make(name)
    known = {"max_steps": defaults.max_steps, "view_size": defaults.view_size}
    fitted = fit_params(known, params, name, positive=("max_steps",))
    view_size = fitted.get("view_size", defaults.view_size)
    if view_size < 3 or view_size % 2 == 0:
        raise ConfigError(f"env.params.view_size={view_size} must be odd and at least 3")
    return Vectorize(XMiniGridEnvironment(env, defaults.replace(**fitted)))


def _needs_benchmark(name: str) -> bool:
    return name.startswith("XLand-MiniGrid")
