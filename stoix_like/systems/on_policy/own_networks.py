"""Actor-critics in which every agent of a game has parameters of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import distrax
import jax
import jax.numpy as jnp

from stoix_like.base_types import ActorCriticParams, Distribution, Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Dict
from stoix_like.errors import ConfigError
from stoix_like.systems.on_policy.networks import ActorCriticNetworks, OnPolicyTransition, Values
from stoix_like.systems.parts.critic_outputs import SCALAR
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


class AgentPolicies(distrax.Distribution):
    """The policies of agents with parameters of their own, as one distribution over rows `[..., N * A]`.

    Args:
        policies: a distribution whose arrays have a leading axis of A.
        num_agents: A.
    """

    def __init__(self, policies: Any, num_agents: int) -> None:
        self._policies, self._num_agents = policies, num_agents

    def _one(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], self._policies)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return self._one().event_shape

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the rows."""
        *others, games = self._one().batch_shape
        return (*others, self._num_agents * games)

    @property
    def _axis(self) -> int:
        return len(self._one().batch_shape) - 1

    def sample(self, *, seed: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw actions `[*sample_shape, ..., N * A, ...]`, with a key of each agent."""
        draw = jax.vmap(lambda policy, key: policy.sample(seed=key, sample_shape=sample_shape))
        drawn = draw(self._policies, jax.random.split(seed, self._num_agents))
        return to_rows(drawn, len(sample_shape) + self._axis)

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        return self.sample(seed=key, sample_shape=(n,))

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Compute the log-probabilities of actions `[..., N * A, ...]`, in nats."""
        actions = to_agents(value, self._num_agents, self._axis)
        return to_rows(jax.vmap(lambda policy, action: policy.log_prob(action))(self._policies, actions), self._axis)

    def entropy(self, *, seed: jax.Array) -> jax.Array:
        """Compute the entropies `[..., N * A]`, in nats."""
        keys = jax.random.split(seed, self._num_agents)
        return to_rows(jax.vmap(lambda policy, key: policy.entropy(seed=key))(self._policies, keys), self._axis)

    def mode(self) -> jax.Array:
        """Return the most likely actions `[..., N * A, ...]`."""
        return to_rows(jax.vmap(lambda policy: policy.mode())(self._policies), self._axis)

    def kl_divergence(self, other_dist: Any, **kwargs: Any) -> jax.Array:
        """Compute the divergences `[..., N * A]` from other policies of the same kind, in nats."""
        divergence = jax.vmap(lambda policy, other: policy.kl_divergence(other, **kwargs))
        return to_rows(divergence(self._policies, other_dist._policies), self._axis)


@dataclass(frozen=True)
class OwnNetworks(ActorCriticNetworks):
    """Feed-forward policies and value functions of each agent: parameters `[A, ...]`, applied by one vmapped network.

    Minibatches are of whole games, so that the place of a row tells its agent.

    Attributes:
        num_agents: agents of a game, A.
        dims: axes of one observation, for the number of batch axes before them.
    """

    num_agents: int
    dims: int

    def init(self, key: jax.Array, observation: Observation) -> ActorCriticParams:
        """Initialise the parameters for observations `[N * A, ...]`, those of each agent from a key of its own."""
        keys = jax.random.split(key, self.num_agents)
        return jax.vmap(super().init)(keys, to_agents(observation, self.num_agents))

    def policy(self, params: ActorCriticParams, obs: PyTree) -> Distribution:
        """Compute the policies of rows `[..., N * A]`."""
        policies = jax.vmap(super().policy)(params, to_agents(obs, self.num_agents, self._axis(obs)))
        return AgentPolicies(policies, self.num_agents)

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


def with_own_networks(networks: ActorCriticNetworks, spec: SystemSpec) -> ActorCriticNetworks:
    """Give every agent networks of its own where agents share none.

    Args:
        networks: feed-forward networks.
        spec: the network configuration, and the number of agents.

    Returns:
        The networks.

    Raises:
        ConfigError: the critic computes a distribution.
    """
    if spec.share_networks:
        return networks
    if networks.output is not SCALAR:
        raise ConfigError("network.share=false needs a critic that computes a value, not a distribution: use true")
    space: Any = spec.observation_space
    while isinstance(space, Dict):
        space = space.spaces[min(space.spaces)]
    parts = {field.name: getattr(networks, field.name) for field in fields(networks)}
    return OwnNetworks(**parts, num_agents=spec.num_agents, dims=len(space.shape))
