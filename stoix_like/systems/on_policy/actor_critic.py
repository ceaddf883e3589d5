"""On-policy actor-critics: their parts and their state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple

import jax
import optax

from stoix_like.base_types import (
    Acted,
    ActorCriticOptStates,
    ActorCriticParams,
    Agent,
    Axes,
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
from stoix_like.errors import ConfigError
from stoix_like.systems.algorithm import Algorithm, ConfigT
from stoix_like.systems.on_policy.intrinsic import Intrinsic, IntrinsicReward, intrinsic_key, make_intrinsic
from stoix_like.systems.on_policy.networks import ActorCriticNetworks, OnPolicyTransition, make_networks
from stoix_like.systems.on_policy.own_networks import with_own_networks
from stoix_like.systems.parts.advantages import Advantages
from stoix_like.systems.parts.exploration import Exploration, make_exploration
from stoix_like.systems.parts.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer
from stoix_like.systems.parts.optimiser import Transform, make_optimiser
from stoix_like.systems.parts.state import get_part, with_part
from stoix_like.systems.parts.symmetry import Mirror, SymmetryConfig, make_mirror
from stoix_like.systems.parts.teacher import Kickstarting, Lessons, make_lessons
from stoix_like.utils.jax_utils import explained_variance, standardize
from stoix_like.utils.training import join_optimisers

INTRINSIC = "intrinsic"
TEACHER = "teacher"


class OnPolicyShared(NamedTuple):
    """The shared state of an agent: parameters, optimiser states, statistics, and what of the rest options need."""

    params: ActorCriticParams  # the parameters
    opt_states: ActorCriticOptStates  # the states of the optimisers
    statistics: PyTree  # statistics of observations
    return_statistics: PyTree = ()  # statistics of discounted returns
    updates: PyTree = ()  # updates so far, for annealed hyperparameters
    own: PyTree = ()  # what an algorithm adds
    parts: PyTree = ()  # what options need, by name


class OnPolicyLocal(NamedTuple):
    """The local state of an agent: what of a shard's past options need; `()` where they are off."""

    returns: PyTree = ()  # discounted returns so far
    critic_hidden_state: PyTree = ()  # `[N, H]`, the state of a recurrent critic
    parts: PyTree = ()  # what options need, by name


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
    mirror: Mirror
    advantages: Advantages
    num_policies: int

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
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

        Returns the agent with new statistics of returns, the batch `[B]` to learn from, and metrics.
        """
        (shared, local), steps = self.normalize(agent, trajectory.transitions)
        critic_state, values = self.networks.evaluate(
            shared.params, local.critic_hidden_state, trajectory._replace(transitions=steps), pieces
        )
        policy = partial(self.networks.policy, shared.params, values.obs)
        advantage, target = self.advantages(steps, values.v_tm1, values.v_t, policy)
        states = get_part(shared, INTRINSIC), get_part(local, INTRINSIC)
        intrinsic, memory, advantage, metrics = self.intrinsic.add(
            *states, trajectory.transitions, advantage, intrinsic_key(key)
        )
        advantage = self.standardize(advantage, (True, "batch"))
        count, lesson = self.lessons.ask(get_part(shared, TEACHER), trajectory.transitions.observation, key)
        shared = with_part(shared, TEACHER, count)
        batch = OnPolicyTransition(values.obs, steps.action, steps.extras, values.v_tm1, advantage, target, lesson)
        normalize = partial(self.normalizer.apply, shared.statistics)
        batch = self.mirror.pair(batch, trajectory.transitions.observation, normalize)
        local = with_part(local._replace(critic_hidden_state=critic_state), INTRINSIC, memory)
        examples = self.networks.examples(shared.params, batch, values)
        return Agent(with_part(shared, INTRINSIC, intrinsic), local), examples, metrics

    def standardize(self, advantage: jax.Array, where: tuple[bool | str, ...]) -> jax.Array:
        """Standardise advantages where the configuration says so, over the batches of all shards.

        Agents with their own networks, in adjacent rows, have their own scales.
        """
        if self.config.standardize_advantages not in where:
            return advantage
        if advantage.size * math.prod(map(jax.lax.axis_size, self.axes.names)) == self.num_policies:
            raise ConfigError(
                f"system.standardize_advantages={self.config.standardize_advantages} makes the advantage of a single"
                " sample 0, from which nothing is learned: use false, or more samples"
            )
        if self.num_policies == 1:
            return standardize(advantage, self.axes.names)
        by_policy = advantage.reshape(-1, self.num_policies)
        each = jax.vmap(partial(standardize, axis_names=self.axes.names), in_axes=1, out_axes=1)
        return each(by_policy).reshape(advantage.shape)

    def finish(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Update the statistics of observations last: probability ratios need the ones the behaviour policy had."""
        shared = agent.shared
        statistics = self.normalizer.update(shared.statistics, trajectory.transitions.observation)
        updates = jax.tree.map(lambda count: count + 1, shared.updates)
        return agent._replace(shared=shared._replace(statistics=statistics, updates=updates))

    def describe(self, config: ConfigT, batch: OnPolicyTransition) -> Metrics:
        """Return the metrics of an update: annealed hyperparameters, and how well values predict their targets."""
        metrics: Metrics = {name: getattr(config, name) for name in config.final_values}
        return metrics | {"explained_variance": explained_variance(batch.value, batch.target, self.axes.names)}


def make_parts(
    config: Any, spec: SystemSpec, networks: ActorCriticNetworks | None = None, transform: Transform | None = None
) -> dict[str, Any]:
    """Return the attributes of an `OnPolicyActorCritic` without advantages, by default feed-forward with Adam."""
    optimiser = config.gradients.optimiser
    networks = with_own_networks(make_networks(spec.networks), spec, optimiser) if networks is None else networks
    optims = (make_optimiser(config, spec, lr, transform=transform) for lr in (config.actor_lr, config.critic_lr))
    num_policies = 1 if spec.share_networks else spec.num_agents
    return {
        "config": config,
        "axes": spec.axes,
        "num_updates": spec.num_updates,
        "networks": networks,
        "optim": join_optimisers(*optims, states=ActorCriticOptStates),
        "normalizer": make_normalizer(config.normalize_observations, spec.axes),
        "rewards": make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes, num_policies=num_policies),
        "exploration": make_exploration(config.sde_sample_freq, networks.init_carry),
        "intrinsic": make_intrinsic(config.find_part(IntrinsicReward), config, spec),
        "lessons": make_lessons(config.find_part(Kickstarting), spec),
        "mirror": make_mirror(config.find_part(SymmetryConfig), spec),
        "num_policies": num_policies,
    }
