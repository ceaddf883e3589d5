"""Components of recurrent on-policy actor-critic systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    ActorCriticHiddenStates,
    ActorCriticParams,
    Agent,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    TimeStep,
    Trajectory,
)
from stoix_like.errors import ConfigError
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement, shares_torso
from stoix_like.schema import INT32_MAX, between
from stoix_like.systems import recurrent
from stoix_like.systems.on_policy_actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    OnPolicyTransition,
    SharedTorsoCritic,
    critic_variables,
)
from stoix_like.systems.recurrent import RecurrentNetwork, split_sequences, states_at_starts, unroll_with_successors


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ActorCriticConfig):
    """Hyperparameters of a recurrent policy and its recurrent value function.

    Attributes:
        network_heads: heads that the system needs.
        sequence_length: steps per sequence that gradients flow through, a divisor of `rollout_length`; None: the whole
            rollout.
    """

    network_heads: ClassVar[Mapping[str, HeadRequirement]] = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, recurrent=True),
        "critic_network.critic_head": HeadRequirement(VALUE, recurrent=True, shares_torso_of="actor_network"),
    }
    sequence_length: Annotated[int | None, between(1, INT32_MAX)] = None

    @property
    def steps_per_sequence(self) -> int:
        """Steps per sequence, L."""
        return self.sequence_length or self.rollout_length

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that sequences divide the rollout, and minibatches the sequences; see `SystemConfig.check`."""
        if self.sde_sample_freq is not None:
            raise ConfigError(
                f"system.sde_sample_freq={self.sde_sample_freq}: a recurrent system draws new noise in every step: use"
                " null"
            )
        if self.rollout_length % self.steps_per_sequence:
            raise ConfigError(
                f"system.sequence_length={self.sequence_length} must divide"
                f" system.rollout_length={self.rollout_length}: use a divisor of it, or null for whole rollouts"
            )
        sequences = num_envs * self.rollout_length // self.steps_per_sequence
        num_minibatches = getattr(self, "num_minibatches", 1)
        if sequences % num_minibatches:
            raise ConfigError(
                f"system.num_minibatches={num_minibatches} must divide the {sequences:,} sequences per shard"
                f" ({num_envs} envs × {self.rollout_length} steps / system.sequence_length {self.steps_per_sequence}):"
                f" use a divisor of {sequences}"
            )
        super().check(num_envs, num_shards)


class Sequences(NamedTuple):
    """Observations of sequences, the input of recurrent networks.

    Attributes:
        observation: `[L, S, ...]`.
        is_first: `[L, S]` bool, whether an observation is the first of its episode.
        hidden_states: `[S, H]`, the states before the first steps.
    """

    observation: Observation
    is_first: jax.Array
    hidden_states: ActorCriticHiddenStates


class RecurrentLocal(NamedTuple):
    """The local state of an agent: discounted returns, see `RewardNormalizer`, and the state `[N, H]` of the critic."""

    returns: Any
    critic_hidden_state: PyTree


class UnrolledNetwork(NamedTuple):
    """A recurrent network as a function of `Sequences`.

    Attributes:
        network: the network.
        state_name: the field of `ActorCriticHiddenStates` that holds its states.
    """

    network: RecurrentNetwork
    state_name: str

    def init(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters for observations `[N, ...]`."""
        return recurrent.init_params(self.network, key, observation)

    def apply(self, params: PyTree, sequences: Sequences) -> Any:
        """Return the outputs of the head for each step."""
        state = getattr(sequences.hidden_states, self.state_name)
        return recurrent.unroll(self.network, params, state, sequences.observation, sequences.is_first)[1]


class SharedCellsCritic(NamedTuple):
    """A recurrent critic whose parameters are those of its head alone.

    Attributes:
        critic: the critic, with the torsos and cells of the actor.
        both: the actor and the critic, which are unrolled together.
    """

    critic: UnrolledNetwork
    both: UnrolledNetwork

    @property
    def network(self) -> RecurrentNetwork:
        """The network of the critic."""
        return self.critic.network

    def init(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of the head for observations `[N, ...]`."""
        return SharedTorsoCritic(self.critic).init(key, observation)

    def apply(self, params: PyTree, sequences: Sequences) -> Any:
        """Return the values of each step."""
        return self.critic.apply(params, sequences)


class RecurrentActorCritic(ActorCritic):
    """Base class of recurrent on-policy actor-critic algorithms: `Sequences` take the place of observations.

    The carry of `act` is the state of the actor. That of the critic is part of `Agent.local`: values are computed at
    the start of each update, in one pass over the rollout. If they share their cells, values start from the actor's
    state.
    """

    @staticmethod
    def make_networks(networks: SimpleNamespace) -> tuple[UnrolledNetwork, UnrolledNetwork | SharedCellsCritic]:
        """Build the actor and the critic from the modules of the network configuration."""
        actor, critic = networks.actor_network, networks.critic_network
        policy = UnrolledNetwork(recurrent.make_actor(actor), "policy_hidden_state")
        if not shares_torso(critic):
            return policy, UnrolledNetwork(recurrent.make_critic(critic), "critic_hidden_state")
        heads = SimpleNamespace(**vars(actor), critic_head=critic.critic_head)
        pair = recurrent.make_critic(heads), recurrent.make_actor_critic(heads)
        return policy, SharedCellsCritic(*(UnrolledNetwork(each, "critic_hidden_state") for each in pair))

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the state of the actor at the start of an episode, `[N, H]`."""
        return self.actor.network.initialize_carry(num_envs)

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent."""
        agent = super().init(key, timestep)
        state = self.critic.network.initialize_carry(len(timestep.reward))
        return agent._replace(local=RecurrentLocal(agent.local, state))

    def act(self, shared: Any, state: RolloutState, key: jax.Array, greedy: bool = False) -> tuple[Any, jax.Array, Any]:
        """Choose an action for each environment; the extras are the log-probabilities."""
        timestep = state.timestep
        observation = self.normalizer.apply(shared.statistics, timestep.observation)
        params, starts = shared.params.actor_params, timestep.starts_episode
        carry, pi = recurrent.step(self.actor.network, params, state.carry, observation, starts)
        if greedy:
            return carry, pi.mode(), ()
        action = pi.sample(seed=key)
        return carry, action, pi.log_prob(action)

    def inspect(self, shared: Any, observation: Observation) -> NetworkOutputs:
        """Return the policy and the values of first observations `[B, ...]`."""
        observation = self.normalizer.apply(shared.statistics, observation)
        pi = recurrent.first_output(self.actor.network, shared.params.actor_params, observation)
        value = recurrent.first_output(self.critic.network, critic_variables(shared.params), observation)
        return NetworkOutputs(pi, value)

    def outputs(self, params: ActorCriticParams, observation: Sequences) -> tuple[Any, jax.Array]:
        """Compute the policy and the values of sequences, in one pass if they share their cells."""
        if not isinstance(self.critic, SharedCellsCritic):
            return super().outputs(params, observation)
        pi, value = self.critic.both.apply(critic_variables(params), observation)
        return pi, value

    def evaluate(self, agent: Agent, trajectory: Trajectory) -> tuple[Agent, OnPolicyTransition]:
        """Compute the values and advantages of a rollout, in one pass over all steps.

        Args:
            agent: the agent before the update.
            trajectory: the rollout `[T, N]`.

        Returns:
            The agent with new statistics of returns and the state of the critic after the rollout, and the sequences to
            learn from, `[S, L]`.
        """
        returns, critic_state = agent.local
        if isinstance(self.critic, SharedCellsCritic):
            # The policy that acted may be an older one, and its state another one.
            critic_state = trajectory.first_carry
        shared, returns, steps = self.normalize(agent.shared, returns, trajectory.transitions)
        states, v_tm1, v_t = unroll_with_successors(
            self.critic.network,
            critic_variables(shared.params),
            critic_state,
            steps.observation,
            steps.is_first,
            steps.next_observation,
        )
        first = ActorCriticHiddenStates(trajectory.first_carry, critic_state)
        sequences: Any = Sequences(steps.observation, steps.is_first, first)
        batch = self.with_targets(shared, steps._replace(observation=sequences), v_tm1, v_t)
        local = RecurrentLocal(returns, jax.tree.map(lambda state: state[-1], states))
        return Agent(shared, local), self.split(shared.params, batch, states)

    def split(self, params: ActorCriticParams, batch: OnPolicyTransition, critic_states: PyTree) -> OnPolicyTransition:
        """Split a rollout into sequences, each with the states before its first step.

        Args:
            params: the parameters before the update.
            batch: the rollout `[T, N]`.
            critic_states: `[T, N, H]`, the states of the critic after each step.

        Returns:
            The sequences `[S, L]`.
        """
        sequences, length = batch.obs, self.config.steps_per_sequence
        starts = sequences.hidden_states
        if length < self.config.rollout_length:
            actor_states = critic_states
            if not isinstance(self.critic, SharedCellsCritic):
                actor_states, _ = recurrent.unroll(
                    self.actor.network,
                    params.actor_params,
                    starts.policy_hidden_state,
                    sequences.observation,
                    sequences.is_first,
                )
            states = ActorCriticHiddenStates(actor_states, critic_states)
            starts = states_at_starts(starts, states, length)
        batch = _map_steps(lambda x: split_sequences(x, length), batch)
        return batch._replace(obs=batch.obs._replace(hidden_states=starts))

    def loss(
        self, params: ActorCriticParams, behaviour: Any, batch: OnPolicyTransition, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Compute the policy loss, the value loss and the entropy bonus of sequences `[S, L]`."""
        return super().loss(params, behaviour, _map_steps(lambda x: jnp.swapaxes(x, 0, 1), batch), key)


def _map_steps(function: Callable[[jax.Array], jax.Array], batch: OnPolicyTransition) -> OnPolicyTransition:
    """Apply a function to every array of a batch of sequences but their hidden states."""
    states = batch.obs.hidden_states
    mapped: OnPolicyTransition = jax.tree.map(function, batch._replace(obs=batch.obs._replace(hidden_states=())))
    return mapped._replace(obs=mapped.obs._replace(hidden_states=states))
