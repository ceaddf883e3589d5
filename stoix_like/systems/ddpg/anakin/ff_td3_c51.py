"""TD3 with categorical critics and large batches: FastTD3 (Seo et al. 2025, arXiv:2505.22642).

The distribution of returns is as in C51 (Bellemare, Dabney & Munos 2017, arXiv:1707.06887). As in the authors' code,
github.com/younggyoseo/FastTD3, and other than in TD3, there is no target policy: targets take actions of the current
one, and the target critics move in every gradient step. Their code differs in that it stores noisy actions without
clipping them to their range, and that learning rates may fall as a cosine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax

from stoix_like.base_types import Loss, Metrics, Observation, OnlineAndTarget, PyTree, SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.anakin import ff_d4pg, ff_ddpg, ff_td3
from stoix_like.systems.ddpg.ddpg_types import DDPGParams
from stoix_like.systems.off_policy.actor_critic import OffPolicyShared
from stoix_like.systems.parts.distributional import CategoricalCriticsConfig, Reduction, configure_head
from stoix_like.systems.parts.target import NO_TARGET
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_ddpg.Config):
    """Hyperparameters of TD3 with categorical critics."""

    network_heads: ClassVar = ff_d4pg.Config.network_heads
    atoms: CategoricalCriticsConfig
    smoothing: ff_td3.TargetSmoothing  # target policy smoothing


class CategoricalTD3(ff_d4pg.D4PG[Config]):
    """TD3 with twin critics that learn the distribution of returns, without a target policy."""

    @property
    def reduction(self) -> Reduction:
        return self.config.atoms.reduction

    def init_shared(self, key: jax.Array, observation: Observation) -> OffPolicyShared:
        shared = super().init_shared(key, observation)
        actor_params = NO_TARGET.init(shared.params.actor_params.online)
        return shared._replace(params=shared.params._replace(actor_params=actor_params))

    def sgd_step(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the critics and their targets, and every `policy_frequency` steps the policy."""
        shared, metrics = super().sgd_step(shared, batch, key)
        return self.move_target_critics(shared), metrics

    def move_targets(self, params: DDPGParams) -> DDPGParams:
        """Leave the targets of the critics as they are, after a step of the policy."""
        return params

    def critic_loss(self, q_params: PyTree, params: DDPGParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute cross-entropies to the projected target distributions of the current policy."""
        online = params.actor_params.online
        return super().critic_loss(q_params, params._replace(actor_params=OnlineAndTarget(online, online)), batch, key)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build TD3 with categorical critics."""
    head = configure_head(spec.networks.q_network.critic_head, config.atoms.support)
    smooth = ff_td3.make_smoothing(config.smoothing)
    return ff_ddpg.make_variant(config, spec, CategoricalTD3, num_critics=2, critic_head=head, smooth=smooth)


build, run_experiment, hydra_entry_point = entry_points("ddpg/ff_td3_c51", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
