"""Adapter for Octax, games of the CHIP-8 in an emulator written in JAX."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from octax import environments, rendering

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_scenario, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize, with_raw_key
from stoix_like.envs.legends import Legend
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import Discrete
from stoix_like.envs.suites.adapter import SuiteEnvironment, tolerance_of_bytes
from stoix_like.errors import ConfigError

# Arguments of `octax.env.OctaxEnv`: frames per step, and of the emulator, frames and instructions per second.
_KWARGS = {"frame_skip": 4, "fps": 60, "instruction_frequency": 700}

_LIMIT = "max_steps_in_episode"


class OctaxEnvironment(SuiteEnvironment):
    """A game of Octax."""

    tolerance = staticmethod(tolerance_of_bytes)

    def __init__(self, env: Any) -> None:
        self._env = env
        self.truncates_after = int(env.max_num_steps_per_episodes)
        self.action_space = Discrete(env.num_actions)
        self.observation_space = self.box(0, 255)

    def start(self, key: jax.Array) -> tuple[Any, State]:
        state, frames, _ = self._env.reset(jax.random.key_data(key))
        return frames, state

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        state, frames, *outcome, _ = self._env.step(with_raw_key(state, "rng", key), action)
        return frames, state, *outcome

    def observe(self, native: jax.Array) -> Observation:
        """Convert frames `[K, 64, 32]` of lit pixels to an image, one frame per channel, the newest last."""
        return Observation(jnp.where(native, 255, 0).astype(jnp.uint8).transpose(2, 1, 0))

    def scene(self) -> Scene:
        colours = rendering.create_color_scheme("octax")
        return from_pictures(lambda state: rendering.chip8_display_to_rgb(state.display, 8, *colours), fps=15)

    def legend(self) -> Legend:
        return Legend(actions=(*(f"key {int(key):X}" for key in np.asarray(self._env.action_set)), "none"))


def scenarios() -> list[str]:
    """List the ids of the games; some have a number of levels."""
    # The package's own path of a file finds the directory.
    roms = Path(environments.get_rom_path("Airplane.ch8")).parent
    found = []
    for module in pkgutil.iter_modules(environments.__path__):
        levels = [path.stem for path in roms.glob(f"{module.name}[0-9]*.ch8") if path.stem[-1].isdigit()]
        found += sorted(levels, key=lambda level: (len(level), level)) or [module.name]
    return found


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of Octax."""
    check_scenario("octax", name, scenarios())
    settings = _KWARGS | fit_params(_KWARGS, kwargs, name, _KWARGS, "env.kwargs")
    if settings["instruction_frequency"] < (fps := settings["fps"]):
        raise ConfigError(
            f"env.kwargs.instruction_frequency={settings['instruction_frequency']} is less than one instruction per"
            f" frame: use at least env.kwargs.fps={fps}"
        )
    with tolerance_of_bytes():
        env, _ = environments.create_environment(name, **settings)
    limit = fit_params({_LIMIT: env.max_num_steps_per_episodes}, params, name)
    env.max_num_steps_per_episodes = limit.get(_LIMIT, env.max_num_steps_per_episodes)
    return Vectorize(OctaxEnvironment(env))
