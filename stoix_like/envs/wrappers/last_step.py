"""A wrapper that shows the last action and the last reward to the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import PyTree, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.legends import LAST_ACTION, LAST_REWARD, VIEW, Legend
from stoix_like.envs.spaces import Box, Dict, Mixed, Space, appended, choices, is_vector
from stoix_like.envs.wrappers.base import Wrapper, with_observation
from stoix_like.errors import ConfigError


class ObserveLastStep(Wrapper, keeps_ends=True):
    """A wrapper that adds the last action and the last reward to the agent's view, zeros at the start of an episode.

    They are appended to vectors of floats. Other views become dictionaries with the entries `last_action` and
    `last_reward`, and `observation` if they were none. Discrete actions are one-hot.
    """

    keeps_goals = False

    def __init__(self, env: VectorEnvironment, action: bool, reward: bool) -> None:
        super().__init__(env)
        space = env.observation_space
        added = ({LAST_ACTION: _encoded_space(env.action_space)} if action else {}) | (
            {LAST_REWARD: Box(-np.inf, np.inf, (1,))} if reward else {}
        )
        self._action, self._reward = action, reward
        self._appends = is_vector(space)
        if self._appends:
            ends = np.full(sum(part.shape[0] for part in added.values()), np.inf)
            self.observation_space = appended(space, -ends, ends)
            return
        parts = space.spaces if isinstance(space, Dict) else {VIEW: space}
        for name in sorted(set(parts) & set(added)):
            raise ConfigError(f"env.observe_{name}=True adds an entry that the observation has already: leave it out")
        self.observation_space = Dict({**parts, **added})

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        space, num_envs = self.action_space, len(timestep.reward)
        nothing = jnp.zeros((num_envs, *_encoded_space(space).shape))
        return env_state, with_observation(timestep, agent_view=self._with_last(timestep, nothing))

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        state, timestep = self.env.step(keys, state, action)
        encoded = jax.vmap(lambda action: _encode(self.action_space, action))(action)
        return state, with_observation(timestep, agent_view=self._with_last(timestep, encoded))

    def legend(self) -> Legend:
        """An array that became an entry of a dictionary has no names."""
        legend, inside = self.env.legend(), self._appends or isinstance(self.env.observation_space, Dict)
        return legend if inside else legend._replace(features=())

    def _with_last(self, timestep: TimeStep, action: jax.Array) -> PyTree:
        view: Any = timestep.observation.agent_view
        added = ({LAST_ACTION: action} if self._action else {}) | (
            {LAST_REWARD: timestep.reward[:, None]} if self._reward else {}
        )
        if self._appends:
            return jnp.concatenate([view, *(part.astype(view.dtype) for part in added.values())], axis=-1)
        return {**(view if isinstance(view, Mapping) else {VIEW: view}), **added}


def _encode(space: Space, action: jax.Array) -> jax.Array:
    """Return one action as a vector of floats, its discrete parts one-hot, after the continuous ones."""
    sizes = choices(space)
    if not sizes:
        return action.astype(jnp.float32).reshape(-1)
    if isinstance(space, Mixed):
        continuous = np.asarray(space.is_continuous)
        parts, chosen = [action[continuous].astype(jnp.float32)], action[~continuous]
    else:
        parts, chosen = [], action.reshape(-1)
    one_hot = [jax.nn.one_hot(chosen[i].astype(jnp.int32), size) for i, size in enumerate(sizes)]
    return jnp.concatenate([*parts, *one_hot])


def _encoded_space(space: Space) -> Box:
    """Return the space of `_encode`; a dictionary of bounds would be of no use to networks."""
    example = jax.eval_shape(lambda key: _encode(space, space.sample(key)), jax.random.key(0))
    return Box(-np.inf, np.inf, example.shape)
