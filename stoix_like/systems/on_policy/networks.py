"""The networks of on-policy actor-critics, and the steps that they learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax

from stoix_like.base_types import ActorCriticParams, Distribution, Observation, PyTree, TimeStep, Trajectory
from stoix_like.networks.feed_forward import (
    FeedForwardActor,
    FeedForwardActorCritic,
    FeedForwardCritic,
    alike,
    embed_both,
)
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement, shares_torso
from stoix_like.systems.parts.critic_outputs import CriticOutput, critic_output
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.accelerate.platform import on_gpu
from stoix_like.utils.accelerate.successors import successor_values
from stoix_like.utils.jax_utils import in_pieces, merge_leading_dims

NETWORK_HEADS: Mapping[str, HeadRequirement] = {
    "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
    "critic_network.critic_head": HeadRequirement(VALUE, shares_torso_of="actor_network"),
}
"""Heads that an on-policy actor-critic needs; a critic without its own torso shares the actor's."""


class Values(NamedTuple):
    """The values of a rollout."""

    obs: PyTree  # `[T, N]`, the inputs of the networks
    v_tm1: jax.Array  # `[T, N]`, values of the observations acted on
    v_t: jax.Array  # `[T, N]`, values of their true successors
    states: PyTree = ()  # `[T / L, N, H]`, states of a recurrent critic after every L steps; `()` without cells


@dataclass(frozen=True)
class ActorCriticNetworks:
    """A policy and its value function, separate or on a shared torso; `RecurrentNetworks` have cells as well.

    Their inputs `obs` are observations; recurrent networks take `Sequences` of observations.
    """

    actor: Any  # the policy
    critic: Any  # the value function
    pair: Any | None  # both in one, where the critic has only a head; None: they share no parameters
    output: CriticOutput  # how the output of the critic is read and learned

    @property
    def shared(self) -> bool:
        """True if the critic is applied with the torso of the actor, or its cells."""
        return self.pair is not None

    def init(self, key: jax.Array, observation: Observation) -> ActorCriticParams:
        """Initialise the parameters for observations `[N, ...]`."""
        actor_key, critic_key = jax.random.split(key)
        actor_params = self.init_params(self.actor, actor_key, observation)
        critic_params = self.init_params(self.critic, critic_key, observation)
        if self.shared:
            critic_params = {"params": {"critic_head": critic_params["params"]["critic_head"]}}
        return ActorCriticParams(actor_params, critic_params)

    def critic_params(self, params: ActorCriticParams) -> PyTree:
        """Return all parameters that the critic is applied with."""
        if not self.shared:
            return params.critic_params
        actor_params, critic_params = unpack((params.actor_params, params.critic_params))
        return {"params": actor_params["params"] | critic_params["params"]}

    def init_params(self, network: Any, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of one network."""
        return network.init(key, observation)

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the carry of `step` at the start of an episode: none."""
        return ()

    def step(self, params: ActorCriticParams, carry: PyTree, timestep: TimeStep) -> tuple[PyTree, Distribution]:
        """Return the carry after one time step `[N, ...]`, and the policy."""
        return carry, self.policy(params, timestep.observation)

    def first(self, params: ActorCriticParams, observation: Observation) -> tuple[Distribution, jax.Array]:
        """Compute the policy and the values at first observations of episodes."""
        pi, output = self.both(params, observation)
        return pi, self.output.value(output)

    def policy(self, params: ActorCriticParams, obs: PyTree) -> Distribution:
        """Compute the policy."""
        return self.actor.apply(params.actor_params, obs)

    def value(self, params: ActorCriticParams, obs: PyTree) -> PyTree:
        """Compute the output of the critic, by default values."""
        return self.critic.apply(self.critic_params(params), obs)

    def values(self, params: ActorCriticParams, obs: PyTree) -> jax.Array:
        """Compute values, the means of the outputs of the critic."""
        return self.output.value(self.value(params, obs))

    def both(self, params: ActorCriticParams, obs: PyTree) -> tuple[Distribution, PyTree]:
        """Compute the policy and the output of the critic, in one pass where they share a torso or have like ones."""
        if self.pair is not None:
            pi, output = self.pair.apply(self.critic_params(params), obs)
            return pi, output
        if not on_gpu() or not alike(self.actor, self.critic):
            return self.policy(params, obs), self.value(params, obs)
        (x, y), reading = embed_both(self.actor, self.critic, params.actor_params, params.critic_params, obs)
        with reading:
            pi = self.actor.apply(params.actor_params, x, obs, method="head")
            return pi, self.critic.apply(params.critic_params, y, method="head")

    def init_critic_state(self, num_envs: int) -> PyTree:
        """Return the state of the critic at the start of an episode: none."""
        return ()

    def evaluate(
        self, params: ActorCriticParams, critic_state: PyTree, trajectory: Trajectory, pieces: int = 1
    ) -> tuple[PyTree, Values]:
        """Compute the values of a rollout `[T, N]`, and return them with the state of the critic."""
        steps = trajectory.transitions
        value = in_pieces(partial(self.values, params), pieces, len(steps.reward))
        v_tm1, values = value(steps.observation), value(steps.next_observation)
        return critic_state, Values(steps.observation, v_tm1, successor_values(values, v_tm1, steps.truncated))

    def examples(self, params: ActorCriticParams, batch: OnPolicyTransition, values: Values) -> OnPolicyTransition:
        """Return the steps `[B]` of a rollout `[T, N]`, from which minibatches are drawn."""
        return jax.tree.map(lambda x: merge_leading_dims(x, 2), batch)

    def arrange(self, minibatch: OnPolicyTransition) -> OnPolicyTransition:
        """Return a minibatch with the axes that the networks take."""
        return minibatch


def make_networks(networks: SimpleNamespace) -> ActorCriticNetworks:
    """Build feed-forward networks from their configuration; a critic with only a head shares the actor's torso."""
    actor, critic = networks.actor_network, networks.critic_network
    shared = shares_torso(critic)
    body = actor if shared else critic
    both = (actor.action_head, critic.critic_head, actor.pre_torso, actor.input_layer)
    return ActorCriticNetworks(
        FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        FeedForwardCritic(critic.critic_head, body.pre_torso, body.input_layer),
        pair=FeedForwardActorCritic(*both) if shared else None,
        output=critic_output(critic.critic_head),
    )


class OnPolicyTransition(NamedTuple):
    """One step of a rollout with the inputs of the losses."""

    obs: PyTree  # input of the networks, with the observation that the policy acted on
    action: jax.Array  # the action taken
    log_prob: jax.Array  # log-probability of the action under the behaviour policy
    value: PyTree  # value of `obs` before the update; `()` where it is not needed
    advantage: jax.Array  # advantage of the action
    target: jax.Array  # value target
    lesson: PyTree = ()  # what a teacher says about `obs`
    image: PyTree = ()  # the mirror image of `obs`
