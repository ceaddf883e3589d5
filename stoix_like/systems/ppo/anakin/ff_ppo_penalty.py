"""Proximal policy optimisation with a KL penalty (Schulman et al. 2017, arXiv:1707.06347, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, Distribution, Loss, Metrics, SystemSpec, TimeStep, Trajectory
from stoix_like.errors import ConfigError
from stoix_like.schema import above, at_least
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.actor_critic import OnPolicyShared
from stoix_like.systems.on_policy.networks import OnPolicyTransition
from stoix_like.systems.parts.kl_stop import NEVER
from stoix_like.systems.ppo.anakin import ff_ppo
from stoix_like.utils.loss import ppo_penalty_loss

# Limits of the coefficient: a run of small divergences must not bring it to 0, which no doubling would undo.
MIN_KL_COEF, MAX_KL_COEF = 1e-4, 1e4


@dataclass(frozen=True, kw_only=True)
class Config(ff_ppo.Config):
    """Hyperparameters of PPO with a KL penalty; `clip_eps` limits only the value change."""

    kl_coef: Annotated[float, at_least(0.0)]  # weight of the divergence, in the unit of the advantages per nat
    stops_early: ClassVar[bool] = False
    adapt_kl_coef: bool  # whether the weight adapts to keep the divergence of each update near `target_kl`
    target_kl: Annotated[float, above(0.0)]  # divergence per update, in nats


class Penalty(NamedTuple):
    """The weight of the divergence."""

    kl_coef: jax.Array


class PenaltyPPO(ff_ppo.PPO[Config]):
    """PPO with a penalty on the divergence from the policy before the update, in place of the clipped ratio."""

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        agent = super().init(key, timestep)
        kl_coef = jnp.asarray(self.config.kl_coef, jnp.float32)
        return agent._replace(shared=agent.shared._replace(own=Penalty(kl_coef)))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Learn from one rollout, and adapt the weight of the divergence to the divergence of the whole update."""
        before = agent.shared
        agent, metrics = super().update(agent, trajectory, key)
        observation = self.normalizer.apply(before.statistics, trajectory.transitions.observation)
        b_pi, pi = (self.networks.policy(s.params, observation) for s in (before, agent.shared))
        kl = self.axes.mean(jnp.mean(b_pi.kl_divergence(pi)))
        if self.config.adapt_kl_coef:
            kl_coef = adapt_coefficient(before.own.kl_coef, kl, self.config.target_kl)
            agent = agent._replace(shared=agent.shared._replace(own=Penalty(kl_coef)))
        # Learning rates that adapt report the divergence that they adapt to as `kl`.
        return agent, {"kl": kl, "kl_coef": self._kl_coef(before)} | metrics

    def policy_loss(self, pi: Distribution, behaviour: OnPolicyShared, batch: OnPolicyTransition) -> Loss:
        """Compute the surrogate loss with its penalty (equation 8)."""
        log_prob, b_pi = pi.log_prob(batch.action), self.networks.policy(behaviour.params, batch.obs)
        loss, _ = ppo_penalty_loss(log_prob, batch.log_prob, batch.advantage, self._kl_coef(behaviour), pi, b_pi)
        return loss, {}

    def _kl_coef(self, shared: OnPolicyShared) -> jax.Array:
        """Return the weight of the divergence, the configured one if it is not adapted."""
        adapted: jax.Array = shared.own.kl_coef
        return adapted if self.config.adapt_kl_coef else jnp.asarray(self.config.kl_coef, jnp.float32)


def adapt_coefficient(kl_coef: jax.Array, kl: jax.Array, target_kl: float | jax.Array) -> jax.Array:
    """Double the weight of the divergence where it exceeds 1.5 times its target, halve it where it is 1.5 times below.

    Source: Schulman et al. 2017 (PPO), section 4.

    `kl_coef`: weight of the divergence, per nat, a scalar.
    `kl`: divergence of the last update, in nats, a scalar.
    `target_kl`: its target, in nats.
    """
    factor = jnp.where(kl > 1.5 * target_kl, 2.0, jnp.where(kl < target_kl / 1.5, 0.5, 1.0))
    return jnp.clip(factor * kl_coef, MIN_KL_COEF, MAX_KL_COEF)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build PPO with a KL penalty; see `ff_ppo.make_algorithm`. The penalty keeps the divergence near its target."""
    if config.adapt_kl_coef and config.kl_rate.desired_kl is not None:
        raise ConfigError(
            "system.adapt_kl_coef=true and system.desired_kl both control the divergence: use"
            " system.adapt_kl_coef=false, or system.desired_kl=null"
        )
    return ff_ppo.make_algorithm(config, spec, PenaltyPPO, stop=NEVER)


build, run_experiment, hydra_entry_point = entry_points("ppo/ff_ppo_penalty", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
