"""PQN with continuous actions: an actor-critic without replay buffer or target networks.

PQN (Gallici et al. 2024, arXiv:2407.04811) with the deterministic policy gradient (Silver et al. 2014) in place of the
maximum over actions: lambda-returns of rollouts, bootstrapped by the action of the policy, and layer normalisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Agent,
    Axes,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Box
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.networks.requirements import DETERMINISTIC_POLICY, VALUE, HeadRequirement
from stoix_like.schema import INT32_MAX, above, at_least, between, one_of
from stoix_like.systems.ddpg.ddpg_types import ActionRange, action_range
from stoix_like.systems.gradient_descent import gradient_step, make_optimiser
from stoix_like.systems.launch import Algorithm, entry_points, make_system
from stoix_like.systems.on_policy import MinibatchConfig, minibatch_epochs
from stoix_like.systems.q_learning.anakin.ff_pqn import PQNTransition
from stoix_like.utils.exploration import NormalNoise, check_noise, make_normal_noise
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss import baseline_loss
from stoix_like.utils.multistep import batch_lambda_returns
from stoix_like.utils.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer


@dataclass(frozen=True, kw_only=True)
class Config(MinibatchConfig):
    """Hyperparameters of continuous PQN.

    Attributes:
        action_spaces: action spaces that the system supports.
        network_heads: heads that the system needs; layer normalisation stands in for a target network.
        optimiser: see `GradientConfig`.
        epochs: passes over each rollout.
        num_minibatches: minibatches per epoch.
        gamma: discount per step.
        reward_scale: factor by which rewards are multiplied.
        normalize_rewards: whether rewards are first divided by the running standard deviation of the discounted return.
        normalize_observations: whether observations are normalised by their running mean and standard deviation, which
            are frozen in evaluation.
        actor_lr: learning rate of the policy.
        q_lr: learning rate of the critic.
        q_lambda: mixing parameter of n-step returns.
        exploration_noise: standard deviation of the exploration noise, in units of half the action range.
        max_exploration_noise: largest standard deviation, likewise: each environment draws its own between both, at the
            start of each episode; None for the same in all.
        noise_correlation: correlation of the exploration noise between successive steps.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    network_heads: ClassVar[Mapping[str, HeadRequirement]] = {
        "actor_network.action_head": HeadRequirement(DETERMINISTIC_POLICY),
        "q_network.critic_head": HeadRequirement(VALUE, layer_norm=True),
    }
    optimiser: Annotated[str, one_of("adam", "radam", "adamw", "muon")] = "radam"
    epochs: Annotated[int, between(1, 1_000_000)]
    num_minibatches: Annotated[int, between(1, INT32_MAX)]
    gamma: Annotated[float, between(0.0, 1.0)]
    reward_scale: Annotated[float, above(0.0)]
    normalize_rewards: bool = False
    normalize_observations: bool = False
    actor_lr: Annotated[float, above(0.0)]
    q_lr: Annotated[float, above(0.0)]
    q_lambda: Annotated[float, between(0.0, 1.0)]
    exploration_noise: Annotated[float, at_least(0.0)]
    max_exploration_noise: Annotated[float | None, at_least(0.0)] = None
    noise_correlation: Annotated[float, between(0.0, 1.0)]

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check sizes, and the order of the noise scales; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        check_noise(self.exploration_noise, self.max_exploration_noise)


class ContinuousPQNShared(NamedTuple):
    """The shared state of the agent: parameters and optimiser states of both networks, and statistics."""

    actor_params: PyTree
    q_params: PyTree
    actor_opt_state: Any
    q_opt_state: Any
    statistics: Any = ()
    return_statistics: Any = ()


@dataclass(frozen=True)
class ContinuousPQN(Algorithm):
    """PQN with a policy, and with its hyperparameters, networks and optimisers."""

    config: Config
    axes: Axes
    actor: FeedForwardActor
    critic: FeedForwardCritic
    actor_optim: optax.GradientTransformation
    q_optim: optax.GradientTransformation
    normalizer: Normalizer
    rewards: RewardNormalizer
    noise: NormalNoise
    actions: ActionRange

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent."""
        actor_key, q_key = jax.random.split(key)
        observation = timestep.observation
        actor_params = self.actor.init(actor_key, observation)
        q_params = self.critic.init(q_key, observation, {"action": self.policy(actor_params, observation)})
        opt_states = self.actor_optim.init(actor_params), self.q_optim.init(q_params)
        statistics = self.normalizer.init(observation), self.rewards.init()
        shared = ContinuousPQNShared(actor_params, q_params, *opt_states, *statistics)
        return Agent(shared, self.rewards.init_returns(len(timestep.reward)))

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the carry of the noise at the start of an episode."""
        return self.noise.init_carry(num_envs)

    def act(
        self, shared: ContinuousPQNShared, state: RolloutState, key: jax.Array, greedy: bool = False
    ) -> tuple[PyTree, jax.Array, tuple[()]]:
        """Add normal noise to the actions of the policy."""
        action = self.policy(shared.actor_params, self.normalizer.apply(shared.statistics, state.timestep.observation))
        if greedy:
            return state.carry, action, ()
        carry, noise = self.noise.draw(state.carry, state.timestep, key, action.shape[1:])
        return carry, self.actions.add_noise(action, noise), ()

    def inspect(self, shared: ContinuousPQNShared, observation: Observation) -> NetworkOutputs:
        """Return the policy, and the values of its actions."""
        observation = self.normalizer.apply(shared.statistics, observation)
        pi = self.actor.apply(shared.actor_params, observation)
        return NetworkOutputs(pi, self.q(shared.q_params, observation, pi.mode()))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Train for several epochs of minibatches on one rollout."""
        steps = trajectory.transitions
        reward, statistics, returns = self.rewards.apply(agent.shared.return_statistics, agent.local, steps)
        shared = agent.shared._replace(return_statistics=statistics)
        trajectory = trajectory._replace(transitions=steps._replace(reward=reward))
        batch = jax.tree.map(lambda x: merge_leading_dims(x, 2), self.evaluate(shared, trajectory))
        shared, metrics = minibatch_epochs(self.sgd_step, shared, batch, key, self.config, step_keys=False)
        statistics = self.normalizer.update(shared.statistics, steps.observation)
        return Agent(shared._replace(statistics=statistics), returns), metrics

    def evaluate(self, shared: ContinuousPQNShared, trajectory: Trajectory) -> PQNTransition:
        """Compute lambda-returns `[T, N]`; bootstrap values are those of the policy's actions at true successors."""
        steps, config = trajectory.transitions, self.config
        observation, next_observation = (
            self.normalizer.apply(shared.statistics, view) for view in (steps.observation, steps.next_observation)
        )
        q_t = self.q(shared.q_params, next_observation, self.policy(shared.actor_params, next_observation))
        target = batch_lambda_returns(
            config.reward_scale * steps.reward,
            config.gamma * (1.0 - steps.terminated),
            q_t,
            config.q_lambda,
            time_major=True,
            truncation_t=steps.truncated,
        )
        return PQNTransition(observation, steps.action, target)

    def sgd_step(
        self, shared: ContinuousPQNShared, batch: PQNTransition, key: None
    ) -> tuple[ContinuousPQNShared, Metrics]:
        """Take one gradient step of the critic on one minibatch, then one of the policy; they need no key."""
        del key
        q_params, q_opt_state, metrics = gradient_step(
            self.critic_loss, self.q_optim, self.axes, shared.q_params, shared.q_opt_state, batch
        )
        loss = partial(self.actor_loss, q_params=q_params, observation=batch.observation)
        actor_params, actor_opt_state, actor_metrics = gradient_step(
            loss, self.actor_optim, self.axes, shared.actor_params, shared.actor_opt_state
        )
        opt_states = {"actor_opt_state": actor_opt_state, "q_opt_state": q_opt_state}
        return shared._replace(actor_params=actor_params, q_params=q_params, **opt_states), metrics | actor_metrics

    def critic_loss(self, q_params: PyTree, batch: PQNTransition) -> tuple[jax.Array, Metrics]:
        """Compute half the squared error to the lambda-return."""
        q = self.q(q_params, batch.observation, batch.action)
        loss = baseline_loss(q, batch.target)
        return loss, {"q_loss": loss, "q_value": jnp.mean(q)}

    def actor_loss(self, actor_params: PyTree, q_params: PyTree, observation: Observation) -> tuple[jax.Array, Metrics]:
        """Compute the negative value of the policy's actions."""
        loss = -jnp.mean(self.q(q_params, observation, self.policy(actor_params, observation)))
        return loss, {"actor_loss": loss}

    def policy(self, actor_params: PyTree, observation: Observation) -> jax.Array:
        """Compute the actions of the policy, without noise."""
        return self.actor.apply(actor_params, observation).mode()

    def q(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the values `[...]` of actions."""
        return self.critic.apply(q_params, observation, {"action": action})


def build(config: Config, spec: SystemSpec) -> System:
    """Build continuous PQN; the floats of the hyperparameters may be traced."""
    actor, critic = spec.networks.actor_network, spec.networks.q_network
    pqn = ContinuousPQN(
        config,
        spec.axes,
        actor=FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        critic=FeedForwardCritic(critic.critic_head, critic.pre_torso, critic.input_layer),
        actor_optim=make_optimiser(config, spec, config.actor_lr),
        q_optim=make_optimiser(config, spec, config.q_lr),
        normalizer=make_normalizer(config.normalize_observations, spec.axes),
        rewards=make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes),
        noise=make_normal_noise(config.exploration_noise, config.max_exploration_noise, config.noise_correlation),
        actions=action_range(spec.action_space),
    )
    return make_system(pqn, spec)


run_experiment, hydra_entry_point = entry_points("q_learning/ff_pqn_continuous", build)

if __name__ == "__main__":
    hydra_entry_point()
