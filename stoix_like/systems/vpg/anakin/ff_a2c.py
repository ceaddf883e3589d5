"""Advantage actor-critic with feed-forward networks (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeVar

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
    Trajectory,
)
from stoix_like.schema import INT32_MAX, above, at_least, between, one_of
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.actor_critic import OnPolicyActorCritic, OnPolicyShared, make_parts
from stoix_like.systems.on_policy.intrinsic import IntrinsicReward
from stoix_like.systems.on_policy.networks import NETWORK_HEADS, OnPolicyTransition
from stoix_like.systems.parts.advantages import make_advantages
from stoix_like.systems.parts.optimiser import Gradients, gradient_step
from stoix_like.systems.parts.teacher import Kickstarting
from stoix_like.utils.loss import baseline_loss, policy_gradient_loss


@dataclass(frozen=True, kw_only=True)
class BaseConfig(SystemConfig):
    """Hyperparameters that A2C shares with REINFORCE, IMPALA, AWR and V-MPO."""

    annealed: ClassVar[tuple[str, ...]] = ("ent_coef",)
    needs_successors: ClassVar[bool] = False
    network_heads: ClassVar = NETWORK_HEADS
    gradients: Gradients
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    actor_lr: Annotated[float, above(0.0)]  # learning rate of the actor
    critic_lr: Annotated[float, above(0.0)]  # learning rate of the critic
    ent_coef: Annotated[float, at_least(0.0)]  # weight of the entropy bonus
    final_ent_coef: Annotated[float | None, at_least(0.0)] = None  # weight of the entropy bonus at the end of the run
    vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss
    normalize_rewards: bool = False  # divide rewards by the running standard deviation of the discounted return
    normalize_observations: bool  # whether observations are normalised by their running mean and standard deviation
    standardize_advantages: bool | Annotated[str, one_of("batch", "minibatch")]  # to mean 0 and deviation 1
    vtrace: bool = False  # whether V-trace corrects values and advantages for the lag of the behaviour policy
    sde_sample_freq: Annotated[int | None, between(1, INT32_MAX)] = None  # steps between new exploration noise (gSDE)

    @property
    def ignores_lag(self) -> bool:
        return super().ignores_lag and not self.vtrace


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Hyperparameters of A2C."""

    networks_per_agent: ClassVar[bool] = True
    gae_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step advantages
    intrinsic_reward: IntrinsicReward
    kickstarting: Kickstarting


ConfigT = TypeVar("ConfigT", bound=BaseConfig)


@dataclass(frozen=True)
class A2C(OnPolicyActorCritic[ConfigT]):
    """A2C: one step along the policy gradient per rollout."""

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        agent, batch, metrics = self.targets(agent, trajectory, key)
        shared, others = self.improve(agent.shared, batch, key)
        return self.finish(Agent(shared, agent.local), trajectory), metrics | others

    def improve(self, shared: OnPolicyShared, batch: OnPolicyTransition, key: jax.Array) -> tuple[PyTree, Metrics]:
        """Learn from a batch `[B]` with the hyperparameters of this update."""
        config = self.config.at(shared.updates, self.num_updates)
        shared, metrics = replace(self, config=config).train(shared, batch, key)
        return shared, metrics | self.describe(config, batch)

    def train(self, shared: OnPolicyShared, batch: OnPolicyTransition, key: jax.Array) -> tuple[PyTree, Metrics]:
        """Take one gradient step on the whole rollout."""
        batch = batch._replace(advantage=self.standardize(batch.advantage, ("minibatch",)))
        params, opt_states, metrics = gradient_step(
            self.loss, self.optim, self.axes, shared.params, shared.opt_states, batch, key
        )
        return shared._replace(params=params, opt_states=opt_states), metrics

    def loss(self, params: ActorCriticParams, batch: OnPolicyTransition, key: jax.Array) -> Loss:
        """Compute the policy loss, the value loss and the entropy bonus."""
        batch = self.networks.arrange(batch)
        pi, value = self.networks.both(params, batch.obs)
        policy_loss, metrics = self.policy_loss(pi, batch)
        entropy = jnp.mean(pi.entropy(seed=key))
        value_loss = baseline_loss(value, batch.target)
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **metrics}
        loss = policy_loss - self.config.ent_coef * entropy + self.config.vf_coef * value_loss
        return self.lessons.add(loss, metrics, pi, batch.lesson)

    def policy_loss(self, pi: Distribution, batch: OnPolicyTransition) -> Loss:
        """Compute the policy-gradient loss of the advantages (section 4)."""
        return policy_gradient_loss(pi.log_prob(batch.action), batch.advantage), {}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build A2C; the floats of the hyperparameters may be traced."""
    advantages = make_advantages(config.gamma, config.gae_lambda, config.vtrace)
    return A2C(**make_parts(config, spec), advantages=advantages)


build, run_experiment, hydra_entry_point = entry_points("vpg/ff_a2c", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
