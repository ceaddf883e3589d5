"""Adapter for envpool, which steps many environments at once in C++ threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import envpool
import gymnasium
import numpy as np
from envpool.registration import registry

from stoix_like.base_types import PyTree
from stoix_like.envs.arguments import check_names, check_scenario, fit_params, refuse_several_players
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.gymnasium_spaces import make_spec, native_actions
from stoix_like.envs.host import HostEnvironment
from stoix_like.envs.host_batches import HostBatch, HostOptions, HostStep, with_rows
from stoix_like.errors import ConfigError
from stoix_like.user_code import refusing

# envpool declares the bounds of float32 spaces in float64.
warnings.filterwarnings("ignore", ".*Box (low|high)'s precision lowered by casting", UserWarning)

# Set here, or by other keys: the scenario is the task, and `env.reward_clip` leaves scores of evaluation as they are.
_RESERVED = frozenset(
    {"num_envs", "batch_size", "seed", "env_seed", "base_path", "gym_reset_return_info", "max_num_players"}
    | {"task", "reward_clip"}
)
# envpool does not check them, and some end the process.
_AT_LEAST_ONE = ("max_episode_steps", "stack_num", "frame_stack", "frame_skip", "noop_max", "img_height", "img_width")

_JUMANJI = "envpool.jumanji"
# Games of VizDoom for several players, which declare one, and end the process where it is alone.
_FOR_SEVERAL = ("Cig-v1", "MultiDuel-v1")
# Where the limit of the pool is all that ends episodes in time, and nothing else depends on it, as rewards of MiniGrid.
_LIMITED = tuple(f"envpool.{kind}" for kind in ("box2d", "classic_control", "mujoco", "toy_text"))
# Of drawings, per second; envpool does not say how long a step is.
_FPS = 30


class EnvpoolBatch(HostBatch):
    """An environment pool.

    envpool resets an environment in the step after the end of its episode. This class resets it explicitly in the same
    step instead, so that no step of the batch is spent on a reset.

    `time_limit`: steps after which an episode is truncated; None: no limit but the pool's own.
    """

    def __init__(
        self,
        construct: Callable[[list[int]], Any],
        action_space: gymnasium.Space[Any],
        time_limit: int | None,
        resets: bool = True,
        keeps_games: bool = False,
    ) -> None:
        self._construct, self._action_space = construct, action_space
        self._time_limit, self._resets, self._keeps_games = time_limit, resets, keeps_games
        self._pool: Any = None
        self._steps = np.zeros(0, np.int64)

    def reset(self, seeds: list[int]) -> PyTree:
        """Seeds a new pool, because a pool cannot be seeded again."""
        self._pool = self._construct(seeds)
        self._steps = np.zeros(len(seeds), np.int64)
        return self._pool.reset()[0]

    def step(self, actions: np.ndarray) -> HostStep:
        native = native_actions(self._action_space, actions)
        result = self._pool.step(native)
        observation, reward, terminated, truncated = result[:4]
        successor = observation
        self._steps += 1
        if self._time_limit is not None:
            truncated = truncated | (self._steps >= self._time_limit)
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if ended.size and self._resets:
            self._steps[ended] = 0
            # The pool ignores the action of the step after a reported end; it starts the next life of a game.
            goes_on = self._keeps_games & (result[2] | result[3])[ended]
            starts = ended[goes_on], ended[~goes_on]
            if starts[0].size:
                observation = with_rows(observation, self._pool.step(native[starts[0]], starts[0])[0], starts[0])
            if starts[1].size:
                observation = with_rows(observation, self._pool.reset(starts[1])[0], starts[1])
        return HostStep(observation, successor, reward, terminated, truncated)

    def picture(self) -> np.ndarray:
        return np.asarray(self._pool.render()[0])

    def close(self) -> None:
        # The destructor stops the threads.
        self._pool = None


def scenarios() -> list[str]:
    """List the ids of envpool, without games of several players, jumanji's, pgx's, and one that is a file of a user."""
    return sorted(
        name
        for name, (module, _, options) in registry.specs.items()
        if module not in (_JUMANJI, "envpool.pgx")
        and options.get("max_num_players", 1) == 1
        and options.get("cfg_path") != ""
        if name not in _FOR_SEVERAL
    )


def is_atari(name: str) -> bool:
    """Return whether an id names an Atari game."""
    return bool(registry.specs[name][0] == "envpool.atari")


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any], options: HostOptions) -> VectorEnvironment:
    """Build environments of envpool."""
    check_scenario("envpool", name, registry.specs)
    check_names("env.params", params, (), name)
    defaults = _options_of(name)
    check_names("env.kwargs", kwargs, defaults.keys() - _RESERVED, name)
    # Images of Procgen have their colours first by default, as no other ones.
    given = {"channel_first": False, **kwargs} if "channel_first" in defaults else dict(kwargs)
    counts = {key: int(defaults[key]) for key in (*_AT_LEAST_ONE, "num_threads") if key in kwargs}
    given |= fit_params(counts, {key: kwargs[key] for key in counts}, name, _AT_LEAST_ONE, "env.kwargs")
    if given.get("num_threads", 0) < 0:
        raise ConfigError(f"env.kwargs.num_threads={given['num_threads']}: use 0 for one per core")
    if options.evaluation and "episodic_life" in given:
        # Evaluation plays whole games.
        given["episodic_life"] = False
    with refusing(f"env.kwargs={dict(kwargs)} is invalid for {name}", "use values like the defaults"):
        declared = envpool.make_spec(name, **given)
    spaces = declared.gymnasium_observation_space, declared.gymnasium_action_space
    # Images of envpool have their stacked frames first; Atari games fill the first stack of a game, but not of a life.
    keeps_games = bool(given.get("episodic_life"))
    time_limit, own_limit = options.time_limit, declared.config.max_episode_steps
    # The pool hides a termination in the step of its limit.
    if registry.specs[name][0].startswith(_LIMITED) and 0 < own_limit < np.iinfo(np.int32).max:
        given["max_episode_steps"] = own_limit + 1
        time_limit = min(own_limit, time_limit or own_limit)
    stacked = declared.config.stack_num if "noop_max" in defaults and not keeps_games else 1
    spec = make_spec(f"envpool/{name}", *spaces, channels_first="stack_num" in defaults, stacked=stacked)

    def construct(seeds: list[int]) -> Any:
        return envpool.make_gymnasium(name, num_envs=len(seeds), seed=seeds, **given)

    if options.drawn:
        given["render_mode"] = "rgb_array"
        # Some environments of envpool have no pictures.
        with refusing(f"env.scenario.name={name} cannot be drawn by envpool", "draw the environment of gymnasium"):
            pool = construct([0])
            pool.reset()
            pool.render()

    def batch(_: int) -> EnvpoolBatch:
        return EnvpoolBatch(construct, spaces[1], time_limit, not options.drawn, keeps_games)

    return HostEnvironment(batch, spec, options.timeout, _FPS if options.drawn else None)


def _options_of(name: str) -> dict[str, Any]:
    """Return the options of an environment by name, with their defaults."""
    if registry.specs[name][0] == _JUMANJI:
        raise ConfigError(
            f"env.scenario.name={name}: in envpool, its time limits end episodes, and actions have no masks: use"
            " env=jumanji"
        )
    # A library of the system may be missing, or a file.
    with refusing(f"env.scenario.name={name} cannot be built by envpool", "choose another environment"):
        options: dict[str, Any] = envpool.make_spec(name).config._asdict()
    if options["max_num_players"] > 1 or name in _FOR_SEVERAL:
        refuse_several_players(name)
    return options
