"""CrossQ: batch renormalisation instead of target networks (Bhatt et al. 2024, arXiv:1902.05605)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, Metrics, PyTree, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.networks.normalisation import STATISTICS
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement
from stoix_like.schema import Range
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.actor_critic import OffPolicyShared
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.accelerate.packing import pack_params, unpack
from stoix_like.utils.loss import sac_actor_loss_per_example, sac_critic_loss_per_example
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of CrossQ."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, batch_norm=True),
        "q_network.critic_head": HeadRequirement(VALUE, batch_norm=True),
    }
    adam_b1: Annotated[float, Range(0.0, 1.0, without_high=True)]  # Adam's decay of mean gradients; policy and critics

    def check(self, num_envs: int, num_shards: int) -> None:
        super().check(num_envs, num_shards)
        check_batches(self.replay.total_batch_size, num_shards)


def check_batches(total_batch_size: int, num_shards: int) -> None:
    """Refuse batches of one sample: normalised features would be 0."""
    if total_batch_size == num_shards:
        raise ConfigError(
            f"system.total_batch_size={num_shards} leaves {num_shards} shard(s) one sample each, and shards"
            f" normalise their own batches: use {32 * num_shards} or more"
        )


class CrossQ(ff_sac.SAC[ff_sac.ConfigT]):
    """SAC with normalised networks; the online critics evaluate the successor, too.

    Shards normalise their own batches; running statistics are averaged over all shards.
    """

    def improve_critics(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the critics and their running statistics."""
        shared, metrics = super().improve_critics(shared, batch, key)
        q_params = shared.params.q_params
        online, metrics = self.with_statistics(q_params.online, metrics)
        return shared._replace(params=shared.params._replace(q_params=q_params._replace(online=online))), metrics

    def improve(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the policy, its running statistics and the temperature."""
        shared, metrics = super().improve(shared, batch, key)
        actor_params, metrics = self.with_statistics(shared.params.actor_params, metrics)
        return shared._replace(params=shared.params._replace(actor_params=actor_params)), metrics

    def with_statistics(self, variables: PyTree, metrics: dict[str, PyTree]) -> tuple[PyTree, Metrics]:
        """Move running statistics, averaged over shards, from the metrics of a loss to the variables of a network."""
        others = {name: value for name, value in metrics.items() if name != STATISTICS}
        return pack_params({**unpack(variables), STATISTICS: self.axes.mean(metrics[STATISTICS])}), others

    def critic_loss(self, q_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute squared errors to the soft value of the successor, with both in one batch (figure 2)."""
        inputs, log_prob_t = self.joint_batch(params, batch, key)
        q, updated = self.critics.apply(q_params, *inputs, mutable=STATISTICS)
        q_tm1, q_t = jnp.split(q, 2)
        losses = sac_critic_loss_per_example(
            q_tm1, batch.reward, batch.discount, q_t, log_prob_t, self.temperature(params)
        )
        loss = jnp.mean(batch.weight * losses)
        return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1), **updated}

    def joint_batch(self, params: SACParams, batch: Batch, key: jax.Array) -> tuple[tuple[PyTree, ...], jax.Array]:
        """Return inputs of critics `[2 B, ...]`, both steps, and log-probabilities `[B]` of the successors' actions."""
        pi = self.actor.apply(params.actor_params, batch.next_observation)
        action_t, log_prob_t = pi.sample_and_log_prob(seed=key)
        steps = (batch.observation, batch.action), (batch.next_observation, action_t)
        observations, actions = jax.tree.map(lambda tm1, t: jnp.concatenate([tm1, t]), *steps)
        return self.critic_input(observations, actions), log_prob_t

    def actor_loss(self, actor_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute the negative soft value of the policy, with the running statistics of the critics."""
        pi, updated = self.actor.apply(actor_params, batch.observation, mutable=STATISTICS)
        action, log_prob = pi.sample_and_log_prob(seed=key)
        q = self.value(params, batch.observation, action)[:, None]
        loss = jnp.mean(batch.weight * sac_actor_loss_per_example(log_prob, q, self.temperature(params)))
        return loss, {"actor_loss": loss, "entropy": -jnp.mean(log_prob), **updated}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build CrossQ."""
    return ff_sac.make_variant(config, spec, CrossQ[Config], b1=config.adam_b1)


build, run_experiment, hydra_entry_point = entry_points("sac/ff_crossq", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
