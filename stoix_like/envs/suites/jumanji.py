"""Adapter for jumanji.

An action mask over combinations of choices makes them one discrete action per combination; one mask per choice stays a
multi-discrete action. Environments with several agents and one common reward are controlled by a single policy, which
chooses all actions at once.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jumanji import registration, specs

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs.arguments import check_fits_32_bits, check_names, check_scenario, construct
from stoix_like.envs.environment import (
    Environment,
    State,
    VectorEnvironment,
    Vectorize,
    restart,
    strongly_typed,
    transition,
)
from stoix_like.envs.scenes import views
from stoix_like.envs.scenes.base import RecordedEpisode, Scene, Update, entry_of
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete, ObservationSpace, Space
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, scalar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OWN_REWARDS = "its agents have rewards of their own, and this package trains a single agent"

# Registered in jumanji, but not supported here, with the reason.
_UNSUPPORTED = {
    "Connector-v3": _OWN_REWARDS,
    "LevelBasedForaging-v0": _OWN_REWARDS,
    "MultiCVRP-v0": "it has several agents, and this package trains a single agent",
    "SearchAndRescue-v0": _OWN_REWARDS,
    "Sokoban-v0": "it would download its levels",
}

# Those whose viewers draw host arrays on flat axes, in less than a second.
_DRAWN = frozenset(
    {
        "CVRP-v1",
        "Cleaner-v0",
        "Game2048-v1",
        "JobShop-v0",
        "Knapsack-v1",
        "RobotWarehouse-v0",
        "Snake-v1",
        "Sudoku-v0",
        "Sudoku-very-easy-v0",
        "TSP-v1",
        "Tetris-v0",
    }
)

# Fields of `Observation`, or provided by `env.step_count`, and no part of the agent's view.
_NOT_VIEWED = ("action_mask", "step_count")


class JumanjiEnvironment(Environment):
    """An environment of jumanji.

    Args:
        env: the environment; its time limit is changed.
        name: its id.
    """

    def __init__(self, env: Any, name: str) -> None:
        self._env, self._name = env, name
        self._limit: int | None = getattr(env, "time_limit", None)
        if self._limit is not None:
            # jumanji reports a time limit as a termination. One step later, the end of an episode is one of the task.
            env.time_limit = min(self._limit, INT32_MAX - 1) + 1
        self._spec = env.observation_spec
        self.observation_space = _only_entry(_convert_observations(self._spec))
        mask = getattr(self._spec, "action_mask", None)
        self.action_space, self._choices = _convert_actions(env.action_spec, None if mask is None else mask.shape)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.reset`."""
        with _settings():
            # jumanji keeps the key in its state, as an array.
            state, timestep = self._env.reset(jax.random.key_data(key))
        return strongly_typed(state), restart(self._observation(timestep.observation))

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        """See `Environment.step`."""
        del key
        if self._choices is not None:
            action = jnp.stack(jnp.unravel_index(action, self._choices))
        with _settings():
            state, timestep = self._env.step(state, action)
        ended = timestep.last()
        terminated = ended & (timestep.discount == 0.0)
        truncated = ended if self._limit is None else ended | (state.step_count >= self._limit)
        observation = self._observation(timestep.observation)
        return strongly_typed(state), transition(observation, timestep.reward, terminated, truncated)

    def scene(self) -> Scene | None:
        """See `Environment.scene`; jumanji's own viewer draws."""
        return Scene(self._draw, fps=8) if self._name in _DRAWN else views.find_scene(self.observation_space)

    def _draw(self, axes: Axes, recording: RecordedEpisode) -> Update:
        viewer = self._env._viewer
        # By default, viewers open windows of their own.
        viewer._get_fig_ax = lambda *_, **__: (axes.figure, axes)
        viewer._display = lambda _: None
        return lambda entry: viewer.render(entry_of(recording.states, entry))

    def _observation(self, native: Any) -> Observation:
        view = _only_entry(_convert_view(self._spec, native))
        mask = getattr(native, "action_mask", None)
        return Observation(view, None if mask is None else self._mask(mask))

    def _mask(self, mask: jax.Array) -> jax.Array:
        rows = mask.reshape(1, -1) if isinstance(self.action_space, Discrete) else mask
        # A policy needs a legal choice, even where the episode has ended or an agent has finished.
        return (rows | ~rows.any(-1, keepdims=True)).reshape(-1)


def scenarios() -> list[str]:
    """List the ids of the supported environments."""
    return sorted(registration.registered_environments() - _UNSUPPORTED.keys())


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of jumanji.

    Args:
        name: one of `scenarios()`.
        kwargs: arguments of the constructor by name: numbers and flags, such as `time_limit`.
        params: none.

    Returns:
        The environments.

    Raises:
        ConfigError: if the name or an argument is unknown, or a value is invalid.
    """
    if name in _UNSUPPORTED:
        raise ConfigError(f"env.scenario.name={name!r} is not supported: {_UNSUPPORTED[name]}")
    check_scenario("jumanji", name, scenarios())
    check_names("env.params", params, [], name)
    entry = registration._REGISTRY[name]
    constructor = functools.partial(registration.load(entry.entry_point), **entry.kwargs)
    return Vectorize(JumanjiEnvironment(construct(constructor, _fit(name, constructor, kwargs), name), name))


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    # Several environments add arrays of different rank, and BinPack rounds in a way that jax will refuse one day.
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)
        yield


def _fit(name: str, constructor: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types of their defaults; those that default to objects are not accepted."""
    defaults = {key: entry.default for key, entry in inspect.signature(constructor).parameters.items()}
    if "time_limit" in defaults:
        defaults["time_limit"] = defaults["time_limit"] or 1
    known = {key: default for key, default in defaults.items() if isinstance(default, int | float)}
    check_names("env.kwargs", kwargs, known, name)
    fitted = {key: scalar(type(known[key]), value) for key, value in kwargs.items()}
    for key, value in fitted.items():
        check_fits_32_bits(f"env.kwargs.{key}", value)
        if value is None or (type(value) is int and value < 1):
            wanted = {bool: "true or false", int: "a positive integer", float: "a number"}[type(known[key])]
            raise ConfigError(f"env.kwargs.{key}={kwargs[key]!r} is invalid for {name}: it must be {wanted}")
    return fitted


def _convert_actions(spec: Any, mask: tuple[int, ...] | None) -> tuple[Space, tuple[int, ...] | None]:
    """Return the action space, and, where it is one of combinations, the number of options of each choice."""
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(int(spec.num_values)), None
    sizes = tuple(int(size) for size in np.ravel(spec.num_values))
    if mask == sizes:
        return Discrete(math.prod(sizes)), sizes
    return MultiDiscrete(sizes), None


def _convert_observations(spec: Any) -> ObservationSpace:
    if isinstance(spec, specs.DiscreteArray):
        return Box(0.0, 1.0, (int(spec.num_values),))
    if isinstance(spec, specs.Array):
        low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
        return Box(_bound(low), _bound(high), spec.shape, _view_dtype(spec))
    entries = {name: entry for name, entry in vars(spec).items() if isinstance(entry, specs.Spec)}
    return Dict({name: _convert_observations(entry) for name, entry in entries.items() if name not in _NOT_VIEWED})


def _convert_view(spec: Any, value: Any) -> Any:
    if isinstance(spec, specs.DiscreteArray):
        return jax.nn.one_hot(value, spec.num_values, dtype=jnp.float32)
    if isinstance(spec, specs.Array):
        return jnp.asarray(value, _view_dtype(spec))
    # Named tuples and dataclasses.
    names = getattr(value, "_fields", None) or vars(value)
    return {name: _convert_view(getattr(spec, name), getattr(value, name)) for name in names if name not in _NOT_VIEWED}


def _view_dtype(spec: Any) -> Any:
    return np.uint8 if spec.dtype == np.uint8 else np.float32


def _only_entry(entries: Any) -> Any:
    """Return the entry of a dictionary or a `Dict` that has only one, and others unchanged."""
    by_name = entries.spaces if isinstance(entries, Dict) else entries
    return next(iter(by_name.values())) if isinstance(by_name, dict) and len(by_name) == 1 else entries


def _bound(bound: Any) -> np.ndarray | float:
    array = np.asarray(bound, np.float32)
    return array if array.ndim else float(array)
