"""Environments with the interface of JaxMARL: dictionaries of observations, actions and rewards by the agent's name.

Agents of several kinds get one space: vectors are padded with zeros, and actions that only others have are masked.
The interface has one flag for the end of a task and for the time limit, so that `Rules` tell them apart.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs import padding
from stoix_like.envs.environment import Environment, State, restart, strongly_typed, transition
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space, choices, is_picture, one_hot, space_of
from stoix_like.envs.worlds import with_world, world_space
from stoix_like.errors import ConfigError, FaultyEnvironmentError
from stoix_like.schema import INT32_MAX
from stoix_like.user_code import refusing

ALL = "__all__"

_SILENCE = threading.RLock()


class Rules(NamedTuple):
    """Rules of an environment that the interface does not specify."""

    limit: int | None = None  # the steps after which an episode is truncated; None: never
    # `(env, state) -> bool`, whether the task has ended, also in the last step before the limit.
    terminated: Callable[[Any, Any], Any] | None = None
    team_reward: bool = False  # whether all agents receive the same reward
    measures: Callable[[Any, Any], Mapping[str, Any]] = lambda env, state: {}  # `(env, state) -> measures`
    # `(env, state) -> masks`, the legal actions by agent; None: `get_avail_actions`, if there is one.
    legal: Callable[[Any, Any], Mapping[Any, Any]] | None = None
    # `(observations) -> observations`, as a list over agents; None where they are by agent already.
    views: Callable[[Any], Any] | None = None
    # Whether `observation_spaces` tell pictures and categories from numbers; False: all are numbers.
    declared: bool = False
    scene: Callable[[], Scene | None] | None = None


class JaxMarlEnvironment(Environment):
    """An environment with JaxMARL's interface; one agent is an environment like any other."""

    def __init__(self, env: Any, rules: Rules, name: str, world: bool = False) -> None:
        self._env, self._rules, self._world = env, rules, world
        self._agents = list(env.agents)
        self.num_agents = len(self._agents)
        self.team_reward = rules.team_reward and self.num_agents > 1
        self.truncates_after = INT32_MAX if rules.limit is None else rules.limit
        self._legal = getattr(env, "get_avail_actions", None) if rules.legal is None else partial(rules.legal, env)
        self._spaces = [_action_space(env, agent, name) for agent in self._agents]
        self.action_space = padding.common_actions(dict(zip(self._agents, self._spaces, strict=True)), name)
        key = jax.random.key(0)
        with quiet():
            views, state = jax.eval_shape(env.reset, key)
            views = jax.eval_shape(self._list, views)
            padding.check_views(dict(zip(self._agents, views, strict=True)), name)
            self._masks = self._finds_masks(state)
            view = jax.eval_shape(self._all, key)[1].agent_view
        self.observation_space = space_of(view["own"] if world else view, batch_dims=1)
        if world:
            self.observation_space = world_space(self.observation_space, view)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        with quiet():
            state, observation = self._all(key)
            return state, restart(self._only(observation), self._rules.measures(self._env, state))

    def step(self, key: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        rules = self._rules
        with quiet():
            observed, after, rewards, dones, _ = self._env.step_env(key, state, self._native(action))
            # Some environments change dtypes in the first step.
            after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
            truncated = jnp.asarray(False) if rules.limit is None else steps_of(after) >= rules.limit
            terminated = dones[ALL] & ~truncated
            if rules.terminated is not None:
                terminated |= rules.terminated(self._env, after)
            reward = jnp.stack([jnp.asarray(each, jnp.float32) for each in self._by_agent(rewards)])
            reward = reward[0] if self.team_reward or self.num_agents == 1 else reward
            observation = self._only(self._observation(observed, after))
            return after, transition(observation, reward, terminated, truncated, rules.measures(self._env, after))

    def scene(self) -> Scene | None:
        return super().scene() if self._rules.scene is None else self._rules.scene()

    def _all(self, key: jax.Array) -> tuple[State, Observation]:
        observed, state = self._env.reset(key)
        state = strongly_typed(state)
        return state, self._observation(observed, state)

    def _only(self, observation: Observation) -> Observation:
        return observation if self.num_agents > 1 else jax.tree.map(lambda leaf: leaf[0], observation)

    def _native(self, action: Any) -> Any:
        own = padding.own_actions(action, self._spaces)
        # Environments that number their agents take a sequence.
        return tuple(own) if isinstance(self._agents[0], int) else dict(zip(self._agents, own, strict=True))

    def _by_agent(self, values: Any) -> list[Any]:
        return [values[agent] for agent in self._agents]

    def _list(self, observed: Any) -> list[Any]:
        return self._by_agent(observed if self._rules.views is None else self._rules.views(observed))

    def _observation(self, observed: Any, state: Any) -> Observation:
        spaces = [self._env.observation_spaces[agent] if self._rules.declared else None for agent in self._agents]
        views = jax.tree.map(padding.stack, *map(_as_numbers, self._list(observed), spaces))
        if self._world:
            world = observed.get("world_state") if isinstance(observed, Mapping) else None
            if world is None and hasattr(self._env, "get_world_state"):
                world = self._env.get_world_state(state)
            views = with_world(views, world)
        return Observation(views, self._mask(state))

    def _finds_masks(self, state: Any) -> bool:
        """Return whether the environment tells which actions are legal; refuse masks that do not fit the actions."""
        if self._legal is None or not all(isinstance(space, Discrete) for space in self._spaces):
            return False
        try:
            legal = jax.eval_shape(self._legal, state)
        except NotImplementedError:
            return False
        for agent, space in zip(self._agents, self._spaces, strict=True):
            if (found := padding.shapes(legal[agent])) != (size := (sum(choices(space)),)):
                fault = f"get_avail_actions returns a mask {found} of {agent}: return one of {size}"
                raise FaultyEnvironmentError([fault])
        return True

    def _mask(self, state: Any) -> jax.Array | None:
        if not isinstance(self.action_space, Discrete):
            return None
        own = padding.own_choices(self._spaces, self.action_space.n)
        if not self._masks or self._legal is None:
            return None if own.all() else jnp.asarray(own)
        legal = self._by_agent(self._legal(state))
        return padding.legal_choices(padding.stack(*[jnp.asarray(row, bool) for row in legal]), own)


def adapt(env: Any, name: str, world: bool = False) -> JaxMarlEnvironment:
    """Convert a custom environment."""
    rules = Rules(getattr(env, "max_steps", None), team_reward=bool(getattr(env, "team_reward", False)), declared=True)
    if callable(scene := getattr(env, "scene", None)):
        rules = rules._replace(scene=scene)
    if callable(getattr(env, "terminated", None)):
        rules = rules._replace(terminated=lambda env, state: env.terminated(state))
    with refusing(f"{name} does not follow JaxMARL's interface", "see JaxMARL's MultiAgentEnv"):
        adapted = JaxMarlEnvironment(env, rules, name, world)
        space: Any = adapted.action_space
        action = jnp.zeros((*([adapted.num_agents] * (adapted.num_agents > 1)), *space.shape), space.dtype)
        jax.eval_shape(lambda key: adapted.step(key, adapted.reset(key)[0], action), jax.random.key(0))
    return adapted


def steps_of(state: Any) -> jax.Array:
    """Return the number of steps so far, which a state counts in `step`, as in JaxMARL."""
    # With a heuristic enemy, the state of the battle is part of it.
    return getattr(state, "state", state).step


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep environments from printing and warning while they are traced, and let them add arrays of any rank."""
    # Two threads would restore each other's silence.
    with _SILENCE, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with jax.numpy_rank_promotion("allow"):
            yield


def _as_numbers(view: Any, space: Any) -> Any:
    """Return the view of an agent as floats: one-hot vectors of categories, and pictures as they are."""
    if isinstance(view, Mapping):
        return {name: _as_numbers(part, getattr(space, "spaces", {}).get(name)) for name, part in view.items()}
    if view.dtype == jnp.uint8 and hasattr(space, "high") and is_picture(Box(space.low, space.high, view.shape)):
        return jnp.asarray(view)
    if (discrete := _discrete(space)) is not None and view.shape == discrete.shape:
        return one_hot(discrete, view[None])[0]
    return jnp.asarray(view, jnp.float32)


def _action_space(env: Any, agent: Any, name: str) -> Space:
    spaces = getattr(env, "action_spaces", {})
    space = spaces[agent] if agent in spaces else env.action_space(agent)
    if (discrete := _discrete(space)) is not None:
        return discrete
    if hasattr(space, "low") and len(space.shape) == 1:
        shape = tuple(int(size) for size in space.shape)
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
        return Box(low, high, shape, getattr(space, "dtype", jnp.float32))
    raise ConfigError(f"{name}: {agent} acts in a {type(space).__name__}: use Discrete, MultiDiscrete or a vector Box")


def _discrete(space: Any) -> Discrete | MultiDiscrete | None:
    if (sizes := getattr(space, "num_categories", getattr(space, "nvec", None))) is not None:
        return MultiDiscrete(tuple(int(size) for size in np.asarray(sizes)))
    return Discrete(int(space.n)) if hasattr(space, "n") else None
