"""Recurrent off-policy actor-critics: feed-forward ones on the states of cells, learned from replayed sequences.

Policy and critics have cells of their own (Ni, Eysenbach & Salakhutdinov 2022, arXiv:2110.05038, section 4.1); all
critics share theirs. The cells see observations, and the critics' heads the action. A sequence starts from the states
that both had while it was recorded, brought up to date by a burn-in: without stored states, even a burn-in learns from
states that never occur in episodes (Kapturowski et al. 2019, section 3).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    Acted,
    ActorCriticHiddenStates,
    Agent,
    Distribution,
    Observation,
    PyTree,
    RolloutState,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.networks.base import FeedForwardActor, MultiNetwork, RecurrentCritic
from stoix_like.networks.inputs import ArrayInput, EmbeddingActionInput
from stoix_like.networks.requirements import HeadRequirement
from stoix_like.systems.algorithm import ConfigT
from stoix_like.systems.off_policy.actor_critic import OffPolicyActorCritic, make_critics
from stoix_like.systems.parts import recurrent
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.replay import Batch, SequenceReplayConfig, make_sequence_replay


@dataclass(frozen=True, kw_only=True)
class RecurrentReplayConfig(SequenceReplayConfig):
    """Hyperparameters of the replay buffer of a recurrent policy and its critics."""

    n_step: Literal[1] = 1


def with_cells(network_heads: Mapping[str, HeadRequirement]) -> dict[str, HeadRequirement]:
    """Return the heads that a feed-forward system needs, behind cells, and without dropout."""
    return {path: head._replace(recurrent=True, dropout=False) for path, head in network_heads.items()}


class RecurrentParams(NamedTuple):
    """Parameters of cells and of what is behind them."""

    cells: PyTree
    head: PyTree


class ReplayedSequences(NamedTuple):
    """Observations of sequences, as an input of a `RecurrentNetwork`."""

    observation: Observation  # `[W, B, ...]`
    is_first: jax.Array  # `[W, B]` bool, whether an observation is the first of its episode
    next_observation: Observation | None  # `[W, B, ...]`, the true successors; None: the observations that follow
    states: ActorCriticHiddenStates  # `[B, H]`, the states of policy and critics before the first step


class Successors(NamedTuple):
    """The true successors of the steps of sequences, as an input of a `RecurrentNetwork`."""

    of: ReplayedSequences


@dataclass(frozen=True)
class RecurrentNetwork:
    """A feed-forward network behind recurrent cells, which takes sequences in place of a batch."""

    cells: RecurrentCritic  # the cells, and what is before them
    head: FeedForwardActor | MultiNetwork  # what is behind them
    burn_in_length: int  # steps at the start of a sequence without an output
    state_of: Callable[[ActorCriticHiddenStates], PyTree]  # selects the state of these cells

    def init(self, key: jax.Array, observation: Observation, *inputs: PyTree) -> RecurrentParams:
        """Initialise the parameters, for observations `[N, ...]` and further inputs of the head."""
        cells_key, head_key = jax.random.split(key)
        cells = recurrent.init_params(self.cells, cells_key, observation)
        embedding = recurrent.first_output(self.cells, cells, observation)
        return RecurrentParams(cells, self.head.init(head_key, embedding, *inputs))

    def step(self, params: RecurrentParams, state: PyTree, timestep: TimeStep) -> tuple[PyTree, PyTree]:
        """Return the state after one time step `[N, ...]`, and the output of the head."""
        starts = timestep.starts_episode
        state, embedding = recurrent.step(self.cells, params.cells, state, timestep.observation, starts)
        return state, self.head.apply(params.head, embedding)

    def apply(self, params: RecurrentParams, observation: PyTree, *inputs: PyTree, rngs: None = None) -> PyTree:
        """Compute the output of the head.

        `observation`: first observations `[B, ...]` of episodes.
        `*inputs`: further inputs of the head, with the leading axis of its output.
        Returns the output for `[B]` or `[L * B]` observations.
        """
        if isinstance(observation, ReplayedSequences):
            embedding = merge_leading_dims(self._embed(params.cells, observation)[0], 2)
        elif isinstance(observation, Successors):
            embedding = merge_leading_dims(self._embed(params.cells, observation.of)[1], 2)
        else:
            embedding = recurrent.first_output(self.cells, params.cells, observation)
        return self.head.apply(params.head, embedding, *inputs)

    def _embed(self, params: PyTree, sequences: ReplayedSequences) -> tuple[jax.Array, jax.Array]:
        """Compute the outputs of the cells after the burn-in, and those at the true successors, `[L, B, H]`."""
        state, observation, is_first, next_observation = recurrent.burn_in(
            self.cells, params, self.state_of(sequences.states), *sequences[:3], self.burn_in_length
        )
        if next_observation is None:
            _, embedding = recurrent.unroll(self.cells, params, state, observation, is_first)
            return embedding[:-1], embedding[1:]
        _, embedding, successors = recurrent.unroll_with_successors(
            self.cells, params, state, observation, is_first, next_observation, every=len(is_first)
        )
        return embedding, successors


class RecurrentOffPolicy(OffPolicyActorCritic[ConfigT]):
    """Base class of recurrent systems, combined with a feed-forward one; its losses accept sequences unchanged.

    The carry of `act` is the policy's state. The critics' state, in `Agent.local`, follows each rollout in one pass.
    """

    @abstractmethod
    def online_actor(self, params: PyTree) -> RecurrentParams:
        """Return the parameters of the policy that acts."""

    @abstractmethod
    def explore(self, pi: Distribution, key: jax.Array) -> jax.Array:
        """Draw actions `[N, ...]` of training from the policy."""

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        agent = super().init(key, timestep)
        critic_state = self.critics.cells.initialize_carry(len(timestep.reward))
        return agent._replace(local=agent.local._replace(critic_hidden_state=critic_state))

    def init_carry(self, num_envs: int) -> PyTree:
        return self.actor.cells.initialize_carry(num_envs)

    def act(self, shared: PyTree, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose an action for each environment; the extras are the state before it."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        timestep = state.timestep._replace(observation=observation)
        carry, pi = self.actor.step(self.online_actor(shared.params), state.carry, timestep)
        return carry, pi.mode() if greedy else self.explore(pi, key), state.carry

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout, with the states of policy and critics, to the replay buffer and to the statistics."""
        if self.config.replay.only_data:
            return super().observe(agent, trajectory)  # nothing is stored, and no rollout follows
        (shared, local), steps = agent, trajectory.transitions
        first = local.critic_hidden_state
        observation = self.normalizer.apply(shared.statistics, steps.observation)
        cells = shared.params.q_params.online.cells
        states, _ = recurrent.unroll(self.critics.cells, cells, first, observation, steps.is_first)
        before = jax.tree.map(lambda first, after: jnp.concatenate([first[None], after[:-1]]), first, states)
        steps = steps._replace(extras=ActorCriticHiddenStates(steps.extras, before))
        agent = Agent(shared, local._replace(critic_hidden_state=jax.tree.map(lambda after: after[-1], states)))
        return super().observe(agent, trajectory._replace(transitions=steps))

    def draw(self, buffer: PyTree, key: jax.Array) -> PyTree:
        return self.replay.sample(buffer, key, 1.0)

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.draw(agent.local.buffer, key).observations

    def sample(self, agent: Agent, key: jax.Array) -> Batch:
        """Sample the steps `[L * B]` of sequences after their burn-in, with normalised observations and rewards."""
        shared, first, replay = agent.shared, self.config.replay.burn_in_length, self.config.replay
        drawn = self.draw(agent.local.buffer, key)
        normalize, after = partial(self.normalizer.apply, shared.statistics), drawn.steps.next_observation
        after = None if after is None else normalize(after)
        sequences: Any = ReplayedSequences(normalize(drawn.steps.observation), drawn.is_first, after, drawn.carry)
        learned = slice(first, first + replay.sequence_length)
        steps = drawn.steps._replace(observation=None, next_observation=None)
        steps = jax.tree.map(lambda x: merge_leading_dims(x[learned], 2), steps)
        # A truncated step whose successor is not stored is followed by a step of another episode.
        weight = jnp.ones_like(steps.reward) if replay.store_next_observation else 1.0 - steps.truncated
        reward = self.returns.apply(shared.return_statistics, steps.reward)
        discount = self.config.gamma * (1.0 - steps.terminated)
        successors: Any = Successors(sequences)
        return Batch(sequences, steps.action, reward, discount, successors, weight, None)


AlgorithmT = TypeVar("AlgorithmT", bound=RecurrentOffPolicy[Any])


def with_recurrent_networks(algorithm: AlgorithmT, spec: SystemSpec) -> AlgorithmT:
    """Replace the networks of an algorithm by recurrent ones, and its replay by sequence replay."""
    config = algorithm.config
    networks = make_recurrent_networks(spec.networks, len(algorithm.critics.networks), config.replay.burn_in_length)
    carry = ActorCriticHiddenStates(*(network.cells.initialize_carry(1) for network in networks))
    replay = make_sequence_replay(
        config.replay, spec, jax.tree.map(lambda x: x[0], carry), reward_scale=config.reward_scale
    )
    actor, critics = networks
    parts: dict[str, Any] = {"actor": actor, "critics": critics, "replay": replay}
    return replace(algorithm, **parts)


def make_recurrent_networks(
    networks: SimpleNamespace, num_critics: int, burn_in_length: int
) -> tuple[RecurrentNetwork, RecurrentNetwork]:
    """Build the policy and the critics of a network configuration."""
    actor, q_network = networks.actor_network, networks.q_network
    policy_head = FeedForwardActor(actor.action_head, actor.post_torso, ArrayInput())
    behind = {"input_layer": EmbeddingActionInput(), "pre_torso": q_network.post_torso}
    critic_heads = make_critics(SimpleNamespace(**behind, critic_head=q_network.critic_head), num_critics)
    states = map(attrgetter, ActorCriticHiddenStates._fields)
    return (
        RecurrentNetwork(recurrent.make_cells(actor), policy_head, burn_in_length, next(states)),
        RecurrentNetwork(recurrent.make_cells(q_network), critic_heads, burn_in_length, next(states)),
    )
