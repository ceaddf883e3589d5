"""PQN for continuous actions, as its authors publish it for robots: a deterministic policy in a trust region.

Lambda-returns of rollouts with annealed noise, and neither replay buffer nor target networks: layer normalisation and
the trust region of the policy stand in for them.

Source: Gallici et al. 2024 (PQN), arXiv:2407.04811, and their code, github.com/mttga/purejaxql,
`pqn_mujoco_playground.py`. Five things differ here. Truncated steps bootstrap, where they take truncations for
terminations. Each step bootstraps from its own successor, where the last but one of their rollouts takes the last
one's. Changes of actions are measured in units of half the action range; theirs is [-1, 1]. Heads start near zero.
Observations are normalised by the statistics before the rollout, and clipped; theirs by statistics up to each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    ActorCriticOptStates,
    ActorCriticParams,
    Agent,
    Axes,
    Loss,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Box
from stoix_like.networks.base import FeedForwardActor, MultiNetwork
from stoix_like.networks.requirements import DETERMINISTIC_POLICY, VALUE, policy_and_critics
from stoix_like.schema import above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.ddpg_types import ActionRange, action_range
from stoix_like.systems.off_policy.actor_critic import make_critics
from stoix_like.systems.on_policy.actor_critic import OnPolicyLocal, OnPolicyShared
from stoix_like.systems.on_policy.epochs import MinibatchConfig, minibatch_epochs
from stoix_like.systems.parts.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss.common import squared_or_huber
from stoix_like.utils.multistep import batch_lambda_returns


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of continuous PQN."""

    annealed: ClassVar[tuple[str, ...]] = ("exploration_noise",)
    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    network_heads: ClassVar = policy_and_critics(DETERMINISTIC_POLICY, VALUE, layer_norm=True)
    minibatches: MinibatchConfig
    gradients: Gradients
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    normalize_rewards: bool = False  # divide rewards by the running standard deviation of the discounted return
    normalize_observations: bool = False  # whether observations are normalised by their running mean and deviation
    actor_lr: Annotated[float, above(0.0)]  # learning rate of the policy
    q_lr: Annotated[float, above(0.0)]  # learning rate of the critics
    num_critics: Annotated[int, between(1, 1000)] = 2  # number of critics; their mean is the value of an action
    q_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step returns
    exploration_noise: Annotated[float, at_least(0.0)]  # standard deviation of the noise, in half action ranges
    final_exploration_noise: Annotated[float | None, at_least(0.0)] = None  # standard deviation at the end of the run
    max_action_change: Annotated[float, at_least(0.0)]  # largest mean change of an action without a penalty, likewise
    change_penalty: Annotated[float, at_least(0.0)]  # weight of the penalty of larger changes, in scaled reward


class ContinuousPQNTransition(NamedTuple):
    """Steps `[B, ...]` with the action of the behaviour policy without its noise, and lambda-returns as targets."""

    observation: Observation
    action: jax.Array
    policy_action: jax.Array
    target: jax.Array


@dataclass(frozen=True)
class ContinuousPQN(Algorithm):
    """PQN with a policy, and with its hyperparameters, networks and optimisers."""

    config: Config
    axes: Axes
    num_updates: int
    actor: FeedForwardActor
    critics: MultiNetwork
    actor_optim: optax.GradientTransformation
    q_optim: optax.GradientTransformation
    normalizer: Normalizer
    rewards: RewardNormalizer
    actions: ActionRange

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        actor_key, q_key = jax.random.split(key)
        actor_params = self.actor.init(actor_key, observation := timestep.observation)
        q_params = self.critics.init(q_key, observation, {"action": self.policy(actor_params, observation)})
        shared = OnPolicyShared(
            ActorCriticParams(actor_params, q_params),
            ActorCriticOptStates(self.actor_optim.init(actor_params), self.q_optim.init(q_params)),
            self.normalizer.init(observation),
            self.rewards.init(),
            self.config.init_updates(),
        )
        return Agent(shared, OnPolicyLocal(self.rewards.init_returns(len(timestep.reward))))

    def act(self, shared: OnPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Add normal noise to the actions of the policy; the extras are these actions without noise."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        action = self.policy(shared.params.actor_params, observation)
        if greedy:
            return (), action, ()
        noise = self.noise(shared) * jax.random.normal(key, action.shape)
        return (), self.actions.add_noise(action, noise), action

    def noise(self, shared: OnPolicyShared) -> jax.Array:
        """Return the standard deviation of the noise, in units of half the action range."""
        return jnp.asarray(self.config.at(shared.updates, self.num_updates).exploration_noise)

    def inspect(self, shared: OnPolicyShared, observation: Observation) -> NetworkOutputs:
        observation = self.normalizer.apply(shared.statistics, observation)
        pi = self.actor.apply(shared.params.actor_params, observation)
        return NetworkOutputs(pi, jnp.mean(self.q(shared.params.critic_params, observation, pi.mode()), axis=-1))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        steps, (noise_key, key) = trajectory.transitions, jax.random.split(key)
        reward, statistics, returns = self.rewards.apply(agent.shared.return_statistics, agent.local.returns, steps)
        shared = agent.shared._replace(return_statistics=statistics)
        trajectory = trajectory._replace(transitions=steps._replace(reward=reward))
        batch = jax.tree.map(lambda x: merge_leading_dims(x, 2), self.evaluate(shared, trajectory, noise_key))
        after, metrics = minibatch_epochs(self.sgd_step, shared, batch, key, self.config.minibatches, step_keys=False)
        statistics = self.normalizer.update(shared.statistics, steps.observation)
        after = after._replace(statistics=statistics, updates=jax.tree.map(lambda count: count + 1, shared.updates))
        return Agent(after, OnPolicyLocal(returns)), metrics | {"exploration_noise": self.noise(shared)}

    def evaluate(self, shared: OnPolicyShared, trajectory: Trajectory, key: jax.Array) -> ContinuousPQNTransition:
        """Compute lambda-returns `[T, N]` of the policy with noise.

        Bootstrap values belong to the actions that followed; at truncations and the end of the rollout, to new ones.
        """
        steps, config = trajectory.transitions, self.config
        observation, successor = (
            self.normalizer.apply(shared.statistics, view) for view in (steps.observation, steps.next_observation)
        )
        action = self.policy(shared.params.actor_params, successor)
        action = jax.vmap(self.actions.add_noise)(action, self.noise(shared) * jax.random.normal(key, action.shape))
        views = (observation, steps.action), (successor, action)
        q_tm1, q_end = (jnp.mean(self.q(shared.params.critic_params, *each), axis=-1) for each in views)
        q_t = jnp.where(steps.truncated, q_end, jnp.concatenate([q_tm1[1:], q_end[-1:]]))
        inputs = config.reward_scale * steps.reward, config.gamma * (1.0 - steps.terminated), q_t, config.q_lambda
        target = batch_lambda_returns(*inputs, time_major=True, truncation_t=steps.truncated)
        return ContinuousPQNTransition(observation, steps.action, steps.extras, target)

    def sgd_step(
        self, shared: OnPolicyShared, batch: ContinuousPQNTransition, key: None
    ) -> tuple[OnPolicyShared, Metrics]:
        """Take one gradient step of the policy and one of the critics on one minibatch; they need no key."""
        params, opt_states = shared.params, shared.opt_states
        loss = partial(self.actor_loss, q_params=params.critic_params, batch=batch)
        actor_params, actor_opt_state, metrics = gradient_step(
            loss, self.actor_optim, self.axes, params.actor_params, opt_states.actor_opt_state
        )
        q_params, q_opt_state, q_metrics = gradient_step(
            self.critic_loss, self.q_optim, self.axes, params.critic_params, opt_states.critic_opt_state, batch
        )
        params = ActorCriticParams(actor_params, q_params)
        opt_states = ActorCriticOptStates(actor_opt_state, q_opt_state)
        return shared._replace(params=params, opt_states=opt_states), metrics | q_metrics

    def critic_loss(self, q_params: PyTree, batch: ContinuousPQNTransition) -> Loss:
        """Compute the Huber losses of the errors to the lambda-return, summed over the critics."""
        q = self.q(q_params, batch.observation, batch.action)
        loss = jnp.sum(jnp.mean(squared_or_huber(q - batch.target[:, None], 1.0), axis=0))
        return loss, {"q_loss": loss, "q_value": jnp.mean(q)}

    def actor_loss(self, actor_params: PyTree, q_params: PyTree, batch: ContinuousPQNTransition) -> Loss:
        """Compute the negative value of the policy's actions, with a penalty where they leave the trust region.

            L = mean(-q(s, pi(s)) + c [mean_a |d_a| > max_action_change] mean_a huber(d_a)),  d = (pi(s) - b(s)) / unit

        where b is the behaviour policy.
        """
        action = self.policy(actor_params, batch.observation)
        change = ((action - batch.policy_action) / self.actions.unit[None]).reshape(len(action), -1)
        far = jnp.mean(jnp.abs(change), axis=-1) > self.config.max_action_change
        penalty = self.config.change_penalty * jnp.mean(squared_or_huber(change, 1.0), axis=-1)
        value = jnp.mean(self.q(q_params, batch.observation, action), axis=-1)
        loss = jnp.mean(jnp.where(far, penalty, 0.0) - value)
        return loss, {"actor_loss": loss, "action_change": jnp.mean(jnp.abs(change)), "penalised": jnp.mean(far)}

    def policy(self, actor_params: PyTree, observation: Observation) -> jax.Array:
        """Compute the actions of the policy, without noise."""
        return self.actor.apply(actor_params, observation).mode()

    def q(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the values `[..., C]` of actions, one per critic."""
        return self.critics.apply(q_params, observation, {"action": action})


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build continuous PQN; the floats of the hyperparameters may be traced."""
    actor = spec.networks.actor_network
    return ContinuousPQN(
        config,
        spec.axes,
        spec.num_updates,
        actor=FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        critics=make_critics(spec.networks.q_network, config.num_critics),
        actor_optim=make_optimiser(config, spec, config.actor_lr),
        q_optim=make_optimiser(config, spec, config.q_lr),
        normalizer=make_normalizer(config.normalize_observations, spec.axes),
        rewards=make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes),
        actions=action_range(spec.action_space),
    )


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_pqn_continuous", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
