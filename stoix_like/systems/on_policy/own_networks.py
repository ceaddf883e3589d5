"""Actor-critics in which every agent of a game has parameters of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import ActorCriticParams, Distribution, Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Dict
from stoix_like.errors import ConfigError
from stoix_like.systems.on_policy.networks import ActorCriticNetworks, OnPolicyTransition, Values
from stoix_like.systems.parts.critic_outputs import SCALAR
from stoix_like.systems.parts.optimiser import BY_AXES
from stoix_like.utils.accelerate.platform import map_init
from stoix_like.utils.jax_utils import merge_leading_dims


def to_agents(tree: PyTree, num_agents: int, axis: int = 0) -> PyTree:
    """Split the axis of the rows of agents, `[..., N * A, ...]`, by agent: `[A, ..., N, ...]`."""

    def split(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, num_agents, *x.shape[axis + 1 :]), axis + 1, 0)

    return jax.tree.map(split, tree)


def to_rows(tree: PyTree, axis: int = 0) -> PyTree:
    """Join arrays `[A, ..., N, ...]` to the rows of agents `[..., N * A, ...]`, the inverse of `to_agents`."""

    def join(x: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(x, 0, axis + 1)
        return rows.reshape(*rows.shape[:axis], -1, *rows.shape[axis + 2 :])

    return jax.tree.map(join, tree)


@dataclass(frozen=True)
class OwnNetworks(ActorCriticNetworks):
    """Feed-forward policies and value functions of each agent: parameters `[A, ...]`, applied by one vmapped network.

    Minibatches are of whole games, so that the place of a row tells its agent.
    """

    num_agents: int  # agents of a game, A
    dims: int  # axes of one observation, for the number of batch axes before them

    def init(self, key: jax.Array, observation: Observation) -> ActorCriticParams:
        """Initialise the parameters for observations `[N * A, ...]`, with one key per agent."""
        keys = jax.random.split(key, self.num_agents)
        return map_init(super().init)(keys, to_agents(observation, self.num_agents))

    def policy(self, params: ActorCriticParams, obs: PyTree) -> Distribution:
        """Compute the policies of rows `[..., N * A]`."""
        axis = self._axis(obs)
        # The arrays of a policy have the axes of its batch, so the agents' policies join to one policy of rows.
        policies: Distribution = jax.vmap(super().policy)(params, to_agents(obs, self.num_agents, axis))
        return to_rows(policies, axis)

    def value(self, params: ActorCriticParams, obs: PyTree) -> PyTree:
        """Compute the values of rows `[..., N * A]`."""
        axis = self._axis(obs)
        return to_rows(jax.vmap(super().value)(params, to_agents(obs, self.num_agents, axis)), axis)

    def _axis(self, obs: PyTree) -> int:
        return jax.tree.leaves(obs.agent_view)[0].ndim - self.dims - 1

    def both(self, params: ActorCriticParams, obs: PyTree) -> tuple[Distribution, PyTree]:
        """Compute the policies and the values of rows `[N * A]`."""
        return self.policy(params, obs), self.value(params, obs)

    def examples(self, params: ActorCriticParams, batch: OnPolicyTransition, values: Values) -> OnPolicyTransition:
        """Return the steps of games `[B, A]` of a rollout `[T, N * A]`."""
        rows = super().examples(params, batch, values)
        return jax.tree.map(lambda x: x.reshape(-1, self.num_agents, *x.shape[1:]), rows)

    def arrange(self, minibatch: OnPolicyTransition) -> OnPolicyTransition:
        """Return the rows `[B * A]` of games."""
        return jax.tree.map(partial(merge_leading_dims, num_dims=2), minibatch)


def with_own_networks(networks: ActorCriticNetworks, spec: SystemSpec, optimiser: str) -> ActorCriticNetworks:
    """Give every agent networks of its own where agents share none."""
    if spec.share_networks:
        return networks
    if networks.output is not SCALAR:
        raise ConfigError("network.share=false needs a critic that computes a value, not a distribution: use true")
    if optimiser in BY_AXES:
        raise ConfigError(
            f"network.share=false: system.optimiser={optimiser} would take the biases of several agents for a matrix:"
            " use adam or radam"
        )
    space: Any = spec.observation_space
    while isinstance(space, Dict):
        space = space.spaces[min(space.spaces)]
    parts = {field.name: getattr(networks, field.name) for field in fields(networks)}
    return OwnNetworks(**parts, num_agents=spec.num_agents, dims=len(space.shape))
