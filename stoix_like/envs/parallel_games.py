"""Games with the parallel interface of PettingZoo, on the host.

A game ends when its last agents leave: it terminates if all of these do, and is truncated otherwise. An agent that left
before observes zeros and has one legal action. Agents of several kinds get one space: vectors are padded with zeros,
and actions that only others have are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np

from stoix_like.base_types import PyTree
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.gymnasium_spaces import make_spec, native_actions
from stoix_like.envs.host import HostEnvironment, HostSpec
from stoix_like.envs.host_batches import HostBatch, HostOptions, HostStep
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError

_VIEW, _MASK = "view", "mask"


class _Padding:
    """The common form of what the agents of a game observe and do."""

    def __init__(self, env: Any, name: str) -> None:
        self.agents = list(env.possible_agents)
        self._views = {agent: self._box(env.observation_space(agent), f"{name}: {agent}") for agent in self.agents}
        self._actions = {agent: env.action_space(agent) for agent in self.agents}
        shapes = {space.shape for space in self._views.values()}
        if len(shapes) > 1 and any(len(shape) > 1 for shape in shapes):
            raise ConfigError(
                f"{name}: agents observe arrays of the shapes {sorted(shapes)}: only vectors can be padded"
            )
        largest = max(self.agents, key=lambda agent: gymnasium.spaces.flatdim(self._actions[agent]))
        wide = max(self.agents, key=lambda agent: self._views[agent].shape)
        spec = make_spec(name, self._views[wide], self._actions[largest])
        if any(space != self._actions[largest] for space in self._actions.values()) and not all(
            isinstance(space, gymnasium.spaces.Discrete) for space in self._actions.values()
        ):
            raise ConfigError(f"{name}: agents act in {self._actions}: only Discrete spaces can be padded")
        self._choices = spec.action_space.n if isinstance(spec.action_space, Discrete) else None
        self._shape, self._dtype = spec.observation.shape, spec.observation.dtype
        self.spec = self._of_agents(spec, len(shapes) == 1)

    def view(self, observations: Mapping[str, Any], infos: Mapping[str, Any], present: Collection[str]) -> PyTree:
        """Return what the agents of one game observe, `[A, ...]`, with the legal actions of discrete ones."""
        view = np.zeros((len(self.agents), *self._shape), self._dtype)
        mask = np.zeros((len(self.agents), self._choices or 0), bool)
        for row, agent in enumerate(self.agents):
            if agent not in present:
                mask[row, :1] = True
                continue
            observed, legal = observations[agent], infos.get(agent, {}).get("action_mask")
            if isinstance(observed, Mapping):
                observed, legal = observed["observation"], observed["action_mask"]
            own = self._views[agent].shape
            view[row][tuple(map(slice, own))] = observed
            if self._choices:
                mask[row, : int(self._actions[agent].n)] = True if legal is None else np.asarray(legal, bool)
        return {_VIEW: view} if self._choices is None else {_VIEW: view, _MASK: mask}

    def native(self, action: Any, present: list[str]) -> dict[str, Any]:
        """Return the actions of the agents that are left by name, of those of one game `[A, ...]`."""
        return {
            agent: native_actions(self._actions[agent], action[row])
            for row, agent in enumerate(self.agents)
            if agent in present
        }

    def _of_agents(self, spec: HostSpec, alike: bool) -> HostSpec:
        rows = len(self.agents)
        observation = {_VIEW: jax.ShapeDtypeStruct((rows, *self._shape), self._dtype)}
        if self._choices is not None:
            observation[_MASK] = jax.ShapeDtypeStruct((rows, self._choices), np.dtype(bool))
        space = spec.observation_space
        return spec._replace(
            observation=observation,
            encode=lambda view: view[_VIEW],
            mask=(lambda view: view[_MASK]) if self._choices is not None else None,
            observation_space=space if alike else Box(-np.inf, np.inf, self._shape, self._dtype),
            num_agents=rows,
        )

    @staticmethod
    def _box(space: Any, owner: str) -> gymnasium.spaces.Box:
        if isinstance(space, gymnasium.spaces.Dict) and set(space.spaces) == {"observation", "action_mask"}:
            space = space["observation"]
        if not isinstance(space, gymnasium.spaces.Box):
            raise ConfigError(f"{owner} observes {space}, which is not supported: use a Box, by a wrapper of the game")
        return space


class ParallelBatch(HostBatch):
    """N games, stepped one after the other."""

    def __init__(self, games: list[Any], padding: _Padding, options: HostOptions) -> None:
        self._games, self._padding, self._options = games, padding, options
        self._steps = np.zeros(len(games), int)

    def reset(self, seeds: list[int]) -> PyTree:
        """See `HostBatch.reset`."""
        return _stack([self._start(number, int(seed)) for number, seed in enumerate(seeds)])

    def step(self, actions: np.ndarray) -> HostStep:
        """See `HostBatch.step`."""
        return HostStep(*map(_stack, zip(*map(self._step, range(len(self._games)), actions), strict=True)))

    def close(self) -> None:
        """See `HostBatch.close`."""
        for game in self._games:
            game.close()

    def _start(self, number: int, seed: int | None = None) -> PyTree:
        self._steps[number] = 0
        game = self._games[number]
        observations, infos = game.reset(seed=seed)
        return self._padding.view(observations, infos, game.agents)

    def _step(self, number: int, action: Any) -> HostStep:
        game, padding = self._games[number], self._padding
        before = list(game.agents)
        observations, rewards, terminations, truncations, infos = game.step(padding.native(action, before))
        del truncations
        self._steps[number] += 1
        view = padding.view(observations, infos, [agent for agent in before if agent in observations])
        limited = self._options.time_limit is not None and self._steps[number] >= self._options.time_limit
        ended = not game.agents
        terminated = ended and all(terminations[agent] for agent in before)
        truncated = (ended or limited) and not terminated
        start = self._start(number) if terminated or truncated else view
        reward = np.array([rewards.get(agent, 0.0) for agent in padding.agents], np.float32)
        return HostStep(start, view, reward, np.array(terminated), np.array(truncated))


def adopt(env: Any, constructor: Callable[[], Any] | None, name: str, options: HostOptions) -> VectorEnvironment:
    """Build vector environments from a game of PettingZoo.

    Args:
        env: the game, which is closed.
        constructor: builds further ones.
        name: name of the game, for messages.
        options: the time limit; games are stepped one after the other.

    Returns:
        The environments.

    Raises:
        ConfigError: there is no constructor, or a space is not supported.
    """
    if constructor is None:
        raise ConfigError(f"{name} is built already: pass its class or function, env=my_module.parallel_env")
    if options.drawn:
        raise ConfigError(f"{name} has no drawing: leave it out")
    padding = _Padding(env, name)
    env.close()
    make = partial(_make_batch, constructor, padding, options)
    return HostEnvironment(make, padding.spec, options.timeout)


def _make_batch(constructor: Callable[[], Any], padding: _Padding, options: HostOptions, num_envs: int) -> HostBatch:
    return ParallelBatch([constructor() for _ in range(num_envs)], padding, options)


def _stack(trees: Any) -> PyTree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
