"""Adapter for Craftax and Craftax-Classic.

Both games mix death and the time limit in one flag, so the adapter asks for the end of a game without a limit, and
reads the limit from the number of steps.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_names, check_scenario, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.schema import INT32_MAX

_SCENARIOS = ("Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1")


class CraftaxEnvironment(SuiteEnvironment):
    """A game of craftax."""

    def __init__(self, env: Any, params: Any, name: str) -> None:
        self._env, self.params, self._name = env, params, name
        self._endless = params.replace(max_timesteps=INT32_MAX)
        self.truncates_after = int(params.max_timesteps)
        self.action_space = Discrete(env.action_space(params).n)
        # Attributes that grow with experience exceed the bound of one that craftax declares.
        high = np.inf if name == "Craftax-Symbolic-v1" else 1.0
        self.observation_space = Box(0.0, high, tuple(env.observation_space(params).shape))

    def start(self, key: jax.Array) -> Any:
        return self._env.reset_env(key, self.params)

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        view, state, reward, _, _ = self._env.step_env(key, state, action, self.params)
        terminated = self._env.is_terminal(state, self._endless)
        return view, state, reward, terminated, state.timestep >= self.params.max_timesteps

    def observe(self, native: jax.Array) -> Observation:
        return Observation(jnp.asarray(native, jnp.float32))

    def scene(self) -> Scene:
        game = _read_textures_on_demand(self._name)

        @functools.cache
        def draw() -> Any:
            renderer = importlib.import_module(f"{game}.renderer")
            size = importlib.import_module(f"{game}.constants").BLOCK_PIXEL_SIZE_IMG
            return jax.jit(renderer.make_craftax_pixel_renderer(size))

        return from_pictures(lambda state: np.asarray(draw()(state)) / 255, fps=8)


def scenarios() -> list[str]:
    """List the ids of the games."""
    return list(_SCENARIOS)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of craftax."""
    check_scenario("craftax", name, _SCENARIOS)
    check_names("env.kwargs", kwargs, (), name)
    if "Pixels" in name:
        _read_textures_on_demand(name)
    env = make_craftax_env_from_name(name, auto_reset=False)
    defaults = env.default_params
    # Without angles that craftax draws for each world unless they are set.
    known = {key: value for key, value in vars(defaults).items() if key != "fractal_noise_angles"}
    fitted = fit_params(known, params, name, positive=("max_timesteps",))
    return Vectorize(CraftaxEnvironment(env, defaults.replace(**fitted), name))


@functools.cache
def _read_textures_on_demand(name: str) -> str:
    """Replace the loader of a game's textures, and return the package of the game."""
    game = "craftax.craftax_classic" if "Classic" in name else "craftax.craftax"
    # craftax's own loader reads the textures of every size, which takes a minute, and caches them in the directory of
    # the package, where users may not write.
    renderer = importlib.import_module(f"{game}.renderer")
    load = importlib.import_module(f"{game}.constants").load_all_textures_given_size

    class Textures(dict[int, Any]):
        """The textures by the size of a block in pixels, read when a size is first used."""

        def __missing__(self, size: int) -> Any:
            return self.setdefault(size, load(size))

    textures = Textures()
    vars(renderer)["load_all_textures"] = lambda: textures
    return game
