"""Proximal policy optimisation with feed-forward networks (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    ActorCriticParams,
    Agent,
    Axes,
    Metrics,
    RolloutState,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.launch import entry_points
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement
from stoix_like.schema import above, at_least, between
from stoix_like.systems.gradient_descent import gradient_step, make_optimiser
from stoix_like.systems.on_policy import OnPolicyConfig, make_minibatches
from stoix_like.systems.ppo.ppo_types import PPOShared, PPOTransition, actor_critic_optimiser
from stoix_like.utils.jax_utils import merge_leading_dims, standardize
from stoix_like.utils.loss import approximate_kl, baseline_loss, clipped_value_loss, ppo_clip_loss
from stoix_like.utils.multistep import (
    batch_truncated_generalized_advantage_estimation,
    batch_vtrace_td_error_and_advantage,
)
from stoix_like.utils.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Hyperparameters of PPO.

    Attributes:
        network_heads: heads that the system needs.
        actor_lr: Adam learning rate of the actor.
        critic_lr: Adam learning rate of the critic.
        gae_lambda: mixing parameter of n-step advantages.
        clip_eps: clip range of the probability ratio and of the value change.
        clip_value: whether the value change is clipped.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        standardize_advantages: whether advantages are standardised to mean 0 and deviation 1 over the whole batch.
        normalize_observations: whether observations are normalised by their running mean and standard deviation, which
            are frozen in evaluation.
        vtrace: whether V-trace corrects values and advantages where the behaviour policy is not the current one, as
            with Sebulba.
    """

    network_heads: ClassVar[Mapping[str, HeadRequirement]] = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
        "critic_network.critic_head": HeadRequirement(VALUE),
    }
    actor_lr: Annotated[float, above(0.0)]
    critic_lr: Annotated[float, above(0.0)]
    gae_lambda: Annotated[float, between(0.0, 1.0)]
    clip_eps: Annotated[float, above(0.0)]
    clip_value: bool
    ent_coef: Annotated[float, at_least(0.0)]
    vf_coef: Annotated[float, at_least(0.0)]
    standardize_advantages: bool
    normalize_observations: bool
    vtrace: bool = False


@dataclass(frozen=True)
class PPO:
    """PPO with its hyperparameters, networks and optimisers."""

    config: Config
    axes: Axes
    actor: FeedForwardActor
    critic: FeedForwardCritic
    optim: optax.GradientTransformation
    normalizer: Normalizer
    reward_normalizer: RewardNormalizer

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent."""
        actor_key, critic_key = jax.random.split(key)
        observation = timestep.observation
        params = ActorCriticParams(self.actor.init(actor_key, observation), self.critic.init(critic_key, observation))
        statistics = self.normalizer.init(observation), self.reward_normalizer.init()
        returns = self.reward_normalizer.init_returns(len(timestep.reward))
        return Agent(PPOShared(params, self.optim.init(params), *statistics), returns)

    def act(
        self, shared: PPOShared, state: RolloutState, key: jax.Array, greedy: bool = False
    ) -> tuple[Any, jax.Array, Any]:
        """Choose an action for each environment; the extras are the log-probabilities."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        pi = self.actor.apply(shared.params.actor_params, observation)
        if greedy:
            return state.carry, pi.mode(), ()
        action = pi.sample(seed=key)
        return state.carry, action, pi.log_prob(action)

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Train for several epochs of minibatches on one rollout."""
        num_minibatches, steps = self.config.num_minibatches, trajectory.transitions
        reward, statistics, returns = self.reward_normalizer.apply(agent.shared.return_statistics, agent.local, steps)
        agent = Agent(agent.shared._replace(return_statistics=statistics), returns)
        trajectory = trajectory._replace(transitions=steps._replace(reward=reward))
        batch = jax.tree.map(lambda x: merge_leading_dims(x, 2), self.evaluate(agent.shared, trajectory))

        def epoch(shared: PPOShared, key: jax.Array) -> tuple[PPOShared, Metrics]:
            shuffle_key, loss_key = jax.random.split(key)
            minibatches = make_minibatches(shuffle_key, batch, num_minibatches)
            keys = jax.random.split(loss_key, num_minibatches)
            return jax.lax.scan(lambda shared, inputs: self.sgd_step(shared, *inputs), shared, (minibatches, keys))

        shared, metrics = jax.lax.scan(epoch, agent.shared, jax.random.split(key, self.config.epochs))
        # Updated last: the surrogate objective needs the statistics of the behaviour policy.
        statistics = self.normalizer.update(shared.statistics, trajectory.transitions.observation)
        return Agent(shared._replace(statistics=statistics), agent.local), jax.tree.map(jnp.mean, metrics)

    def evaluate(self, shared: PPOShared, trajectory: Trajectory) -> PPOTransition:
        """Compute the values and advantages of a rollout, in one pass over all steps."""
        config, steps, params = self.config, trajectory.transitions, shared.params
        observation = self.normalizer.apply(shared.statistics, steps.observation)
        next_observation = self.normalizer.apply(shared.statistics, steps.next_observation)
        v_tm1 = self.critic.apply(params.critic_params, observation)
        v_t = self.critic.apply(params.critic_params, next_observation)
        r_t, discount_t = steps.reward * config.reward_scale, config.gamma * (1.0 - steps.terminated)
        flags: Any = {"truncation_t": steps.truncated, "time_major": True}
        if config.vtrace:
            log_prob = self.actor.apply(params.actor_params, observation).log_prob(steps.action)
            ratio = jnp.exp(log_prob - steps.extras)
            vtrace = batch_vtrace_td_error_and_advantage(v_tm1, v_t, r_t, discount_t, ratio, config.gae_lambda, **flags)
            # Without the ratio, which is part of the surrogate objective.
            advantage, target = vtrace.q_estimate - v_tm1, v_tm1 + vtrace.errors
        else:
            advantage, target = batch_truncated_generalized_advantage_estimation(
                r_t, discount_t, config.gae_lambda, v_tm1=v_tm1, v_t=v_t, **flags
            )
        if config.standardize_advantages:
            advantage = standardize(advantage, self.axes.names)
        return PPOTransition(observation, steps.action, steps.extras, v_tm1, advantage, target)

    def sgd_step(self, shared: PPOShared, batch: PPOTransition, key: jax.Array) -> tuple[PPOShared, Metrics]:
        """Take one gradient step on one minibatch."""
        params, opt_states, metrics = gradient_step(
            self.loss, self.optim, self.axes, shared.params, shared.opt_states, batch, key
        )
        return shared._replace(params=params, opt_states=opt_states), metrics

    def loss(self, params: ActorCriticParams, batch: PPOTransition, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Compute the clipped surrogate loss, the value loss and the entropy bonus (equation 9)."""
        config = self.config
        pi = self.actor.apply(params.actor_params, batch.obs)
        log_prob = pi.log_prob(batch.action)
        policy_loss = ppo_clip_loss(log_prob, batch.log_prob, batch.advantage, config.clip_eps)
        entropy = jnp.mean(pi.entropy(seed=key))
        value = self.critic.apply(params.critic_params, batch.obs)
        if config.clip_value:
            value_loss = clipped_value_loss(value, batch.value, batch.target, config.clip_eps)
        else:
            value_loss = baseline_loss(value, batch.target)
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": approximate_kl(log_prob, batch.log_prob),
            "clip_fraction": jnp.mean(jnp.abs(jnp.expm1(log_prob - batch.log_prob)) > config.clip_eps),
        }
        return policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss, metrics


def build(config: Config, spec: SystemSpec) -> System:
    """Build PPO.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.

    Returns:
        The system.
    """
    actor, critic = spec.networks.actor_network, spec.networks.critic_network
    adam = partial(optax.adam, eps=1e-5)
    ppo = PPO(
        config,
        spec.axes,
        actor=FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        critic=FeedForwardCritic(critic.critic_head, critic.pre_torso, critic.input_layer),
        optim=actor_critic_optimiser(
            make_optimiser(config, spec, config.actor_lr, transform=adam),
            make_optimiser(config, spec, config.critic_lr, transform=adam),
        ),
        normalizer=make_normalizer(config.normalize_observations, spec.axes),
        reward_normalizer=make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes),
    )
    return System(
        init=ppo.init,
        act=ppo.act,
        observe=lambda agent, _: agent,
        update=ppo.update,
        eval_act=partial(ppo.act, greedy=spec.evaluation_greedy),
        init_carry=lambda _: (),
    )


run_experiment, hydra_entry_point = entry_points("ppo/ff_ppo", build)

if __name__ == "__main__":
    hydra_entry_point()
