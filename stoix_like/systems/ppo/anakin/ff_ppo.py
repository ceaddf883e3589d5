"""Proximal policy optimisation with feed-forward networks (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    ActorCriticParams,
    Agent,
    Distribution,
    Loss,
    Metrics,
    PyTree,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, above, at_least, between, one_of
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.actor_critic import OnPolicyActorCritic, OnPolicyShared, make_parts
from stoix_like.systems.on_policy.epochs import MinibatchConfig, minibatch_epochs
from stoix_like.systems.on_policy.intrinsic import IntrinsicReward
from stoix_like.systems.on_policy.networks import NETWORK_HEADS, ActorCriticNetworks, OnPolicyTransition
from stoix_like.systems.parts.advantages import make_advantages
from stoix_like.systems.parts.critic_outputs import SCALAR, with_distributions
from stoix_like.systems.parts.kl_rate import FIXED, RATE, KLRate, LearningRate, make_kl_rate
from stoix_like.systems.parts.kl_stop import NEVER, Stop, make_kl_stop
from stoix_like.systems.parts.optimiser import Gradients, descend, mean_gradient
from stoix_like.systems.parts.state import get_part, with_part
from stoix_like.systems.parts.symmetry import SymmetryConfig
from stoix_like.systems.parts.teacher import Kickstarting
from stoix_like.utils.jax_utils import means
from stoix_like.utils.loss import approximate_kl_per_example, clipped_value_loss_per_example, ppo_clip_loss_per_example


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of PPO."""

    annealed: ClassVar[tuple[str, ...]] = ("ent_coef", "clip_eps")
    needs_successors: ClassVar[bool] = False
    networks_per_agent: ClassVar[bool] = True
    network_heads: ClassVar = with_distributions(NETWORK_HEADS)
    minibatches: MinibatchConfig
    gradients: Gradients
    kl_rate: KLRate
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the actor
    critic_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critic
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    gae_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step advantages
    clip_eps: Annotated[float, above(0.0)]  # clip range of the probability ratio and of the value change
    final_clip_eps: Annotated[float | None, at_least(0.0)] = None  # clip range at the end of the run
    clip_value: bool  # whether the value change is clipped
    target_kl: Annotated[float | None, above(0.0)] = None  # divergence that an update aims at, in nats; None: no limit
    ent_coef: Annotated[float, at_least(0.0)]  # weight of the entropy bonus
    final_ent_coef: Annotated[float | None, at_least(0.0)] = None  # weight of the entropy bonus at the end of the run
    vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss
    normalize_rewards: bool = False  # divide rewards by the running standard deviation of the discounted return
    normalize_observations: bool  # whether observations are normalised by their running mean and standard deviation
    standardize_advantages: bool | Annotated[str, one_of("batch", "minibatch")]  # to mean 0 and deviation 1
    vtrace: bool = False  # whether V-trace corrects for the lag of the behaviour policy, as with Sebulba
    sde_sample_freq: Annotated[int | None, between(1, INT32_MAX)] = None  # steps between new exploration noise (gSDE)
    intrinsic_reward: IntrinsicReward
    kickstarting: Kickstarting
    symmetry: SymmetryConfig

    @property
    def ignores_lag(self) -> bool:
        """The policy loss has the probability ratio."""
        return False


ConfigT = TypeVar("ConfigT", bound=Config)


@dataclass(frozen=True)
class PPO(OnPolicyActorCritic[ConfigT]):
    """PPO with the clipped surrogate objective; the last parts are options, off by default."""

    stop: Stop = NEVER
    rate: LearningRate = FIXED

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        agent = super().init(key, timestep)
        return agent._replace(shared=with_part(agent.shared, RATE, self.rate.init()))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        agent, batch, others = self.targets(agent, trajectory, key, self.config.minibatches.num_minibatches)
        behaviour, config = agent.shared, self.config.at(agent.shared.updates, self.num_updates)
        sgd_step = partial(replace(self, config=config).sgd_step, behaviour)
        # Every array that minibatches are drawn from costs time, and only clipping needs the values before the update.
        drawn = batch if config.clip_value else batch._replace(value=())
        shared, metrics = minibatch_epochs(sgd_step, behaviour, drawn, key, config.minibatches, self.stop)
        return self.finish(Agent(shared, agent.local), trajectory), metrics | others | self.describe(config, batch)

    def sgd_step(
        self, behaviour: OnPolicyShared, shared: OnPolicyShared, batch: OnPolicyTransition, key: jax.Array
    ) -> tuple[OnPolicyShared, Metrics]:
        """Take one gradient step on one minibatch; `behaviour` is the state before the update."""
        batch = batch._replace(advantage=self.standardize(batch.advantage, ("minibatch",)))
        grads, metrics = mean_gradient(self.loss, self.axes, shared.params, behaviour, batch, key)
        factor, metrics = self.rate.adapt(get_part(shared, RATE), metrics)
        params, opt_states = descend(self.rate.apply(self.optim, factor), grads, shared.params, shared.opt_states)
        return with_part(shared._replace(params=params, opt_states=opt_states), RATE, factor), metrics

    def loss(
        self, params: ActorCriticParams, behaviour: OnPolicyShared, batch: OnPolicyTransition, key: jax.Array
    ) -> Loss:
        """Compute the policy loss, the value loss and the entropy bonus (equation 9)."""
        batch = self.mirror.join(self.networks.arrange(batch))
        pi, value = self.networks.both(params, batch.obs)
        policy_loss, others = self.policy_loss(pi, behaviour, batch)
        others |= self.rate.measure(pi, lambda: self.networks.policy(behaviour.params, batch.obs))
        others |= self.networks.output.metrics(value, batch.target)
        value_loss, entropy = self.value_loss(value, batch), pi.entropy(seed=key)
        metrics = means({"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **others})
        loss = metrics["policy_loss"] + self.config.vf_coef * metrics["value_loss"]
        return self.lessons.add(loss - self.config.ent_coef * metrics["entropy"], metrics, pi, batch.lesson)

    def policy_loss(self, pi: Distribution, behaviour: OnPolicyShared, batch: OnPolicyTransition) -> Loss:
        """Compute the clipped surrogate losses (equation 7), and how far the policy is from the behaviour policy.

        Returns the losses, and metrics by name; each `[B]`, or its mean.
        """
        log_prob, clip_eps = pi.log_prob(batch.action), self.config.clip_eps
        return ppo_clip_loss_per_example(log_prob, batch.log_prob, batch.advantage, clip_eps), {
            "approx_kl": approximate_kl_per_example(log_prob, batch.log_prob),
            "clip_fraction": jnp.abs(jnp.expm1(log_prob - batch.log_prob)) > clip_eps,
        }

    def value_loss(self, value: PyTree, batch: OnPolicyTransition) -> jax.Array:
        """Compute the losses `[B]` of the critic, by default half its squared errors, clipped if configured."""
        if self.config.clip_value:
            return clipped_value_loss_per_example(value, batch.value, batch.target, self.config.clip_eps)
        return self.networks.output.loss(value, batch.target)


def make_algorithm(
    config: Config,
    spec: SystemSpec,
    algorithm: type[PPO[Any]] = PPO,
    networks: ActorCriticNetworks | None = None,
    stop: Stop | None = None,
) -> Algorithm:
    """Build PPO or a variant."""
    parts = make_parts(config, spec, networks)
    if config.clip_value and parts["networks"].output is not SCALAR:
        raise ConfigError("system.clip_value=true clips a value, but the critic computes a distribution: use false")
    # The ratio in the policy loss weights advantages already.
    advantages = make_advantages(config.gamma, config.gae_lambda, config.vtrace, weighted=False)
    stop = make_kl_stop(config.target_kl, spec.axes) if stop is None else stop
    if stop is not NEVER and config.kl_rate.desired_kl is not None:
        raise ConfigError("system.desired_kl and system.target_kl both limit the divergence: set one of them to null")
    parts |= {"advantages": advantages, "stop": stop, "rate": make_kl_rate(config.kl_rate, config.actor_lr, spec.axes)}
    return algorithm(**parts)


build, run_experiment, hydra_entry_point = entry_points("ppo/ff_ppo", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
