"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, Observation, PyTree, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE_QUANTILES, policy_and_critics
from stoix_like.schema import at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.distributional import configure_head
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.loss import quantile_critic_loss_per_example, truncate_quantiles
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of TQC."""

    network_heads: ClassVar = policy_and_critics(STOCHASTIC_POLICY, VALUE_QUANTILES, ("num_quantiles",), dropout=True)
    target: SoftTarget
    num_quantiles: Annotated[int, between(1, 100_000)]  # number of quantiles per critic
    num_dropped_quantiles: Annotated[int, between(0, 99_999)]  # largest quantiles left out of the target, per critic
    huber_loss_parameter: Annotated[float, at_least(0.0)]  # error below which the loss is quadratic, in units of value

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check sizes, and that quantiles remain."""
        super().check(num_envs, num_shards)
        if self.num_dropped_quantiles >= self.num_quantiles:
            raise ConfigError(
                f"system.num_dropped_quantiles={self.num_dropped_quantiles} must be less than"
                f" system.num_quantiles={self.num_quantiles}: use at most {self.num_quantiles - 1}"
            )


class TQC(ff_sac.SAC[Config]):
    """SAC with critics that learn quantiles of returns, and targets that leave out the largest ones."""

    def critic_loss(self, q_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute the quantile regression losses towards the truncated soft returns of the successor (equation 13)."""
        (dist_t, _), log_prob_t = super().evaluate_policy(params, params.q_params.target, batch.next_observation, key)
        dist_tm1, levels = self.q_taken(q_params, batch, key)
        losses = quantile_critic_loss_per_example(
            dist_tm1,
            levels[..., 0],
            batch.reward,
            batch.discount,
            truncate_quantiles(dist_t, self.config.num_dropped_quantiles),
            log_prob_t,
            self.temperature(params),
            self.config.huber_loss_parameter,
        )
        loss = jnp.mean(batch.weight * losses)
        return loss, {"q_loss": loss, "q_value": jnp.mean(dist_tm1)}

    def value(self, params: SACParams, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the mean over all quantiles of the value of each action."""
        dist, _ = self.q_values(params.q_params.online, observation, action, None)
        return jnp.mean(dist, axis=(1, 2))

    def evaluate_policy(
        self, params: SACParams, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Estimate the value `[B, 1]`, the mean over all quantiles of all critics (equation 14), and the entropy."""
        (dist, _), log_prob = super().evaluate_policy(params, q_params, observation, key)
        return jnp.mean(dist, axis=(1, 2))[:, None], log_prob


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build TQC."""
    head = configure_head(spec.networks.q_network.critic_head, {"num_quantiles": config.num_quantiles})
    return ff_sac.make_variant(config, spec, TQC, head)


build, run_experiment, hydra_entry_point = entry_points("sac/ff_tqc", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
