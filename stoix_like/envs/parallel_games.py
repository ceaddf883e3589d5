"""Games with the parallel interface of PettingZoo, on the host.

A game ends when its last agents leave or are done: it terminates if all of these do, and is truncated otherwise. An
agent that leaves before has one legal action, where an action is one choice, and observes zeros from the next step on.
Agents of several kinds get one space: vectors are padded with zeros, and actions that only others have are masked.
With a world, agents also observe the `state()` of a game where that is a vector of floats, or what all of them observe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, PyTree
from stoix_like.call_thread import CallThread, NoAnswerError
from stoix_like.envs import padding
from stoix_like.envs.arguments import parameters_of
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.generators import unseeded
from stoix_like.envs.gymnasium_spaces import make_spec, native_actions
from stoix_like.envs.host import HostEnvironment, HostSpec
from stoix_like.envs.host_batches import HostBatch, HostOptions, HostStep, draw_without_windows, stacked
from stoix_like.envs.spaces import Dict, Discrete, Space, Tuple, choices, first_choices, space_of
from stoix_like.envs.worlds import with_world, world_space
from stoix_like.errors import ConfigError, nearest
from stoix_like.exact import as_spec
from stoix_like.user_code import refusing

T = TypeVar("T")
_VIEW, _MASK, _STATE = "view", "mask", "state"


class _CommonForm:
    """The common form of what the agents of a game observe and do."""

    def __init__(self, env: Any, name: str, world: bool = False) -> None:
        self._world, states = world, getattr(env, "state_space", None) if world else None
        self._state: np.ndarray | None = None
        # Pixels would be unscaled floats, once for each agent.
        if isinstance(states, gymnasium.spaces.Box) and len(states.shape) == 1 and np.dtype(states.dtype).kind == "f":
            self._state = np.full(states.shape, np.nan, np.float32)
        self.agents = list(env.possible_agents)
        views = [_box(env.observation_space(agent), f"{name}: {agent}") for agent in self.agents]
        self._actions = [env.action_space(agent) for agent in self.agents]
        pairs = zip(self.agents, views, self._actions, strict=True)
        specs = [make_spec(f"{name}: {agent}", view, actions) for agent, view, actions in pairs]
        self._views = [spec.observation for spec in specs]
        self._spaces = [_array_space(spec) for spec in specs]
        padding.check_views(dict(zip(self.agents, self._views, strict=True)), name)
        actions = padding.common_actions(dict(zip(self.agents, self._spaces, strict=True)), name)
        self._choices = actions.n if isinstance(actions, Discrete) else 0
        view = jax.eval_shape(padding.stack, *self._views)
        space = specs[0].observation_space
        if any(other != views[0] for other in views):
            space = space_of(view, batch_dims=1)
        if world:
            space = world_space(space, jax.eval_shape(self._seen, self._views, self._state))
        observation: dict[str, Any] = {_VIEW: self._views}
        if self._state is not None:
            observation[_STATE] = jax.ShapeDtypeStruct(self._state.shape, self._state.dtype)
        if self._choices:
            observation[_MASK] = jax.ShapeDtypeStruct((len(self.agents), self._choices), np.dtype(bool))
        mask = self._legal if self._choices else None
        self.spec = HostSpec(name, observation, self._encode, space, actions, mask, len(self.agents))

    def view(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any], acting: Collection[str], game: Any = None
    ) -> PyTree:
        """Return what each agent of one game observes, with the legal actions `[A, n]` of discrete ones.

        `game`: the game, if its state is part of the observation; None: the state is unknown, NaN.
        """
        views = [np.zeros(view.shape, view.dtype) for view in self._views]
        mask = np.zeros((len(self.agents), self._choices), bool)
        for row, agent in enumerate(self.agents):
            observed, legal = observations.get(agent), infos.get(agent, {}).get("action_mask")
            if isinstance(observed, Mapping):
                observed, legal = observed["observation"], observed["action_mask"]
            if observed is not None:
                # A copy: games reuse their arrays.
                views[row] = np.array(as_spec(views[row], observed, f"observation of {agent!r}"))
            if agent not in acting:
                mask[row, :1] = True
            elif self._choices and legal is not None:
                own = mask[row, : sum(choices(self._spaces[row]))]
                own[:] = as_spec(own, legal, f"action_mask of {agent!r}")
        found: dict[str, Any] = {_VIEW: views, _MASK: mask} if self._choices else {_VIEW: views}
        if self._state is not None:
            found[_STATE] = self._state if game is None else np.array(as_spec(self._state, game.state(), "state()"))
        return found

    def check(self, what: str, values: Mapping[str, Any], needed: Collection[str] = ()) -> None:
        """Refuse values by agent that name no agent, or lack one that is needed."""
        for agent in values:
            if agent not in self.agents:
                raise ValueError(f"{what} of {agent!r}, no agent: {nearest(str(agent), map(str, self.agents))}")
        if missing := [agent for agent in needed if values.get(agent) is None]:
            raise ValueError(f"no {what} of {', '.join(map(repr, missing))}: return one of each agent that acts")

    def native(self, action: Any, present: list[str]) -> dict[str, Any]:
        """Return the actions of the agents that are left by name, from one game's actions `[A, ...]`."""
        rows = zip(self.agents, self._actions, padding.own_actions(action, self._spaces), strict=True)
        return {agent: native_actions(space, own) for agent, space, own in rows if agent in present}

    def _encode(self, native: PyTree) -> PyTree:
        return self._only(jax.vmap(self._seen)(jax.tree.map(jnp.asarray, native[_VIEW]), native.get(_STATE)))

    def _seen(self, views: list[Any], state: Any) -> PyTree:
        """Return what the agents of one game observe, `[A, ...]`."""
        rows = padding.stack(*views)
        if not self._world:
            return rows
        return with_world(rows, None if state is None else state[None])

    def _legal(self, native: PyTree) -> jax.Array:
        # The row of an agent that tells no legal actions has none.
        own = padding.own_choices(self._spaces, self._choices)
        return self._only(jax.vmap(lambda rows: padding.legal_choices(rows, own))(jnp.asarray(native[_MASK])))

    def _only(self, rows: T) -> T:
        return rows if len(self.agents) > 1 else jax.tree.map(lambda leaf: leaf[:, 0], rows)


def _box(space: Any, owner: str) -> gymnasium.spaces.Box:
    if isinstance(space, gymnasium.spaces.Dict) and set(space.spaces) == {"observation", "action_mask"}:
        space = space["observation"]
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"{owner} observes {space}, which is not supported: use a Box, by a wrapper of the game")
    return space


def _array_space(spec: HostSpec) -> Space:
    if isinstance(spec.action_space, Dict | Tuple):
        raise ConfigError(
            f"{spec.name} acts in a {type(spec.action_space).__name__}: use Discrete, MultiDiscrete or Box"
        )
    if first_choices(spec.action_space).any():
        raise ConfigError(f"{spec.name} acts in {spec.action_space}: count actions from 0, by a wrapper of the game")
    return spec.action_space


class ParallelBatch(HostBatch):
    """N games, stepped one after the other."""

    def __init__(self, games: list[Any], form: _CommonForm, options: HostOptions) -> None:
        self._games, self._form, self._options = games, form, options
        self._steps = np.zeros(len(games), int)
        # Some games keep agents that are done.
        self._done: list[set[Any]] = [set() for _ in games]

    def reset(self, seeds: list[int]) -> PyTree:
        return stacked([self._start(number, int(seed)) for number, seed in enumerate(seeds)])

    def step(self, actions: np.ndarray) -> HostStep:
        return HostStep(*map(stacked, zip(*map(self._step, range(len(self._games)), actions), strict=True)))

    def picture(self) -> np.ndarray:
        return np.asarray(self._games[0].render())

    def close(self) -> None:
        for game in self._games:
            game.close()

    def _start(self, number: int, seed: int | None = None) -> PyTree:
        self._steps[number], self._done[number] = 0, set()
        game = self._games[number]
        observations, infos = game.reset(seed=seed)
        self._form.check("observation", observations, game.agents)
        return self._form.view(observations, infos, game.agents, game)

    def _step(self, number: int, action: Any) -> HostStep:
        game, form, done = self._games[number], self._form, self._done[number]
        acting = list(game.agents)
        before = [agent for agent in acting if agent not in done]
        observations, rewards, terminations, truncations, infos = game.step(form.native(action, acting))
        for what, values in (("reward", rewards), ("termination", terminations), ("truncation", truncations)):
            form.check(what, values, before)
        done |= {agent for agent in acting if terminations.get(agent) or truncations.get(agent)}
        # An agent that is gone may return.
        done &= set(game.agents)
        left = [agent for agent in game.agents if agent not in done]
        form.check("observation", observations, left or before)
        self._steps[number] += 1
        seen = {agent: each for agent, each in observations.items() if agent in before or agent in left}
        # The values of a truncated game assume that its agents would continue.
        view = form.view(seen, infos, left or before, game)
        limited = self._options.time_limit is not None and self._steps[number] >= self._options.time_limit
        ended = not left
        terminated = ended and all(terminations[agent] for agent in before)
        truncated = (ended or limited) and not terminated
        start = self._start(number) if (terminated or truncated) and not self._options.drawn else view
        zero = np.float32(0)
        reward = np.stack([as_spec(zero, rewards.get(each, zero), f"reward of {each!r}") for each in form.agents])
        reward = reward if len(reward) > 1 else reward[0]
        return HostStep(start, view, reward, np.array(terminated), np.array(truncated))


class ParallelGames(HostEnvironment):
    """Games with the parallel interface."""

    def __init__(
        self, make: Callable[[int], HostBatch], form: _CommonForm, timeout: float, fps: int | None = None
    ) -> None:
        super().__init__(make, form.spec, timeout, fps)
        self._form = form

    def is_native(self, observation: Any) -> bool:
        """Observations of games are by agent."""
        return isinstance(observation, Mapping)

    def view_of(self, native: Mapping[str, Any]) -> Observation:
        """Convert the observations of a game by agent; masks come from observations, not from infos."""
        spec = self._form.spec
        self._form.check("observation", native)
        acting = [agent for agent, observed in native.items() if observed is not None]
        game = jax.tree.map(lambda leaf: np.asarray(leaf)[None], self._form.view(native, {}, acting))
        found = Observation(spec.encode(game), None if spec.mask is None else spec.mask(game))
        return jax.tree.map(lambda leaf: leaf[0], found)


def adopt(
    env: Any, constructor: Callable[..., Any] | None, name: str, options: HostOptions, world: bool = False
) -> VectorEnvironment:
    """Build vector environments from a game of PettingZoo."""
    if constructor is None:
        raise ConfigError(f"{name} is built already: pass its class or function, env=my_module.parallel_env")
    if options.vectorization != "sync":
        raise ConfigError(
            f"env.vectorization={options.vectorization} has no effect on {name}: games of PettingZoo are stepped one"
            " after the other: use sync"
        )
    form, fps = _CommonForm(env, name, world), None
    faults = unseeded(env, name)
    env.close()
    if options.drawn:
        if any(entry.name == "render_mode" or entry.kind is entry.VAR_KEYWORD for entry in parameters_of(constructor)):
            constructor = partial(constructor, render_mode="rgb_array")
        fps = _frames_per_second(constructor, name, options.timeout)
    build = constructor

    def make(num_envs: int) -> HostBatch:
        return ParallelBatch([build() for _ in range(num_envs)], form, options)

    games = ParallelGames(make, form, options.timeout, fps)
    games.faults = faults
    return games


def _frames_per_second(constructor: Callable[[], Any], name: str, timeout: float) -> int:
    """Draw the start of a game, and return the frames per second."""
    draw_without_windows()
    needs = "render() must return a picture [H, W, 3], with render_mode=rgb_array where the game takes one"
    with refusing(f"{name} cannot be drawn", needs):
        try:
            picture, fps = CallThread().call(partial(_first_picture, constructor), timeout)
        except NoAnswerError as error:
            raise ConfigError(f"env.timeout={timeout:g}: drawing {name} takes longer, or hangs") from error
    if np.ndim(picture) != 3:
        raise ConfigError(f"{name} cannot be drawn: {needs}")
    return fps


def _first_picture(constructor: Callable[[], Any]) -> tuple[Any, int]:
    game = constructor()
    try:
        game.reset(seed=0)
        return game.render(), int(getattr(game, "metadata", {}).get("render_fps", 30))
    finally:
        game.close()
