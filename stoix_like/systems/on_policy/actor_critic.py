"""On-policy actor-critics: their networks, exploration and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import optax

from stoix_like.base_types import (
    Acted,
    ActorCriticOptStates,
    ActorCriticParams,
    Agent,
    Axes,
    Distribution,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SystemSpec,
    TimeStep,
    Trajectory,
    Transition,
)
from stoix_like.networks.feed_forward import FeedForwardActor, FeedForwardCritic, alike, embed_both
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement, shares_torso
from stoix_like.systems.algorithm import Algorithm
from stoix_like.systems.on_policy.intrinsic import Intrinsic, IntrinsicReward, intrinsic_key, make_intrinsic
from stoix_like.systems.parts.advantages import Advantages
from stoix_like.systems.parts.critic_outputs import CriticOutput, critic_output
from stoix_like.systems.parts.exploration import Exploration, make_exploration
from stoix_like.systems.parts.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer
from stoix_like.systems.parts.optimiser import Descends, Transform, make_optimiser
from stoix_like.systems.parts.state import get_part, with_part
from stoix_like.systems.parts.teacher import Kickstarting, Lessons, make_lessons
from stoix_like.utils.accelerate.platform import on_gpu
from stoix_like.utils.accelerate.successors import successor_values
from stoix_like.utils.jax_utils import explained_variance, in_pieces, merge_leading_dims, standardize
from stoix_like.utils.training import join_optimisers

INTRINSIC = "intrinsic"
TEACHER = "teacher"
NETWORK_HEADS: Mapping[str, HeadRequirement] = {
    "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
    "critic_network.critic_head": HeadRequirement(VALUE, shares_torso_of="actor_network"),
}
"""Heads that an on-policy actor-critic needs; a critic without a torso of its own shares that of the actor."""


class ActorAndCritic(Descends, Protocol):
    """Hyperparameters that each on-policy actor-critic declares, with their ranges."""

    @property
    def actor_lr(self) -> float:
        """Learning rate of the actor."""

    @property
    def critic_lr(self) -> float:
        """Learning rate of the critic."""

    @property
    def gamma(self) -> float:
        """Discount per step."""

    @property
    def reward_scale(self) -> float:
        """Factor by which rewards are multiplied."""

    @property
    def normalize_rewards(self) -> bool:
        """Whether rewards are divided by the running standard deviation of the discounted return."""

    @property
    def normalize_observations(self) -> bool:
        """Whether observations are normalised by their running mean and standard deviation."""

    @property
    def standardize_advantages(self) -> bool | str:
        """Over what advantages are standardised, see `OnPolicyActorCritic.standardize`."""

    @property
    def sde_sample_freq(self) -> int | None:
        """Steps between new exploration noise, see `make_exploration`."""

    @property
    def final_values(self) -> dict[str, float | jax.Array]:
        """The values at the end of the run, of the hyperparameters that change."""

    def init_updates(self) -> PyTree:
        """Return the count of updates that annealed hyperparameters need."""


ConfigT = TypeVar("ConfigT", bound=ActorAndCritic)


class Values(NamedTuple):
    """The values of a rollout.

    Attributes:
        obs: `[T, N]`, the inputs of the networks.
        v_tm1: `[T, N]`, values of the observations acted on.
        v_t: `[T, N]`, values of their true successors.
        states: `[T, N, H]`, the states of a recurrent critic after each step; `()` without cells.
    """

    obs: PyTree
    v_tm1: jax.Array
    v_t: jax.Array
    states: PyTree = ()


@dataclass(frozen=True)
class ActorCriticNetworks:
    """A policy and its value function, separate or on a shared torso; `RecurrentNetworks` have cells as well.

    Their inputs `obs` are observations; those of recurrent networks are `Sequences` of them.

    Attributes:
        actor: the policy.
        critic: the value function.
        shared: whether the critic has no parameters but those of its head, and is applied with those of the actor.
        output: how the output of the critic is read and learned.
    """

    actor: Any
    critic: Any
    shared: bool
    output: CriticOutput

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
        return {"params": params.actor_params["params"] | params.critic_params["params"]}

    def init_params(self, network: Any, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of one network."""
        return network.init(key, observation)

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the carry of `step` at the start of an episode: none."""
        del num_envs
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
        """Compute the policy and the output of the critic, in one pass where they share cells or have like torsos."""
        if self.shared or not on_gpu() or not alike(self.actor, self.critic):
            return self.policy(params, obs), self.value(params, obs)
        embeddings = embed_both(self.actor, params.actor_params, params.critic_params, obs)
        pi = self.actor.apply(params.actor_params, embeddings[0], obs, method="head")
        return pi, self.critic.apply(params.critic_params, embeddings[1], method="head")

    def init_critic_state(self, num_envs: int) -> PyTree:
        """Return the state of the critic at the start of an episode: none."""
        del num_envs
        return ()

    def evaluate(
        self, params: ActorCriticParams, critic_state: PyTree, trajectory: Trajectory, pieces: int = 1
    ) -> tuple[PyTree, Values]:
        """Compute the values of a rollout `[T, N]`, and return them with the state of the critic.

        Args:
            params: the parameters.
            critic_state: the state of the critic before the rollout.
            trajectory: the rollout.
            pieces: on accelerators, how many pieces the rollout is evaluated in, which need less memory than the whole.
        """
        steps = trajectory.transitions
        value = in_pieces(partial(self.values, params), pieces, len(steps.reward))
        v_tm1, values = value(steps.observation), value(steps.next_observation)
        return critic_state, Values(steps.observation, v_tm1, successor_values(values, v_tm1, steps.truncated))

    def examples(self, params: ActorCriticParams, batch: OnPolicyTransition, values: Values) -> OnPolicyTransition:
        """Return the steps `[B]` of a rollout `[T, N]`, from which minibatches are drawn."""
        del params, values
        return jax.tree.map(lambda x: merge_leading_dims(x, 2), batch)

    def arrange(self, minibatch: OnPolicyTransition) -> OnPolicyTransition:
        """Return a minibatch with the axes that the networks take."""
        return minibatch


def make_networks(networks: SimpleNamespace) -> ActorCriticNetworks:
    """Build feed-forward networks from their configuration; a critic with only a head shares the actor's torso."""
    actor, critic = networks.actor_network, networks.critic_network
    body = actor if shares_torso(critic) else critic
    return ActorCriticNetworks(
        FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        FeedForwardCritic(critic.critic_head, body.pre_torso, body.input_layer),
        shared=body is actor,
        output=critic_output(critic.critic_head),
    )


class OnPolicyTransition(NamedTuple):
    """One step of a rollout with the inputs of the losses.

    Attributes:
        obs: input of the networks, with the observation that the policy acted on, see `Values`.
        action: the action taken.
        log_prob: log-probability of the action under the behaviour policy.
        value: value of `obs` before the update; `()` where it is not needed.
        advantage: advantage of the action.
        target: value target.
        lesson: what a teacher says about `obs`, see `systems.parts.teacher`.
    """

    obs: PyTree
    action: jax.Array
    log_prob: jax.Array
    value: PyTree
    advantage: jax.Array
    target: jax.Array
    lesson: PyTree = ()


class OnPolicyShared(NamedTuple):
    """The shared state of an agent: parameters, optimiser states, statistics, and what of the rest options need.

    Attributes:
        params: the parameters.
        opt_states: the states of the optimisers.
        statistics: statistics of observations.
        return_statistics: statistics of discounted returns.
        updates: updates so far, for annealed hyperparameters.
        own: what an algorithm adds.
        parts: what options need, by name, see `systems.parts.state`.
    """

    params: ActorCriticParams
    opt_states: ActorCriticOptStates
    statistics: PyTree
    return_statistics: PyTree = ()
    updates: PyTree = ()
    own: PyTree = ()
    parts: PyTree = ()


class OnPolicyLocal(NamedTuple):
    """The local state of an agent: what of a shard's past options need; `()` where they are off.

    Attributes:
        returns: discounted returns so far, see `RewardNormalizer`.
        critic_hidden_state: `[N, H]`, the state of a recurrent critic.
        parts: what options need, by name, see `systems.parts.state`.
    """

    returns: PyTree = ()
    critic_hidden_state: PyTree = ()
    parts: PyTree = ()


@dataclass(frozen=True)
class OnPolicyActorCritic(Algorithm, Generic[ConfigT]):
    """Parts and state of an on-policy actor-critic; the parts of options are identities where these are off."""

    config: ConfigT
    axes: Axes
    num_updates: int
    networks: ActorCriticNetworks
    optim: optax.GradientTransformation
    normalizer: Normalizer
    rewards: RewardNormalizer
    exploration: Exploration
    intrinsic: Intrinsic
    lessons: Lessons
    advantages: Advantages

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent."""
        observation, num_envs = timestep.observation, len(timestep.reward)
        intrinsic = self.intrinsic.init(intrinsic_key(key), timestep)
        params = self.networks.init(key, observation)
        statistics = self.normalizer.init(observation), self.rewards.init()
        shared = OnPolicyShared(params, self.optim.init(params), *statistics, self.config.init_updates())
        local = OnPolicyLocal(self.rewards.init_returns(num_envs), self.networks.init_critic_state(num_envs))
        memory = self.intrinsic.init_memory(num_envs)
        shared = with_part(with_part(shared, INTRINSIC, intrinsic), TEACHER, self.lessons.init())
        return Agent(shared, with_part(local, INTRINSIC, memory))

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the carry of `act` at the start of an episode: a recurrent state, or the keys of persistent noise."""
        return self.exploration.init_carry(num_envs)

    def act(self, shared: OnPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose an action for each environment; the extras are the log-probabilities."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        timestep = state.timestep._replace(observation=observation)
        carry, pi = self.networks.step(shared.params, state.carry, timestep)
        if greedy:
            return carry, pi.mode(), ()
        carry, action = self.exploration.sample(pi, carry, timestep, key)
        return carry, action, pi.log_prob(action)

    def inspect(self, shared: OnPolicyShared, observation: Observation) -> NetworkOutputs:
        """Return the policy and the values of first observations `[B, ...]`."""
        observation = self.normalizer.apply(shared.statistics, observation)
        return NetworkOutputs(*self.networks.first(shared.params, observation))

    def normalize(self, agent: Agent, steps: Transition) -> tuple[Agent, Transition]:
        """Normalise the observations of a rollout `[T, N]`, and normalise and scale its rewards."""
        shared, local = agent.shared, agent.local
        reward, statistics, returns = self.rewards.apply(shared.return_statistics, local.returns, steps)
        steps = steps._replace(
            observation=self.normalizer.apply(shared.statistics, steps.observation),
            next_observation=self.normalizer.apply(shared.statistics, steps.next_observation),
            reward=reward * self.config.reward_scale,
        )
        return Agent(shared._replace(return_statistics=statistics), local._replace(returns=returns)), steps

    def targets(
        self, agent: Agent, trajectory: Trajectory, key: jax.Array, pieces: int = 1
    ) -> tuple[Agent, OnPolicyTransition, Metrics]:
        """Compute the advantages and value targets of a rollout `[T, N]`, in one pass of the critic over all steps.

        Args:
            agent: the agent.
            trajectory: the rollout.
            key: the key of the update, from which an intrinsic reward derives its own.
            pieces: see `ActorCriticNetworks.evaluate`.

        Returns:
            The agent with new statistics of returns, the batch `[B]` to learn from, and metrics.
        """
        (shared, local), steps = self.normalize(agent, trajectory.transitions)
        critic_state, values = self.networks.evaluate(
            shared.params, local.critic_hidden_state, trajectory._replace(transitions=steps), pieces
        )
        policy = partial(self.networks.policy, shared.params, values.obs)
        advantage, target = self.advantages(steps, values.v_tm1, values.v_t, policy)
        intrinsic, memory, advantage, metrics = self.intrinsic.add(
            get_part(shared, INTRINSIC),
            get_part(local, INTRINSIC),
            trajectory.transitions,
            advantage,
            intrinsic_key(key),
        )
        advantage = self.standardize(advantage, (True, "batch"))
        count, lesson = self.lessons.ask(get_part(shared, TEACHER), trajectory.transitions.observation, key)
        shared = with_part(shared, TEACHER, count)
        batch = OnPolicyTransition(values.obs, steps.action, steps.extras, values.v_tm1, advantage, target, lesson)
        local = with_part(local._replace(critic_hidden_state=critic_state), INTRINSIC, memory)
        examples = self.networks.examples(shared.params, batch, values)
        return Agent(with_part(shared, INTRINSIC, intrinsic), local), examples, metrics

    def standardize(self, advantage: jax.Array, where: tuple[bool | str, ...]) -> jax.Array:
        """Standardise advantages where the configuration says so, over the batches of all shards."""
        if self.config.standardize_advantages not in where:
            return advantage
        return standardize(advantage, self.axes.names)

    def finish(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Update the statistics of observations, last, as probability ratios need those of the behaviour policy."""
        shared = agent.shared
        statistics = self.normalizer.update(shared.statistics, trajectory.transitions.observation)
        updates = jax.tree.map(lambda count: count + 1, shared.updates)
        return agent._replace(shared=shared._replace(statistics=statistics, updates=updates))

    def describe(self, config: ConfigT, batch: OnPolicyTransition) -> Metrics:
        """Return the metrics of an update: annealed hyperparameters, and how well values predict their targets."""
        metrics: Metrics = {name: getattr(config, name) for name in config.final_values}
        return metrics | {"explained_variance": explained_variance(batch.value, batch.target, self.axes.names)}


def make_parts(
    config: ActorAndCritic,
    spec: SystemSpec,
    networks: ActorCriticNetworks | None = None,
    transform: Transform | None = None,
) -> dict[str, Any]:
    """Return the attributes of an `OnPolicyActorCritic` without advantages, by default feed-forward with Adam."""
    networks = make_networks(spec.networks) if networks is None else networks
    optims = (make_optimiser(config, spec, lr, transform=transform) for lr in (config.actor_lr, config.critic_lr))
    return {
        "config": config,
        "axes": spec.axes,
        "num_updates": spec.num_updates,
        "networks": networks,
        "optim": join_optimisers(*optims, states=ActorCriticOptStates),
        "normalizer": make_normalizer(config.normalize_observations, spec.axes),
        "rewards": make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes),
        "exploration": make_exploration(config.sde_sample_freq, networks.init_carry),
        "intrinsic": make_intrinsic(config.find_part(IntrinsicReward), config, spec),
        "lessons": make_lessons(config.find_part(Kickstarting), spec),
    }
