"""Recurrent networks of on-policy actor-critics, and the sequences that they learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    ActorCriticHiddenStates,
    ActorCriticParams,
    Distribution,
    Observation,
    PyTree,
    TimeStep,
    Trajectory,
)
from stoix_like.errors import ConfigError
from stoix_like.networks.recurrent.networks import same_body, unroll_both
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement, shares_torso
from stoix_like.schema import INT32_MAX, Part, between
from stoix_like.systems.on_policy.epochs import MinibatchConfig
from stoix_like.systems.on_policy.networks import ActorCriticNetworks, OnPolicyTransition, Values
from stoix_like.systems.parts import recurrent
from stoix_like.systems.parts.critic_outputs import critic_output
from stoix_like.systems.parts.recurrent import RecurrentNetwork, states_at_starts, unroll_with_successors
from stoix_like.utils.accelerate.platform import on_cpu

NETWORK_HEADS: Mapping[str, HeadRequirement] = {
    "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, recurrent=True),
    "critic_network.critic_head": HeadRequirement(
        VALUE, recurrent=True, cells_optional=True, shares_torso_of="actor_network"
    ),
}
"""Heads that a recurrent policy needs, and its value function, recurrent or not."""


@dataclass(frozen=True, kw_only=True)
class LearnedSequences(Part):
    """Hyperparameters of the sequences of rollouts that gradients flow through."""

    sequence_length: Annotated[int | None, between(1, INT32_MAX)] = None  # steps per sequence; None: the whole rollout

    @property
    def reads_successors(self) -> bool:
        """Values of successors are computed from the states of the critic."""
        return True

    def steps_per_sequence(self, rollout_length: int) -> int:
        """Return the steps per sequence, L."""
        return self.sequence_length or rollout_length

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Check that sequences divide the rollout, and minibatches the sequences."""
        rollout, length = config.rollout_length, self.steps_per_sequence(config.rollout_length)
        if config.sde_sample_freq is not None:
            raise ConfigError(
                f"system.sde_sample_freq={config.sde_sample_freq}: a recurrent system draws new noise in every step:"
                " use null"
            )
        if rollout % length:
            raise ConfigError(
                f"system.sequence_length={self.sequence_length} must divide system.rollout_length={rollout}: use a"
                " divisor of it, or null for whole rollouts"
            )
        sequences = num_envs * rollout // length
        minibatches = config.find_part(MinibatchConfig)
        num_minibatches = 1 if minibatches is None else minibatches.num_minibatches
        if sequences % num_minibatches:
            raise ConfigError(
                f"system.num_minibatches={num_minibatches} must divide the {sequences:,} sequences per shard"
                f" ({num_envs} envs × {rollout} steps / system.sequence_length {length}): use a divisor of {sequences}"
            )


class Sequences(NamedTuple):
    """Observations of sequences, the input of recurrent networks."""

    observation: Observation  # `[L, S, ...]`
    is_first: jax.Array  # `[L, S]` bool, whether an observation is the first of its episode
    hidden_states: ActorCriticHiddenStates  # `[S, H]`, the states before the first steps


@dataclass(frozen=True)
class RecurrentNetworks(ActorCriticNetworks):
    """Recurrent policy and value function, which share their cells if the critic has no more than a head.

    The carry of `act` is the actor's state. The critic's state is part of `Agent.local`: values are computed at
    the start of each update, in one pass over the rollout. With shared cells, they start from the actor's state.
    """

    length: int  # steps per sequence, L

    def init_params(self, network: Any, key: jax.Array, observation: Observation) -> PyTree:
        return recurrent.init_params(network, key, observation)

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the state of the actor at the start of an episode, `[N, H]`."""
        return self.actor.initialize_carry(num_envs)

    def step(self, params: ActorCriticParams, carry: PyTree, timestep: TimeStep) -> tuple[PyTree, Distribution]:
        """Return the state of the actor after one time step `[N, ...]`, and the policy."""
        starts, actor_params = timestep.starts_episode, params.actor_params
        return recurrent.step(self.actor, actor_params, carry, timestep.observation, starts)

    def first(self, params: ActorCriticParams, observation: Observation) -> tuple[Distribution, jax.Array]:
        pi = recurrent.first_output(self.actor, params.actor_params, observation)
        output = recurrent.first_output(self.critic, self.critic_params(params), observation)
        return pi, self.output.value(output)

    def policy(self, params: ActorCriticParams, obs: Sequences) -> Distribution:
        """Compute the policy of sequences."""
        state = obs.hidden_states.policy_hidden_state
        return recurrent.unroll(self.actor, params.actor_params, state, obs.observation, obs.is_first)[1]

    def value(self, params: ActorCriticParams, obs: Sequences, network: RecurrentNetwork | None = None) -> PyTree:
        """Compute the output of the critic, or of another network with all its parameters, for sequences."""
        network, state = network or self.critic, obs.hidden_states.critic_hidden_state
        return recurrent.unroll(network, self.critic_params(params), state, obs.observation, obs.is_first)[1]

    def both(self, params: ActorCriticParams, obs: Sequences) -> tuple[Distribution, PyTree]:
        """Compute the policy and the output of the critic, in one pass if they share or batch their cells."""
        if self.pair is None and (on_cpu() or not same_body(self.actor, self.critic)):
            return self.policy(params, obs), self.value(params, obs)
        if self.pair is None:
            return unroll_both(self.actor, self.critic, params, obs.hidden_states, obs.observation, obs.is_first)
        pi, value = self.value(params, obs, self.pair)
        return pi, value

    def init_critic_state(self, num_envs: int) -> PyTree:
        """Return the state of the critic at the start of an episode, `[N, H]`."""
        return self.critic.initialize_carry(num_envs)

    def evaluate(
        self, params: ActorCriticParams, critic_state: PyTree, trajectory: Trajectory, pieces: int = 1
    ) -> tuple[PyTree, Values]:
        """Compute the values of a rollout `[T, N]`, as a whole; also return the state of the critic after it."""
        steps, first_carry = trajectory
        # With shared cells: the behaviour policy may be older; start from its state.
        critic_state = first_carry if self.shared else critic_state
        inputs = critic_state, steps.observation, steps.is_first, steps.next_observation
        states, *outputs = unroll_with_successors(self.critic, self.critic_params(params), *inputs, every=self.length)
        v_tm1, v_t = map(self.output.value, outputs)
        first = ActorCriticHiddenStates(first_carry, critic_state)
        values = Values(Sequences(steps.observation, steps.is_first, first), v_tm1, v_t, states)
        return jax.tree.map(lambda state: state[-1], states), values

    def examples(self, params: ActorCriticParams, batch: OnPolicyTransition, values: Values) -> OnPolicyTransition:
        """Split a rollout `[T, N]` into sequences `[S, L]`, each with the states before its first step."""
        sequences, starts = batch.obs, batch.obs.hidden_states
        if self.length < len(batch.action):
            actor_states = values.states
            if not self.shared:
                inputs = starts.policy_hidden_state, sequences.observation, sequences.is_first
                actor_states, _ = recurrent.unroll(self.actor, params.actor_params, *inputs, every=self.length)
            starts = states_at_starts(starts, ActorCriticHiddenStates(actor_states, values.states))
        batch = _map_steps(lambda x: recurrent.split_sequences(x, self.length), batch)
        return batch._replace(obs=batch.obs._replace(hidden_states=starts))

    def arrange(self, minibatch: OnPolicyTransition) -> OnPolicyTransition:
        """Return sequences `[S, L]` with time as their first axis."""
        return _map_steps(lambda x: jnp.swapaxes(x, 0, 1), minibatch)


def _map_steps(function: Callable[[jax.Array], jax.Array], batch: OnPolicyTransition) -> OnPolicyTransition:
    """Apply a function to every array of a batch of sequences but their hidden states."""
    states = batch.obs.hidden_states
    mapped: OnPolicyTransition = jax.tree.map(function, batch._replace(obs=batch.obs._replace(hidden_states=())))
    return mapped._replace(obs=mapped.obs._replace(hidden_states=states))


def make_recurrent_networks(networks: SimpleNamespace, steps_per_sequence: int) -> RecurrentNetworks:
    """Build recurrent networks from the network configuration; a critic with only a head shares the actor's cells."""
    actor, critic = networks.actor_network, networks.critic_network
    shared = shares_torso(critic)
    heads = SimpleNamespace(**vars(actor), critic_head=critic.critic_head) if shared else critic
    return RecurrentNetworks(
        recurrent.make_actor(actor),
        recurrent.make_critic(heads),
        recurrent.make_actor_critic(heads) if shared else None,
        critic_output(critic.critic_head),
        length=steps_per_sequence,
    )
