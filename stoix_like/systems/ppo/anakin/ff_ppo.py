"""Proximal policy optimisation with feed-forward networks (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Metrics, System, SystemSpec
from stoix_like.schema import above, at_least, between
from stoix_like.systems.launch import entry_points
from stoix_like.systems.on_policy import MinibatchConfig, make_minibatches
from stoix_like.systems.on_policy_actor_critic import ActorCritic, ActorCriticConfig, assemble
from stoix_like.systems.ppo.kl_stop import make_kl_stop
from stoix_like.systems.ppo.ppo_types import PPOShared, PPOTransition
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss import approximate_kl, baseline_loss, clipped_value_loss, ppo_clip_loss


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig, MinibatchConfig):
    """Hyperparameters of PPO.

    Attributes:
        annealed: hyperparameters that may change over the run.
        gae_lambda: mixing parameter of n-step advantages.
        clip_eps: clip range of the probability ratio and of the value change.
        final_clip_eps: clip range at the end of the run; None keeps it constant.
        clip_value: whether the value change is clipped.
        target_kl: divergence from the behaviour policy that an update aims at, in nats, see `make_kl_stop`; None for no
            limit.
    """

    annealed: ClassVar[tuple[str, ...]] = (*ActorCriticConfig.annealed, "clip_eps")
    gae_lambda: Annotated[float, between(0.0, 1.0)]
    clip_eps: Annotated[float, above(0.0)]
    final_clip_eps: Annotated[float | None, at_least(0.0)] = None
    clip_value: bool
    target_kl: Annotated[float | None, above(0.0)] = None


class PPO(ActorCritic):
    """PPO with the clipped surrogate objective."""

    ratio_in_loss = True

    def learn(self, shared: PPOShared, batch: PPOTransition, key: jax.Array) -> tuple[PPOShared, Metrics]:
        """Train for several epochs of minibatches on one rollout."""
        num_minibatches, behaviour = self.config.num_minibatches, shared
        stop = make_kl_stop(self.kl_limit, self.axes)
        step = stop.guard(lambda shared, inputs: self.sgd_step(shared, behaviour, *inputs))

        def epoch(carry: Any, key: jax.Array) -> tuple[Any, Metrics]:
            shuffle_key, loss_key = jax.random.split(key)
            minibatches = make_minibatches(shuffle_key, batch, num_minibatches)
            return jax.lax.scan(step, carry, (minibatches, jax.random.split(loss_key, num_minibatches)))

        return stop.finish(*jax.lax.scan(epoch, stop.start(shared), jax.random.split(key, self.config.epochs)))

    @property
    def kl_limit(self) -> Scalar | None:
        """The divergence that updates aim at, in nats; None for no limit."""
        return self.config.target_kl

    def policy_loss(self, pi: Any, behaviour: Any, batch: PPOTransition) -> tuple[jax.Array, Metrics]:
        """Compute the clipped surrogate loss (equation 7), and how far the policy is from the behaviour policy."""
        del behaviour
        log_prob, clip_eps = pi.log_prob(batch.action), self.config.clip_eps
        metrics = {
            "approx_kl": approximate_kl(log_prob, batch.log_prob),
            "clip_fraction": jnp.mean(jnp.abs(jnp.expm1(log_prob - batch.log_prob)) > clip_eps),
        }
        return ppo_clip_loss(log_prob, batch.log_prob, batch.advantage, clip_eps), metrics

    def value_loss(self, value: jax.Array, batch: PPOTransition) -> jax.Array:
        """Compute half the mean squared error of the values `[B]`, with the value change clipped if configured."""
        if self.config.clip_value:
            return clipped_value_loss(value, batch.value, batch.target, self.config.clip_eps)
        return baseline_loss(value, batch.target)


def build(config: Config, spec: SystemSpec) -> System:
    """Build PPO; see `on_policy_actor_critic.assemble`."""
    return assemble(config, spec, PPO)


run_experiment, hydra_entry_point = entry_points("ppo/ff_ppo", build)

if __name__ == "__main__":
    hydra_entry_point()
