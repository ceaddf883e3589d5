"""Proximal policy optimisation with feed-forward networks (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from stoix_like import cli
from stoix_like.base_types import (
    Actor,
    ActorCriticOptStates,
    ActorCriticParams,
    Agent,
    Axes,
    Metrics,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.runner import experiment
from stoix_like.schema import above, at_least, between
from stoix_like.systems.on_policy import OnPolicyConfig, make_minibatches
from stoix_like.systems.ppo.ppo_types import PPOShared, PPOTransition
from stoix_like.utils.jax_utils import merge_leading_dims, standardize
from stoix_like.utils.loss import clipped_value_loss, ppo_clip_loss
from stoix_like.utils.multistep import batch_truncated_generalized_advantage_estimation
from stoix_like.utils.normalizer import Normalizer, make_normalizer
from stoix_like.utils.training import clip_by_global_norm, make_learning_rate_schedule

Learner = tuple[ActorCriticParams, ActorCriticOptStates]


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Hyperparameters of PPO.

    Attributes:
        actor_lr: Adam step size of the actor.
        critic_lr: Adam step size of the critic.
        gae_lambda: mixing of n-step advantages.
        clip_eps: clip range of the probability ratio and of the value change.
        clip_value: clip the value change as well.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        standardize_advantages: to mean 0 and deviation 1 over the whole batch.
        normalize_observations: by running mean and deviation; frozen while evaluating.
    """

    actor_lr: Annotated[float, above(0.0)]
    critic_lr: Annotated[float, above(0.0)]
    gae_lambda: Annotated[float, between(0.0, 1.0)]
    clip_eps: Annotated[float, above(0.0)]
    clip_value: bool
    ent_coef: Annotated[float, at_least(0.0)]
    vf_coef: Annotated[float, at_least(0.0)]
    standardize_advantages: bool
    normalize_observations: bool


@dataclass(frozen=True)
class PPO:
    """The algorithm over its hyperparameters, networks and optimisers."""

    config: Config
    axes: Axes
    actor: FeedForwardActor
    critic: FeedForwardCritic
    actor_optim: optax.GradientTransformation
    critic_optim: optax.GradientTransformation
    normalizer: Normalizer

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """A new agent."""
        actor_key, critic_key = jax.random.split(key)
        observation = timestep.observation
        params = ActorCriticParams(self.actor.init(actor_key, observation), self.critic.init(critic_key, observation))
        opt_states = ActorCriticOptStates(
            self.actor_optim.init(params.actor_params), self.critic_optim.init(params.critic_params)
        )
        return Agent(PPOShared(params, opt_states, self.normalizer.init(observation)), ())

    def act(self, shared: PPOShared, actor: Actor, key: jax.Array, greedy: bool = False) -> tuple[Any, jax.Array, Any]:
        """An action for each environment, and its log-probability."""
        observation = self.normalizer.apply(shared.statistics, actor.timestep.observation)
        pi = self.actor.apply(shared.params.actor_params, observation)
        if greedy:
            return actor.carry, pi.mode(), ()
        action = pi.sample(seed=key)
        return actor.carry, action, pi.log_prob(action)

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Several epochs of minibatches over one rollout."""
        params, opt_states, statistics = agent.shared
        batch = self.evaluate(agent.shared, trajectory)
        batch = jax.tree.map(lambda x: merge_leading_dims(x, 2), batch)

        def epoch(learner: Learner, key: jax.Array) -> tuple[Learner, Metrics]:
            shuffle_key, loss_key = jax.random.split(key)
            minibatches = make_minibatches(shuffle_key, batch, self.config.num_minibatches)
            loss_keys = jax.random.split(loss_key, self.config.num_minibatches)
            return jax.lax.scan(self.learn, learner, (minibatches, loss_keys))

        keys = jax.random.split(key, self.config.epochs)
        learner, metrics = jax.lax.scan(epoch, (params, opt_states), keys)
        # Only now: the statistics that acted are also those that the surrogate objective compares with.
        statistics = self.normalizer.update(statistics, trajectory.transitions.observation)
        return Agent(PPOShared(*learner, statistics), agent.local), jax.tree.map(jnp.mean, metrics)

    def evaluate(self, shared: PPOShared, trajectory: Trajectory) -> PPOTransition:
        """Values in one pass over the whole rollout, and advantages."""
        config, steps, params = self.config, trajectory.transitions, shared.params
        observation = self.normalizer.apply(shared.statistics, steps.observation)
        next_observation = self.normalizer.apply(shared.statistics, steps.next_observation)
        v_tm1 = self.critic.apply(params.critic_params, observation)
        advantage, target = batch_truncated_generalized_advantage_estimation(
            steps.reward * config.reward_scale,
            config.gamma * (1.0 - steps.terminated),
            config.gae_lambda,
            v_tm1=v_tm1,
            v_t=self.critic.apply(params.critic_params, next_observation),
            truncation_t=steps.truncated,
            time_major=True,
        )
        if config.standardize_advantages:
            advantage = standardize(advantage, self.axes.names)
        return PPOTransition(observation, steps.action, steps.extras, v_tm1, advantage, target)

    def learn(self, learner: Learner, inputs: tuple[PPOTransition, jax.Array]) -> tuple[Learner, Metrics]:
        """One step of both optimisers on one minibatch."""
        params, opt_states = learner
        grads, metrics = jax.grad(self.loss, has_aux=True)(params, *inputs)
        grads = self.axes.mean(grads)
        actor_updates, actor_state = self.actor_optim.update(grads.actor_params, opt_states.actor_opt_state)
        critic_updates, critic_state = self.critic_optim.update(grads.critic_params, opt_states.critic_opt_state)
        params = optax.apply_updates(params, ActorCriticParams(actor_updates, critic_updates))
        return (params, ActorCriticOptStates(actor_state, critic_state)), metrics

    def loss(self, params: ActorCriticParams, batch: PPOTransition, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Clipped surrogate, value loss and entropy bonus (equation 9), to be minimised."""
        config = self.config
        pi = self.actor.apply(params.actor_params, batch.obs)
        log_prob = pi.log_prob(batch.action)
        policy_loss = ppo_clip_loss(log_prob, batch.log_prob, batch.advantage, config.clip_eps)
        entropy = jnp.mean(pi.entropy(seed=key))
        value = self.critic.apply(params.critic_params, batch.obs)
        if config.clip_value:
            value_loss = clipped_value_loss(value, batch.value, batch.target, config.clip_eps)
        else:
            value_loss = 0.5 * jnp.mean(jnp.square(value - batch.target))
        log_ratio = log_prob - batch.log_prob
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            # An estimator of KL(b_pi || pi) that is never negative: the mean of r - 1 - log r.
            "approx_kl": jnp.mean(jnp.expm1(log_ratio) - log_ratio),
            "clip_fraction": jnp.mean(jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps),
        }
        return policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss, metrics


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble PPO.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.

    Returns:
        The system.
    """
    actor, critic = spec.networks.actor_network, spec.networks.critic_network
    ppo = PPO(
        config,
        spec.axes,
        actor=FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        critic=FeedForwardCritic(critic.critic_head, critic.pre_torso, critic.input_layer),
        actor_optim=_optimiser(config, spec, config.actor_lr),
        critic_optim=_optimiser(config, spec, config.critic_lr),
        normalizer=make_normalizer(config.normalize_observations, spec.axes),
    )
    return System(
        init=ppo.init,
        act=ppo.act,
        observe=lambda agent, _: agent,
        update=ppo.update,
        eval_act=partial(ppo.act, greedy=spec.evaluation_greedy),
        init_carry=lambda _: (),
    )


def _optimiser(config: Config, spec: SystemSpec, lr: Any) -> optax.GradientTransformation:
    if config.decay_learning_rates:
        lr = make_learning_rate_schedule(lr, spec.num_updates, config.epochs, config.num_minibatches)
    return optax.chain(clip_by_global_norm(config.max_grad_norm), optax.adam(lr, eps=1e-5))


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "ppo/ff_ppo")

if __name__ == "__main__":
    hydra_entry_point()
