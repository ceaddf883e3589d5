"""Twin delayed deterministic policy gradient with recurrent networks (Ni et al. 2022, arXiv:2110.05038).

The losses of TD3, on replayed sequences; see `systems.off_policy.recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax

from stoix_like.base_types import Distribution, SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.anakin import ff_ddpg, ff_td3
from stoix_like.systems.ddpg.ddpg_types import DDPGParams
from stoix_like.systems.off_policy import recurrent
from stoix_like.systems.parts.exploration import IndependentNoise


@dataclass(frozen=True, kw_only=True)
class Config(ff_ddpg.Config):
    """Hyperparameters of recurrent TD3."""

    network_heads: ClassVar = recurrent.with_cells(ff_ddpg.Config.network_heads)
    replay: recurrent.RecurrentReplayConfig
    smoothing: ff_td3.TargetSmoothing  # target policy smoothing
    exploration: IndependentNoise


class RecurrentTD3(recurrent.RecurrentOffPolicy[Config], ff_ddpg.DDPG[Config]):
    """TD3 on sequences, with recurrent networks."""

    def online_actor(self, params: DDPGParams) -> recurrent.RecurrentParams:
        return params.actor_params.online

    def explore(self, pi: Distribution, key: jax.Array) -> jax.Array:
        """Add normal noise to the actions of the policy."""
        action: jax.Array = pi.mode()
        noise = self.config.exploration.exploration_noise * jax.random.normal(key, action.shape)
        return self.actions.add_noise(action, noise)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build recurrent TD3."""
    smooth = ff_td3.make_smoothing(config.smoothing)
    td3 = ff_ddpg.make_variant(config, spec, RecurrentTD3, num_critics=2, smooth=smooth)
    return recurrent.with_recurrent_networks(td3, spec)


build, run_experiment, hydra_entry_point = entry_points("ddpg/rec_td3", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
