"""Adapter for JaxMARL, games of several agents.

Time limits are truncations: in MPE, Overcooked, the coin game and STORM nothing else ends an episode, and the others
terminate where their state says so. An episode of MPE has one step more than its `max_steps`, as in JaxMARL.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax.core.frozen_dict import FrozenDict

from stoix_like.envs.arguments import check_choice, check_names, check_scenario, construct, fit_params
from stoix_like.envs.environment import VectorEnvironment, Vectorize
from stoix_like.envs.jaxmarl_interface import JaxMarlEnvironment, Rules, quiet
from stoix_like.envs.lazy_imports import deferred
from stoix_like.envs.scenes.base import ACCENT, DARK, LIGHT, from_pictures
from stoix_like.envs.scenes.circles import from_circles
from stoix_like.schema import INT32_MAX

_ROBOTS = "jaxmarl.environments.mabrax"


@contextlib.contextmanager
def _without_robots() -> Iterator[None]:
    """Keep JaxMARL from importing its robots, which import brax and print whatever was to be hidden."""
    unknown = _ROBOTS not in sys.modules
    if unknown:
        sys.modules[_ROBOTS] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if unknown:
            del sys.modules[_ROBOTS]


with quiet(), _without_robots(), deferred("matplotlib"):
    import jaxmarl.environments as suite
    from jaxmarl import registration
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

_PREY = "its prey moves by itself, whatever the action"
_ROBOT = "JaxMARL has deprecated the robots of brax"
_TEAMS = "both of its teams would learn: use HeuristicEnemySMAX"
# Registered in JaxMARL, but not supported here, with the reason.
_UNSUPPORTED = {
    "SMAX": _TEAMS,
    "LearnedPolicyEnemySMAX": "its enemy is an object: use HeuristicEnemySMAX",
    **dict.fromkeys(("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3"), _ROBOT),
    **{name: _PREY for name in registration.registered_envs if "facmac" in name},
    **{name: "it is part of another package" for name in registration.registered_envs if "Robotarium" in name},
}
_AT_LEAST_ONE = ("max_steps", "num_inner_steps", "num_agents")
# Arguments that are decided here, or by the map of SMAX.
_FIXED = ("num_outer_steps", "num_allies", "num_enemies", "smacv2_position_generation", "smacv2_unit_type_generation")
# Numbers that default to None; other arguments that do are arrays and objects.
_OPTIONAL = ("agent_view_size", "hand_size")


class _Scenario(NamedTuple):
    """Construction of a scenario."""

    build: Callable[..., tuple[Any, Rules]]  # `(**arguments) -> (env, rules)`
    classes: tuple[type, ...]  # it takes their arguments
    key: str = ""  # the name of the argument that selects one of `presets`, `default` if it is left out
    default: str = ""
    presets: Mapping[str, Mapping[str, Any]] = {}  # arguments by the name that stands for them


def scenarios() -> list[str]:
    """List the ids of the supported environments, as JaxMARL registers them."""
    return [name for name in registration.registered_envs if name not in _UNSUPPORTED]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of JaxMARL."""
    check_scenario("jaxmarl", name, scenarios(), _UNSUPPORTED)
    check_names("env.params", params, [], name)
    scenario = _SCENARIOS[name]
    arguments = _fit(name, scenario, {"world": False, **kwargs})
    world = arguments.pop("world")

    def build(**arguments: Any) -> JaxMarlEnvironment:
        with quiet():
            return JaxMarlEnvironment(*scenario.build(**arguments), name, world)

    return Vectorize(construct(build, arguments, name))


def _fit(name: str, scenario: _Scenario, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types of their defaults; those that default to arrays and objects are not accepted."""
    known: dict[str, Any] = {"world": False}
    # Classes pass further arguments on to their bases.
    for cls in [base for taker in scenario.classes for base in inspect.getmro(taker)[:-1]]:
        for key, parameter in inspect.signature(cls).parameters.items():
            is_scalar = isinstance(parameter.default, int | float | str) and not isinstance(parameter.default, Enum)
            if is_scalar or key in _OPTIONAL:
                known.setdefault(key, parameter.default)
    for key in _FIXED:
        known.pop(key, None)
    if scenario.key:
        known[scenario.key] = scenario.default
    fitted = fit_params(known, kwargs, name, _AT_LEAST_ONE, "env.kwargs")
    if scenario.key:
        preset = fitted.pop(scenario.key, scenario.default)
        check_choice(f"env.kwargs.{scenario.key}", preset, scenario.presets, name)
        fitted |= scenario.presets[preset]
    return fitted


def _particles(cls: type, team_reward: bool = False, **arguments: Any) -> tuple[Any, Rules]:
    env: Any = cls(**arguments)

    def circles(state: Any) -> tuple[Any, ...]:
        # The colours of simple_push have single numbers for its landmarks.
        colours = [np.asarray(colour) / 255 if np.ndim(colour) else LIGHT for colour in env.colour[: env.num_entities]]
        return state.p_pos, np.asarray(env.rad), colours, np.ones(state.p_pos.shape[:2])

    return env, Rules(limit=env.max_steps + 1, team_reward=team_reward, scene=partial(from_circles, circles, fps=10))


def _battle(**arguments: Any) -> tuple[Any, Rules]:
    env = suite.HeuristicEnemySMAX(**arguments)

    def alive(state: Any) -> tuple[Any, Any]:
        units = state.state.unit_alive
        return units[: env.num_allies].any(), units[env.num_allies :].any()

    def terminated(_: Any, state: Any) -> Any:
        allies, enemies = alive(state)
        return ~allies | ~enemies

    def measures(_: Any, state: Any) -> dict[str, Any]:
        allies, enemies = alive(state)
        return {"win_rate": allies & ~enemies}

    def circles(state: Any) -> tuple[Any, ...]:
        units = state.state
        radii, health = (np.asarray(each)[units.unit_types] for each in (env.unit_type_radiuses, env.unit_type_health))
        colours = np.where(units.unit_teams[0] == 0, DARK, ACCENT).tolist()
        return units.unit_positions, radii[0], colours, np.clip(units.unit_health / health, 0, 1)

    # The suite compares the number of steps before the one that it has taken.
    rules = Rules(limit=env.max_steps + 1, terminated=terminated, team_reward=True, measures=measures)
    return env, rules._replace(scene=partial(from_circles, circles, fps=6))


class _ShapedState(NamedTuple):
    """The state of a kitchen, and what its deliveries have paid so far."""

    state: Any
    delivered: Any


class _Shaped:
    """A kitchen that also pays each agent for its steps towards a soup."""

    def __init__(self, env: Any, shaped_rewards: bool = False) -> None:
        self._env, self._shapes = env, float(shaped_rewards)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, key: Any) -> Any:
        """See JaxMARL."""
        observed, state = self._env.reset(key)
        return observed, _ShapedState(state, jnp.zeros(()))

    def step_env(self, key: Any, state: _ShapedState, actions: Any) -> Any:
        """See JaxMARL."""
        observed, after, rewards, dones, infos = self._env.step_env(key, state.state, actions)
        delivered = state.delivered + rewards[self._env.agents[0]]
        rewards = {name: reward + self._shapes * infos["shaped_reward"][name] for name, reward in rewards.items()}
        return observed, _ShapedState(after, delivered), rewards, dones, infos


def _picture(env: Any, state: _ShapedState) -> Any:
    from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    kitchen, around = state.state, env.agent_view_size - 2
    tiles = kitchen.maze_map[around:-around, around:-around]
    return OvercookedVisualizer._render_grid(tiles, agent_dir_idx=kitchen.agent_dir_idx, agent_inv=kitchen.agent_inv)


def _kitchen(
    cls: type, shaped_rewards: bool = False, picture: Callable[..., Any] | None = None, **arguments: Any
) -> tuple[Any, Rules]:
    env = _Shaped(cls(**arguments), shaped_rewards)

    def measures(_: Any, state: _ShapedState) -> dict[str, Any]:
        return {"delivered": state.delivered}

    scene = None if picture is None else partial(from_pictures, partial(picture, env), fps=5)
    return env, Rules(limit=env.max_steps, team_reward=not shaped_rewards, measures=measures, scene=scene)


def _riddle(**arguments: Any) -> tuple[Any, Rules]:
    env = suite.SwitchRiddle(**arguments)
    limit = env.max_steps
    # Without its own limit, the end of an episode is the answer to the riddle.
    env.max_steps = INT32_MAX

    def legal(_: Any, state: Any) -> dict[str, Any]:
        return {agent: _only_the_first(3, row != state.agent_in_room) for row, agent in enumerate(env.agents)}

    return env, Rules(limit=limit, terminated=lambda _, state: state.done, team_reward=True, legal=legal)


def _only_the_first(number: int, idle: Any) -> Any:
    """Return the legal ones of a number of actions: all, or only the first where an agent's action has no effect."""
    return ~jnp.asarray(idle) | (jnp.arange(number) == 0)


def _matrix_game(cls: type, views: Any = None, num_inner_steps: int = 152, **arguments: Any) -> tuple[Any, Rules]:
    # At the end of a game, these start the next one in the same step, and leave out its last reward.
    env: Any = cls(num_inner_steps=INT32_MAX, num_outer_steps=1, **arguments)
    return env, Rules(limit=num_inner_steps, team_reward=arguments.get("shared_rewards", False), views=views)


def _inventories_by_agent(observed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the observations of each agent, from `observations` [A, ...] and `inventory` [5, A]."""
    pairs = zip(observed["observations"], observed["inventory"].T, strict=True)
    return [{"observation": view, "inventory": inventory} for view, inventory in pairs]


def _navigation(**arguments: Any) -> tuple[Any, Rules]:
    env = suite.JaxNav(**arguments)

    def terminated(_: Any, state: Any) -> Any:
        return jnp.all(state.term | state.goal_reached | state.move_term)

    def legal(_: Any, state: Any) -> dict[str, Any]:
        # `done` is also set by the time limit, which truncates.
        stays = state.term | state.move_term
        if env.evaporating:
            stays |= state.goal_reached
        return {agent: _only_the_first(env.action_space(agent).n, stays[row]) for row, agent in enumerate(env.agents)}

    return env, Rules(limit=env.max_steps, terminated=terminated, legal=legal)


def _of(build: Callable[..., tuple[Any, Rules]], cls: type, *classes: type, **options: Any) -> _Scenario:
    """Return a scenario of one class, which `build` takes first, and further ones that it passes arguments to."""
    return _Scenario(partial(build, cls, **options), (cls, *classes))


def _kitchens(layouts: Mapping[str, Any], cls: type, **options: Any) -> _Scenario:
    """Return the scenario of a class of kitchens."""
    presets = {name: {"layout": layout} for name, layout in layouts.items()}
    return _of(_kitchen, cls, _Shaped, **options)._replace(key="layout", default="cramped_room", presets=presets)


_HANABI = Rules(team_reward=True, legal=lambda env, state: env.get_legal_moves(state))
_SCENARIOS = {
    "MPE_simple_v3": _of(_particles, suite.SimpleMPE),
    "MPE_simple_adversary_v3": _of(_particles, suite.SimpleAdversaryMPE),
    "MPE_simple_crypto_v3": _of(_particles, suite.SimpleCryptoMPE),
    "MPE_simple_push_v3": _of(_particles, suite.SimplePushMPE),
    "MPE_simple_reference_v3": _of(_particles, suite.SimpleReferenceMPE),
    "MPE_simple_speaker_listener_v4": _of(_particles, suite.SimpleSpeakerListenerMPE, team_reward=True),
    "MPE_simple_spread_v3": _of(_particles, suite.SimpleSpreadMPE),
    "MPE_simple_tag_v3": _of(_particles, suite.SimpleTagMPE),
    "MPE_simple_world_comm_v3": _of(_particles, suite.SimpleWorldCommMPE),
    "HeuristicEnemySMAX": _Scenario(
        _battle,
        (suite.HeuristicEnemySMAX, suite.SMAX),
        "map_name",
        "3m",
        {name: {"scenario": units} for name, units in MAP_NAME_TO_SCENARIO.items()},
    ),
    "overcooked": _kitchens(
        {name: FrozenDict(layout) for name, layout in suite.overcooked_layouts.items()},
        suite.Overcooked,
        picture=_picture,
    ),
    "overcooked_v2": _kitchens(suite.overcooked_v2_layouts, suite.OvercookedV2),
    "hanabi": _of(lambda cls, **arguments: (cls(**arguments), _HANABI), suite.Hanabi),
    "switch_riddle": _Scenario(_riddle, (suite.SwitchRiddle,)),
    "coin_game": _of(_matrix_game, suite.CoinGame, num_inner_steps=10),
    "storm": _of(_matrix_game, suite.InTheGrid, views=_inventories_by_agent),
    "storm_2p": _of(_matrix_game, suite.InTheGrid_2p),
    "storm_np": _of(_matrix_game, suite.InTheMatrix),
    "jaxnav": _Scenario(_navigation, (suite.JaxNav,)),
}
