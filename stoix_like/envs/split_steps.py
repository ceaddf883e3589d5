"""Steps of environments on the host, split into what is traced and the call to the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import PyTree, TimeStep
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.host import HostEnvironment, HostState
from stoix_like.envs.host_batches import HostStep


class SplitSteps:
    """The traced parts of a step around the call to the host, for programs that leave the call to others."""

    def __init__(self, env: VectorEnvironment) -> None:
        host = env.unwrapped
        assert isinstance(host, HostEnvironment)
        self._env, self.host, self.num_agents = env, host, env.num_agents

    def start(self, keys: jax.Array, view: PyTree) -> tuple[Any, TimeStep]:
        """Build the result of `VectorEnvironment.reset`; `keys`: `[N]` typed PRNG keys."""
        return self._env.rebased(_Answered(self.host, view)).reset(keys)

    def outcome_spec(self, num_rows: int) -> HostStep:
        """Return the shapes and types of the outcome of a step; of several agents, of the games of their rows."""
        return self.host.step_spec(num_rows // self.num_agents)

    def host_action(self, keys: jax.Array, state: Any, action: jax.Array) -> jax.Array:
        """Convert actions `[N, ...]` to those that the environments on the host take, for `DirectBatch.step`."""
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.outcome_spec(len(keys)))
        base = _Answered(self.host, zeros)
        self._env.rebased(base).step(keys, state, action)
        return base.action

    def finish(self, keys: jax.Array, state: Any, action: jax.Array, outcome: HostStep) -> tuple[Any, TimeStep]:
        """Build the result of `VectorEnvironment.step`; `keys` and `action` as for `host_action`."""
        return self._env.rebased(_Answered(self.host, outcome)).step(keys, state, action)


class _Answered(VectorEnvironment):
    """Environments on the host with an answer that is already known; they remember the action."""

    on_host = True

    def __init__(self, host: HostEnvironment, answer: Any) -> None:
        self.observation_space, self.action_space = host.observation_space, host.action_space
        self._host, self._answer, self.num_agents = host, answer, host.num_agents
        self.action: Any = None

    def reset(self, keys: jax.Array) -> tuple[HostState, TimeStep]:
        return self._host.started(jnp.zeros(keys.shape, jnp.int32), self._answer)

    def step(self, keys: jax.Array, state: HostState, action: jax.Array) -> tuple[HostState, TimeStep]:
        self.action = action
        return self._host.stepped(state.batch, self._answer)

    def next_episodes(self, keys: jax.Array, state: HostState) -> tuple[HostState, TimeStep]:
        return self._host.next_episodes(keys, state)
