"""Adapter for Octax, games of the CHIP-8 in an emulator written in JAX."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from octax import environments, rendering

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
    with_raw_key,
)
from stoix_like.envs.legends import Legend
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.schema import scalar

# Arguments of `octax.env.OctaxEnv`: frames per step, and of the emulator, frames and instructions per second.
_KWARGS = {"frame_skip": 4, "fps": 60, "instruction_frequency": 700}

_LIMIT = "max_steps_in_episode"


class OctaxEnvironment(Environment):
    """A game of Octax."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.truncates_after = int(env.max_num_steps_per_episodes)
        self.action_space = Discrete(env.num_actions)
        view = jax.eval_shape(self.reset, jax.random.key(0))[1].observation.agent_view
        self.observation_space = Box(0, 255, view.shape, view.dtype)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        with _tolerance():
            state, frames, _ = self._env.reset(jax.random.key_data(key))
        return strongly_typed(state), restart(_observation(frames))

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        with _tolerance():
            state, frames, reward, terminated, truncated, _ = self._env.step(with_raw_key(state, "rng", key), action)
        return strongly_typed(state), transition(_observation(frames), reward, terminated, truncated)

    def scene(self) -> Scene:
        lit, dark = rendering.create_color_scheme("octax")

        def picture(state: Any) -> np.ndarray:
            return rendering.chip8_display_to_rgb(state.display, 8, lit, dark)

        return from_pictures(picture, fps=15)

    def legend(self) -> Legend:
        keys = [f"key {int(key):X}" for key in np.asarray(self._env.action_set)]
        return Legend(actions=(*keys, "none"))


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
    check_names("env.kwargs", kwargs, _KWARGS, name)
    for key, value in kwargs.items():
        if (scalar(int, value) or 0) < 1:
            raise ConfigError(f"env.kwargs.{key}={value!r} is invalid for {name}: use an integer of at least 1")
    settings = {key: scalar(int, kwargs.get(key, default)) for key, default in _KWARGS.items()}
    if settings["instruction_frequency"] < settings["fps"]:
        raise ConfigError(
            f"env.kwargs.instruction_frequency={settings['instruction_frequency']} is less than one instruction per"
            f" frame: use at least env.kwargs.fps={settings['fps']}"
        )
    with _tolerance():
        env, _ = environments.create_environment(name, **settings)
    limit = fit_params({_LIMIT: env.max_num_steps_per_episodes}, params, name)
    env.max_num_steps_per_episodes = limit.get(_LIMIT, env.max_num_steps_per_episodes)
    return Vectorize(OctaxEnvironment(env))


@contextmanager
def _tolerance() -> Iterator[None]:
    """Allow what the emulator does while it is traced: broadcasts, and words that it writes to bytes."""
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)
        yield


def _observation(frames: jax.Array) -> Observation:
    """Convert frames `[K, 64, 32]` of lit pixels to an image, one frame per channel, the newest last."""
    return Observation(jnp.where(frames, 255, 0).astype(jnp.uint8).transpose(2, 1, 0))
