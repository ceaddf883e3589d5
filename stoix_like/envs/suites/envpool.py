"""Adapter for envpool, which steps many environments at once in C++ threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import envpool
import gymnasium
import jax
import numpy as np

from stoix_like.base_types import PyTree
from stoix_like.envs.arguments import check_names, check_scenario
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.gymnasium_spaces import make_spec, native_actions
from stoix_like.envs.host import HostBatch, HostEnvironment, HostOptions, HostStep
from stoix_like.errors import ConfigError

# envpool declares the bounds of float32 spaces in float64.
warnings.filterwarnings("ignore", ".*Box (low|high)'s precision lowered by casting", UserWarning)

# Set here, or by other keys: `env.reward_clip` leaves the scores of evaluation as they are.
_RESERVED = frozenset(
    {"num_envs", "batch_size", "seed", "env_seed", "base_path", "gym_reset_return_info", "max_num_players"}
    | {"reward_clip"}
)


class EnvpoolBatch(HostBatch):
    """An environment pool.

    envpool resets an environment in the step after the end of its episode. This class resets it explicitly in the same
    step instead, so that no step of the batch is spent on a reset.

    Args:
        construct: builds the pool from one seed per environment.
        action_space: space of one action.
    """

    def __init__(self, construct: Callable[[list[int]], Any], action_space: gymnasium.Space[Any]) -> None:
        self._construct, self._action_space = construct, action_space
        self._pool: Any = None

    def reset(self, seeds: list[int]) -> PyTree:
        """See `HostBatch.reset`; seeds a new pool, because a pool cannot be seeded again."""
        self._pool = self._construct(seeds)
        return self._pool.reset()[0]

    def step(self, actions: np.ndarray) -> HostStep:
        """See `HostBatch.step`."""
        result = self._pool.step(native_actions(self._action_space, actions))
        observation, reward, terminated, truncated = result[:4]
        successor = observation
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if ended.size:
            observation = _replace(observation, self._pool.reset(ended)[0], ended)
        return HostStep(observation, successor, reward, terminated, truncated)

    def close(self) -> None:
        """See `HostBatch.close`."""
        # The destructor stops the threads.
        self._pool = None


def scenarios() -> list[str]:
    """List the ids of envpool."""
    return sorted(envpool.list_all_envs())


def make(
    name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any], options: HostOptions | None = None
) -> VectorEnvironment:
    """Build environments of envpool.

    Args:
        name: one of `scenarios()`.
        kwargs: options of the environment by name, such as `episodic_life` of Atari games.
        params: must be empty.
        options: the time limit of the environments.

    Returns:
        The environments.

    Raises:
        ConfigError: if the id or an option is unknown or invalid, or a space is not supported.
    """
    options = options or HostOptions()
    check_scenario("envpool", name, scenarios())
    check_names("env.params", params, (), name)
    defaults = envpool.make_spec(name).config._asdict()
    if defaults["max_num_players"] > 1:
        raise ConfigError(
            f"env.scenario.name={name!r} has several players: only environments of one player are supported"
        )
    check_names("env.kwargs", kwargs, defaults.keys() - _RESERVED, name)
    given = dict(kwargs)
    if options.evaluation and "episodic_life" in given:
        # Evaluation plays whole games.
        given["episodic_life"] = False
    if options.time_limit is not None:
        own_limit = given.get("max_episode_steps", defaults["max_episode_steps"])
        given["max_episode_steps"] = min(own_limit, options.time_limit)
    try:
        declared = envpool.make_spec(name, **given)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"env.kwargs={dict(kwargs)} is invalid for {name}: {reason}") from error
    spaces = declared.gymnasium_observation_space, declared.gymnasium_action_space
    # Images of envpool have their stacked frames first; Atari games are known to fill the first stack.
    stacked = declared.config.stack_num if "noop_max" in defaults else 1
    spec = make_spec(f"envpool/{name}", *spaces, channels_first="stack_num" in defaults, stacked=stacked)

    def construct(seeds: list[int]) -> Any:
        return envpool.make_gymnasium(name, num_envs=len(seeds), seed=seeds, **given)

    return HostEnvironment(lambda _: EnvpoolBatch(construct, spaces[1]), spec, options.timeout)


def _replace(observation: PyTree, starts: PyTree, ended: np.ndarray) -> PyTree:
    """Return a copy of observations `[N, ...]` with `starts` at the indices `ended`."""

    def replace(leaf: np.ndarray, start: np.ndarray) -> np.ndarray:
        copy = leaf.copy()
        copy[ended] = start
        return copy

    return jax.tree.map(replace, observation, starts)
