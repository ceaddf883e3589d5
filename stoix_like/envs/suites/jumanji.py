"""Adapter for jumanji.

An action mask over combinations of choices makes them one discrete action per combination; one mask per choice stays a
multi-discrete action. RobotWarehouse, Cleaner and MMST, with several agents and one reward, are controlled by a single
policy, which chooses all actions at once; `env.kwargs.by_agent` makes the first two environments of several agents, as
Connector, LevelBasedForaging, MultiCVRP and SearchAndRescue are.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jumanji import registration, specs

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_names, check_scenario, construct, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize, with_raw_key
from stoix_like.envs.padding import legal_choices
from stoix_like.envs.scenes import views
from stoix_like.envs.scenes.base import RecordedEpisode, Scene, Update, entry_of
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete, ObservationSpace, Space, plain_bound
from stoix_like.envs.suites.adapter import SuiteEnvironment, tolerance_of_bytes
from stoix_like.envs.worlds import with_world, world_space
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX
from stoix_like.user_code import refusing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Registered in jumanji, but not supported here, with the reason.
_UNSUPPORTED = {"Sokoban-v0": "it would download its levels"}

_SEARCH = "SearchAndRescue-v0"
_BY_AGENT = "by_agent"

# Environments with viewers that draw host arrays on flat axes, in less than a second.
_DRAWN = frozenset(
    {
        *("CVRP-v1", "Cleaner-v0", "Game2048-v1", "JobShop-v0", "Knapsack-v1", "RobotWarehouse-v0", "Snake-v1"),
        *("Sudoku-v0", "Sudoku-very-easy-v0", "TSP-v1", "Tetris-v0"),
    }
)

# Fields of `Observation`, or provided by `env.step_count`, and no part of the agent's view.
_NOT_VIEWED = ("action_mask", "step_count")


class JumanjiEnvironment(SuiteEnvironment):
    """An environment of jumanji."""

    tolerance = staticmethod(tolerance_of_bytes)  # BinPack rounds in a way that jax will refuse one day

    def __init__(self, env: Any, name: str) -> None:
        self._env, self._name = env, name
        # A search pays less with each step, and nothing beyond its limit: it terminates there.
        self._limit: int | None = None if name == _SEARCH else getattr(env, "time_limit", None)
        if self._limit is not None:
            # jumanji reports a time limit as a termination. One step later, the end of an episode is one of the task.
            env.time_limit = min(self._limit, INT32_MAX - 1) + 1
        self._spec = env.observation_spec
        self._choices: tuple[int, ...] | None = None
        self._set_spaces(_convert_observations(self._spec), getattr(self._spec, "action_mask", None))

    def start(self, key: jax.Array) -> tuple[Any, State]:
        # jumanji keeps the key in its state, as an array.
        state, timestep = self._env.reset(jax.random.key_data(key))
        return timestep.observation, state

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        if self._choices is not None:
            action = jnp.stack(jnp.unravel_index(action, self._choices))
        state, timestep = self._env.step(with_raw_key(state, "key", key), action)
        ended = timestep.last()
        terminated = ended & jnp.all(timestep.discount == 0.0)
        ended = ended if self._limit is None else ended | (state.step_count >= self._limit)
        return timestep.observation, state, timestep.reward, terminated, ended

    def scene(self) -> Scene | None:
        """Jumanji's own viewer draws."""
        return Scene(self._draw, fps=8) if self._name in _DRAWN else views.find_scene(self.observation_space)

    def _draw(self, axes: Axes, recording: RecordedEpisode) -> Update:
        viewer = self._env._viewer
        # By default, viewers open windows of their own.
        viewer._get_fig_ax = lambda *_, **__: (axes.figure, axes)
        viewer._display = lambda _: None
        return lambda entry: viewer.render(entry_of(recording.states, entry))

    def _set_spaces(self, observations: ObservationSpace, mask: Any) -> None:
        self.observation_space = _only_entry(observations)
        self.action_space, self._choices = _convert_actions(self._env.action_spec, None if mask is None else mask.shape)

    def observe(self, native: Any) -> Observation:
        view = _only_entry(_convert_view(self._spec, native))
        if (mask := getattr(native, "action_mask", None)) is None:
            return Observation(view)
        rows = mask.reshape(1, -1) if isinstance(self.action_space, Discrete) else mask
        return Observation(view, legal_choices(rows).reshape(-1))


class JumanjiAgents(JumanjiEnvironment):
    """An environment of jumanji with several agents, which choose their own actions."""

    def __init__(self, env: Any, name: str, world: bool = False) -> None:
        self._world, self.num_agents = world, int(env.action_spec.shape[0])
        self.team_reward = env.reward_spec.shape == ()
        super().__init__(env, name)

    def _set_spaces(self, observations: Any, mask: Any) -> None:
        views, entries = _VIEWS[self._name], observations.spaces
        own = {key: _row(space) if views.get(key) is _own else space for key, space in entries.items()}
        self.observation_space = _only_entry(Dict(own))
        if self._world:
            self.observation_space = world_space(self.observation_space, self.shapes())
        action = self._env.action_spec
        if mask is None:
            self.action_space = Box(plain_bound(action.minimum), plain_bound(action.maximum), action.shape[1:])
        else:
            self.action_space = Discrete(mask.shape[-1])

    def observe(self, native: Any) -> Observation:
        parts, views = _convert_view(self._spec, native), _VIEWS[self._name]

        def view_of(agent: jax.Array) -> Any:
            seen = {key: view(parts[key], agent, self.num_agents) for key, view in views.items()}
            return {key: seen.get(key, part) for key, part in parts.items()}

        view = _only_entry(jax.vmap(view_of)(jnp.arange(self.num_agents)))
        mask = getattr(native, "action_mask", None)
        view = with_world(view) if self._world else view
        return Observation(view, None if mask is None else legal_choices(mask.astype(bool)))


def _own(part: Any, agent: jax.Array, num_agents: int) -> Any:
    """Return the row of an agent."""
    return jax.tree.map(lambda leaf: leaf[agent], part)


def _own_first(part: Any, agent: jax.Array, num_agents: int) -> Any:
    """Return the rows of all agents, starting with the agent itself."""
    return jax.tree.map(lambda leaf: jnp.roll(leaf, -agent, axis=0), part)


def _as_first(grid: jax.Array, agent: jax.Array, num_agents: int) -> jax.Array:
    """Renumber the path, the head and the target of each agent, three numbers each, so that the agent's are 1, 2, 3."""
    return jnp.where(grid > 0, (grid - 1 - 3 * agent) % (3 * num_agents) + 1, grid)


# How agents see the entries of an observation; all of them see the others.
_VIEWS: dict[str, dict[str, Callable[[Any, jax.Array, int], Any]]] = {
    "Cleaner-v0": {"agents_locations": _own_first},
    "Connector-v3": {"grid": _as_first},
    "LevelBasedForaging-v0": {"agents_view": _own},
    "MultiCVRP-v0": {"vehicles": _own_first},
    "RobotWarehouse-v0": {"agents_view": _own},
    _SEARCH: {"searcher_views": _own, "positions": _own_first},
}
_JOINT = ("Cleaner-v0", "RobotWarehouse-v0")

# Generators of start states, with the arguments of the environment and the defaults of jumanji.
_GENERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "Cleaner-v0": ("routing.cleaner.generator:RandomGenerator", {"num_rows": 10, "num_cols": 10, "num_agents": 3}),
    "Connector-v3": ("routing.connector.generator:RandomWalkGenerator", {"grid_size": 10, "num_agents": 10}),
    "LevelBasedForaging-v0": (
        "routing.lbf.generator:RandomGenerator",
        {"grid_size": 8, "fov": 8, "num_agents": 2, "num_food": 2, "max_agent_level": 2, "force_coop": True},
    ),
    "MultiCVRP-v0": ("routing.multi_cvrp.generator:UniformRandomGenerator", {"num_customers": 20, "num_vehicles": 2}),
    "RobotWarehouse-v0": (
        "routing.robot_warehouse.generator:RandomGenerator",
        {"shelf_rows": 2, "shelf_columns": 3, "column_height": 8, "num_agents": 4}
        | {"sensor_range": 1, "request_queue_size": 8},
    ),
    _SEARCH: ("swarms.search_and_rescue.generator:RandomGenerator", {"num_targets": 40, "num_searchers": 2}),
}


def scenarios() -> list[str]:
    """List the ids of the supported environments."""
    return sorted(registration.registered_environments() - _UNSUPPORTED.keys())


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of jumanji."""
    check_scenario("jumanji", name, scenarios(), _UNSUPPORTED)
    check_names("env.params", params, [], name)
    entry = registration._REGISTRY[name]
    constructor = functools.partial(registration.load(entry.entry_point), **entry.kwargs)
    path, generated = _GENERATORS.get(name, ("", {}))
    options: dict[str, bool] = {_BY_AGENT: name not in _JOINT, "world": False} if name in _VIEWS else {}
    fitted = _fit(name, constructor, generated | options, kwargs)
    options |= {key: fitted.pop(key) for key in options.keys() & fitted.keys()}
    by_agent, world = options.get(_BY_AGENT, False), options.get("world", False)
    if name in _VIEWS and not by_agent and (world or name not in _JOINT):
        raise ConfigError(f"env.kwargs.{_BY_AGENT}=false does not fit {name}{' with world' * world}: leave it out")

    def build(**arguments: Any) -> Any:
        if start := {key: arguments.pop(key) for key in generated.keys() & arguments.keys()}:
            arguments["generator"] = registration.load(f"jumanji.environments.{path}")(**(generated | start))
        return constructor(**arguments)

    env = construct(build, fitted, name)
    if by_agent and env.action_spec.shape[0] < 2:
        raise ConfigError(f"env.kwargs={dict(kwargs)} is invalid for {name}: it needs at least two agents")
    made = Vectorize(JumanjiAgents(env, name, world) if by_agent else JumanjiEnvironment(env, name))
    if fitted:
        # Some arguments show only at a reset that they do not fit.
        with refusing(f"env.kwargs={dict(kwargs)} is invalid for {name}", "use values like the defaults"):
            jax.eval_shape(made.reset, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1)))
    return made


def _fit(
    name: str, constructor: Callable[..., Any], further: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert arguments to the types of their defaults; those that default to objects are not accepted."""
    defaults = {key: entry.default for key, entry in inspect.signature(constructor).parameters.items()} | dict(further)
    if "time_limit" in defaults:
        defaults["time_limit"] = defaults["time_limit"] or 1
    known = {key: default for key, default in defaults.items() if isinstance(default, int | float)}
    return fit_params(known, kwargs, name, [key for key in known if type(known[key]) is int], "env.kwargs")


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
        return Box(plain_bound(low), plain_bound(high), spec.shape, _view_dtype(spec))
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


def _row(space: Any) -> Box:
    """Return the space of one row of a box."""
    bounds = (np.asarray(space.low), np.asarray(space.high))
    low, high = (bound[0] if bound.ndim == len(space.shape) else bound for bound in bounds)
    return Box(low, high, space.shape[1:], space.dtype)


def _view_dtype(spec: Any) -> Any:
    return np.uint8 if spec.dtype == np.uint8 else np.float32


def _only_entry(entries: Any) -> Any:
    """Return the entry of a dictionary or a `Dict` that has only one, and others unchanged."""
    by_name = entries.spaces if isinstance(entries, Dict) else entries
    return next(iter(by_name.values())) if isinstance(by_name, dict) and len(by_name) == 1 else entries
