"""Adapter for JAXtari, Atari games written in JAX.

Objects are read from the state of a game, without pictures. Pictures need sprites, which are not part of the package:
the adapter builds the renderer of a game when something first draws, so that games without them play from objects.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtari import core, modification, paths
from jaxtari.environment import JaxEnvironment, JaxtariAction, ObjectObservation
from jaxtari.renderers import JAXGameRenderer

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_choice, check_names, check_scenario, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize, strongly_typed
from stoix_like.envs.lazy_imports import deferred
from stoix_like.envs.legends import Feature, Legend, entry_name
from stoix_like.envs.scenes.base import Scene, from_pictures
from stoix_like.envs.scenes.views import COLOURS, rgb
from stoix_like.envs.spaces import Discrete
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX
from stoix_like.utils.jax_utils import named

# From `jaxtari.wrappers.AtariWrapper`: frames at 60 per second.
_PARAMS = {"noop_max": 30, "max_frames_per_episode": 108_000, "screen_size": 84}

# Games that report a limit of the package's own as the end of the game: the counter in the state, and the constant.
_LIMITS = {"skiing": ("step_count", "max_steps"), "surround": ("time", "MAX_STEPS")}

# Games that a clock ends, which is not observed, and nothing else does.
_TIMED = {"freeway": "game_duration_frames"}

# Constants of games that are not their defaults: the original reward of skiing, as the package has it, punishes each
# gate that was passed, and does so at the limit, too.
_CONSTANTS = {"skiing": {"USE_ORIGINAL_ALE_REWARD": False}}

_FPS = 60


class JaxtariEnvironment(SuiteEnvironment):
    """A game of JAXtari, one frame per step, without the time limit."""

    def __init__(self, env: Any, name: str, kind: str, noop_max: int, size: int) -> None:
        self._env, self._name, self._kind, self._noop_max = env, name, kind, noop_max
        self._counter, constant = _LIMITS.get(name, ("", ""))
        self._limit = int(getattr(env.consts, constant)) if constant else INT32_MAX
        frames = self._limit * getattr(env.consts, "MOVE_EVERY_N_STEPS", 1)  # surround counts moves
        if name in _TIMED:
            frames = int(getattr(env.consts, _TIMED[name]))
        self.truncates_after = max(frames - noop_max, 1) if constant or name in _TIMED else INT32_MAX
        self.action_space = Discrete(int(env.action_space().n))
        if kind == "pixels":
            modification.apply_native_downscaling(env, (size, size), grayscale=True)
        # Some exceed the bounds that are declared.
        self.observation_space = self.box(0, 255) if kind == "pixels" else self.box(-np.inf, np.inf)

    def start(self, key: jax.Array) -> tuple[Any, State]:
        key, noop_key = jax.random.split(key)
        num_noops = jax.random.randint(noop_key, (), 0, self._noop_max + 1)

        def wait(_: jax.Array, state: State) -> State:
            _, after, _, done, _ = self._env.step(state, jnp.zeros((), jnp.int32))
            return jax.tree.map(lambda new, old: jnp.where(done, old, new), strongly_typed(after), state)

        # The games take raw keys, and keep the next one in their state.
        state = strongly_typed(self._env.reset(jax.random.key_data(key))[1])
        if self._noop_max:
            state = jax.lax.fori_loop(0, num_noops, wait, state)
        return state, state

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        _, state, reward, done, _ = self._env.step(state, action)
        at_limit = False
        if self._counter:
            count = getattr(state, self._counter)
            done = self._env._get_done(state.replace(**{self._counter: jnp.zeros_like(count)}))
            at_limit = count >= self._limit
        elif self._name in _TIMED:
            done, at_limit = False, done
        return state, state, reward, done, at_limit

    def scene(self) -> Scene:
        if not sprites_are_installed():
            return from_pictures(self._draw_objects, _FPS)
        env = self._env if self._kind == "objects" else build_game(self._name, from_pixels=True)
        return from_pictures(jax.jit(lambda state: jnp.asarray(env.render(state), jnp.uint8)), _FPS)

    def legend(self) -> Legend:
        actions = np.asarray(getattr(self._env, "ACTION_SET", np.arange(self._env.action_space().n)))
        names = {value: name.lower() for name, value in vars(JaxtariAction).items() if isinstance(value, int)}
        words = [" ".join(re.findall("noop|up|down|left|right|fire", names[int(action)])) for action in actions]
        return Legend(() if self._kind == "pixels" else tuple(self._features()), tuple(words))

    def _features(self) -> Iterator[Feature]:
        objects, place = jax.eval_shape(self._objects, jax.eval_shape(self.reset, jax.random.key(0))[0]), 0
        for name, leaf in named(objects).items():
            for index in np.ndindex(leaf.shape):
                yield Feature(entry_name(name, index), (place,))
                place += 1

    def _objects(self, state: Any) -> Any:
        with jax.numpy_rank_promotion("allow"):
            return self._env._get_observation(state)

    def observe(self, native: Any) -> Observation:
        if self._kind == "pixels":
            return Observation(jnp.asarray(self._env.render(native), jnp.uint8))
        leaves = jax.tree.leaves(self._objects(native))
        return Observation(jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves]))

    def _draw_objects(self, state: Any) -> np.ndarray:
        """Draw the objects of a state as rectangles, with one colour per kind."""
        height, width = self._env.image_space().shape[:2]
        picture = np.zeros((height, width, 3))
        found = jax.tree.leaves(self._objects(state), is_leaf=lambda leaf: isinstance(leaf, ObjectObservation))
        kinds = [leaf for leaf in found if isinstance(leaf, ObjectObservation)]
        for number, kind in enumerate(kinds):
            parts = np.broadcast_arrays(kind.x, kind.y, kind.width, kind.height, kind.active)
            rows = np.round(np.stack([np.ravel(part) for part in parts], 1)).astype(int)
            for left, top, across, down, _ in rows[rows[:, -1] > 0]:
                area = slice(max(top, 0), max(top + down, 0)), slice(max(left, 0), max(left + across, 0))
                picture[area] = rgb(COLOURS[number % len(COLOURS)])
        return picture


class _OnDemand:
    """The renderer of a game, built when one of its attributes is first read."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = functools.cache(build)

    def __getattr__(self, name: str) -> Any:
        # It may be read first while a step is traced, and renderers read values of arrays.
        with jax.ensure_compile_time_eval(), jax.numpy_rank_promotion("allow"):
            return getattr(self._build(), name)


def scenarios() -> list[str]:
    """List the ids of the games."""
    return core.list_available_games()


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of JAXtari."""
    check_scenario("jaxtari", name, scenarios())
    check_names("env.kwargs", kwargs, ("observation",), name)
    kind = str(kwargs.get("observation", "objects"))
    check_choice("env.kwargs.observation", kind, ("objects", "pixels"), name)
    fitted = _PARAMS | fit_params(_PARAMS, params, name, positive=("max_frames_per_episode",))
    if "screen_size" in params and kind != "pixels":
        raise ConfigError(
            f"env.params.screen_size={fitted['screen_size']} has no effect on env.kwargs.observation={kind}: leave it"
            " out, or use pixels"
        )
    env = JaxtariEnvironment(build_game(name, kind == "pixels"), name, kind, fitted["noop_max"], fitted["screen_size"])
    return TimeLimit(Vectorize(env), fitted["max_frames_per_episode"])


def sprites_are_installed() -> bool:
    """Return whether there are sprites, whichever of the package's sets they are of."""
    return Path(paths.get_base_sprite_dir()).is_dir()


def build_game(name: str, from_pixels: bool = False) -> Any:
    """Build a game of the package."""
    try:
        # Some games import it for playing by hand.
        with deferred("pygame"):
            module = importlib.import_module(core.GAME_MODULES[name])
        games = [found for _, found in inspect.getmembers(module, inspect.isclass) if issubclass(found, JaxEnvironment)]
        game: Any = next(found for found in games if found is not JaxEnvironment)
        with nullcontext() if from_pixels else _renderers_on_demand(module):
            env = game()
            if name in _CONSTANTS:
                env = game(env.consts.replace(**_CONSTANTS[name]))
        if from_pixels:
            return env
        # Some games read sizes and shapes of sprites while they play.
        with jax.numpy_rank_promotion("allow"):
            jax.eval_shape(lambda: env.step(env.reset(jax.random.PRNGKey(0))[1], jnp.zeros((), jnp.int32)))
        return env
    except Exception as error:  # Renderers raise anything if a sprite is missing.
        if sprites_are_installed() and not isinstance(error, FileNotFoundError):
            raise
        what = "env.kwargs.observation=pixels" if from_pixels else f"env.scenario.name={name}"
        raise ConfigError(
            f"{what} needs the sprites of {name}, which are not in {paths.get_base_sprite_dir()}: run python -m"
            " jaxtari.install_sprites, which downloads them"
        ) from error


@contextmanager
def _renderers_on_demand(module: ModuleType) -> Iterator[None]:
    """Let the classes of renderers in a game's module return renderers that are built when they are used."""
    renderers = {
        name: found
        for name, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, JAXGameRenderer) and found is not JAXGameRenderer
    }

    def on_demand(build: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: _OnDemand(functools.partial(build, *args, **kwargs))

    vars(module).update({name: on_demand(found) for name, found in renderers.items()})
    try:
        yield
    finally:
        vars(module).update(renderers)
