"""Adapter for navix.

navix's `step` starts a new episode at the step after an end, so the adapter calls the `_step` below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import navix
from navix.rendering.cache import RenderingCache

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_choice, check_names, check_scenario, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import Discrete
from stoix_like.envs.suites.adapter import SuiteEnvironment

# The smallest and largest value of each kind of observation; navix declares too few symbols.
_OBSERVATIONS = {
    "symbolic": (0, 10),
    "symbolic_first_person": (0, 10),
    "categorical": (-1, 10),
    "categorical_first_person": (-1, 100),
    "rgb": (0, 255),
    "rgb_first_person": (0, 255),
}

# A door that is opened with 2, as in KeyCorridor, has the symbol -2, which navix turns into the byte 254: here, 11.
_OPENED_DOOR = 11


class NavixState(NamedTuple):
    """The state of a grid, and the steps since the episode started, int32."""

    grid: Any
    steps: jax.Array


class NavixEnvironment(SuiteEnvironment):
    """A grid world of navix."""

    def __init__(self, env: Any, observation: str, bounds: tuple[int, int]) -> None:
        self._env = env
        self.truncates_after = int(env.max_steps)
        self._keeps_tiles = observation.startswith("rgb")
        self.action_space = Discrete(len(env.action_set))
        self.observation_space = self.box(*bounds)

    def start(self, key: jax.Array) -> tuple[Any, State]:
        timestep = self._env.reset(key)
        return timestep.observation, self._state(timestep)

    def advance(self, key: jax.Array, state: NavixState, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        before = navix.Timestep(
            t=state.steps, state=state.grid.replace(key=key), observation=None, action=None, reward=None, step_type=None
        )
        after = self._env._step(before, action)
        return after.observation, self._state(after), after.reward, after.is_termination(), after.is_truncation()

    def observe(self, native: jax.Array) -> Observation:
        is_symbolic = native.dtype == jnp.uint8 and not self._keeps_tiles
        return Observation(jnp.where(native > 127, jnp.uint8(_OPENED_DOOR), native) if is_symbolic else native)

    def _state(self, timestep: Any) -> State:
        # Every step brings its own key. The cache holds images of the tiles, which only pixels need: without them,
        # states are a tenth of the size.
        unused = {"key": None} if self._keeps_tiles else {"key": None, "cache": None}
        return NavixState(timestep.state.replace(**unused), timestep.t)

    def scene(self) -> Scene:
        picture = jax.jit(lambda grid: navix.observations.rgb(grid.replace(cache=RenderingCache.init(grid.grid))))
        return from_pictures(lambda state: picture(state.grid), fps=8)


def scenarios() -> list[str]:
    """List the ids of the environments."""
    return list(navix.registry())


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of navix."""
    check_scenario("navix", name, scenarios())
    check_names("env.kwargs", kwargs, ("observation_fn",), name)
    observation = str(kwargs.get("observation_fn", "symbolic"))
    check_choice("env.kwargs.observation_fn", observation, _OBSERVATIONS, name)
    env = navix.make(name, observation_fn=getattr(navix.observations, observation))
    # Newer versions warn of the other spelling.
    coefficient = "penalty_coeff" if hasattr(env, "penalty_coeff") else "penality_coeff"
    defaults = {name: getattr(env, name) for name in ("max_steps", coefficient)}
    fitted = fit_params(defaults, params, name, positive=("max_steps",))
    opens = name.startswith("Navix-KeyCorridor") and observation.startswith("symbolic")
    bounds = (0, _OPENED_DOOR) if opens else _OBSERVATIONS[observation]
    return Vectorize(NavixEnvironment(env.replace(**fitted), observation, bounds))
