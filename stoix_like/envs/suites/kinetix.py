"""Adapter for Kinetix, tasks of two-dimensional physics: bring green and blue together, and keep green off red.

Its `step_env` mixes the ends of tasks and the time limit in one flag, so the adapter asks for the end of a task without
a limit, and reads the limit from the number of steps.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_choice, check_names, check_scenario, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize
from stoix_like.envs.lazy_imports import deferred
from stoix_like.envs.legends import Legend
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space, space_of
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.schema import INT32_MAX

# Its data sets, its own training and its editor need them.
with deferred("grain", "hydra", "matplotlib", "pygame", "safetensors", "seaborn", "wandb", "zarr"):
    import kinetix.environment as suite
    from kinetix.environment.ued.ued import make_reset_fn_sample_kinetix_level
    from kinetix.render.renderer_pixels import make_render_pixels
    from kinetix.util import saving

_OBSERVATIONS = {
    "symbolic": suite.ObservationType.SYMBOLIC_FLAT,
    "entities": suite.ObservationType.SYMBOLIC_ENTITY,
    "pixels": suite.ObservationType.PIXELS,
}
_ACTIONS = {kind.name.lower(): kind for kind in suite.ActionType}
_PARAMS = ("max_timesteps", "dense_reward_scale")
_SIZES = ("s", "m", "l")
_RANDOM = "random"


class Level(NamedTuple):
    """A level, or a distribution of levels."""

    start: Any  # its start state; None if it is drawn for each episode
    params: Any  # parameters of the physics and of the task
    sizes: Any  # the largest numbers of shapes, joints and thrusters, and sizes of images


class KinetixEnvironment(SuiteEnvironment):
    """A task of Kinetix."""

    def __init__(self, level: Level, kind: str, actions: str) -> None:
        self.params, self._level, self._kind = level.params, level, kind
        self._endless = level.params.replace(max_timesteps=INT32_MAX)
        draw = None if level.start is not None else make_reset_fn_sample_kinetix_level(level.params, level.sizes)
        self._draw: Any = draw
        self._env = suite.make_kinetix_env(
            _ACTIONS[actions], _OBSERVATIONS[kind], draw, level.params, level.sizes, auto_reset=False
        )
        self.truncates_after = int(level.params.max_timesteps)
        self._motors, self._thrusters = level.sizes.num_motor_bindings, level.sizes.num_thruster_bindings
        low = np.array([-1.0] * self._motors + [0.0] * self._thrusters, np.float32)
        spaces: dict[str, Space] = {
            "discrete": Discrete(2 * self._motors + 1 + self._thrusters),
            "multi_discrete": MultiDiscrete((3,) * self._motors + (2,) * self._thrusters),
            "continuous": Box(low, np.ones_like(low), low.shape),
        }
        self.action_space = spaces[actions]
        self.observation_space = space_of(self.shapes())

    def start(self, key: jax.Array) -> tuple[Any, State]:
        state = self._level.start if self._draw is None else self._draw(jax.random.key_data(key))
        return self._env.get_obs(state), state

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        view, state, reward, terminated, _ = self._env.step_env(key, state, action, self._endless)
        return view, state, reward, terminated, state.timestep >= self.params.max_timesteps

    def scene(self) -> Scene:
        @functools.cache
        def renderer() -> Any:
            return jax.jit(make_render_pixels(self.params, self._level.sizes.replace(downscale=2)))

        return from_pictures(lambda state: np.asarray(_upright(renderer()(state)), np.float32) / 255, fps=30)

    def legend(self) -> Legend:
        motors = [f"motor {number + 1}" for number in range(self._motors)]
        thrusters = [f"thruster {number + 1}" for number in range(self._thrusters)]
        if not isinstance(self.action_space, Discrete):
            return Legend(actions=(*motors, *thrusters))
        turns = [f"{motor} {way}" for motor in motors for way in ("backward", "forward")]
        return Legend(actions=(*turns, "none", *thrusters))

    def observe(self, native: Any) -> Observation:
        if self._kind == "pixels":
            return Observation(jnp.round(_upright(native.image) * 255).astype(jnp.uint8))
        if self._kind == "entities":
            # Masks as numbers, which all networks can read.
            return Observation({name: jnp.asarray(part, jnp.float32) for name, part in vars(native).items()})
        return Observation(jnp.asarray(native, jnp.float32))


def scenarios() -> list[str]:
    """List the ids of the levels, which start with their size, and of random levels."""
    return [
        f"{size}_{name}"
        for size in _SIZES
        for name in [*sorted(path.stem for path in Path(saving.BASE_DIR, size).glob("*.json")), _RANDOM]
    ]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of Kinetix."""
    check_scenario("kinetix", name, scenarios())
    check_names("env.kwargs", kwargs, ("observation", "action"), name)
    kind, actions = str(kwargs.get("observation", "symbolic")), str(kwargs.get("action", "multi_discrete"))
    for key, value, known in (("observation", kind, _OBSERVATIONS), ("action", actions, _ACTIONS)):
        check_choice(f"env.kwargs.{key}", value, known, name)
    defaults = {key: getattr(suite.EnvParams(), key) for key in _PARAMS}
    fitted = fit_params(defaults, params, name, positive=("max_timesteps",))
    level = load(name)
    return Vectorize(KinetixEnvironment(level._replace(params=level.params.replace(**fitted)), kind, actions))


@functools.cache
def load(name: str) -> Level:
    """Return a level of the package by its id, one of `scenarios()`."""
    size, _, level = name.partition("_")
    with jax.numpy_rank_promotion("allow"):
        if level == _RANDOM:
            return Level(None, suite.EnvParams(), suite.static_env_params_from_size(size))
        start, sizes, params = saving.load_from_json_file(f"{size}/{level}")
    return Level(jax.tree.map(np.asarray, start), params, sizes)


def _upright(image: jax.Array) -> jax.Array:
    """Convert an image of columns from left to right, each from bottom to top, to rows from top to bottom."""
    return image.transpose(1, 0, 2)[::-1]
