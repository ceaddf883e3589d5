"""TD3 with categorical critics and large batches: FastTD3 (Seo et al. 2025, arXiv:2505.22642).

The distribution of returns is that of C51 (Bellemare, Dabney & Munos 2017, arXiv:1707.06887).
"""

from __future__ import annotations

from dataclasses import dataclass

from stoix_like.base_types import System, SystemSpec
from stoix_like.systems.ddpg.anakin import ff_d4pg, ff_ddpg, ff_td3
from stoix_like.systems.distributional import CategoricalCriticsConfig, Reduction, configure_head
from stoix_like.systems.launch import entry_points


@dataclass(frozen=True, kw_only=True)
class Config(ff_td3.Config, ff_d4pg.Config, CategoricalCriticsConfig):
    """Hyperparameters of TD3 with categorical critics."""


class CategoricalTD3(ff_td3.TD3, ff_d4pg.D4PG):
    """TD3 whose twin critics learn the distribution of returns, and whose policy maximises what targets use."""

    config: Config

    @property
    def reduction(self) -> Reduction:
        """How the critics become one, for targets and for the policy."""
        return self.config.reduction


def build(config: Config, spec: SystemSpec) -> System:
    """Build TD3 with categorical critics.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.

    Returns:
        The system.
    """
    head = configure_head(spec.networks.q_network.critic_head, config.support)
    return ff_ddpg.assemble(config, spec, CategoricalTD3, num_critics=2, critic_head=head)


run_experiment, hydra_entry_point = entry_points("ddpg/ff_td3_c51", build)

if __name__ == "__main__":
    hydra_entry_point()
