"""Discovered policy optimisation (Lu et al. 2022, arXiv:2210.05639)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stoix_like.base_types import Distribution, Loss, SystemSpec
from stoix_like.schema import above
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.actor_critic import OnPolicyShared
from stoix_like.systems.on_policy.networks import OnPolicyTransition
from stoix_like.systems.ppo.anakin import ff_ppo
from stoix_like.utils.loss import approximate_kl_per_example, dpo_loss_per_example


@dataclass(frozen=True, kw_only=True)
class Config(ff_ppo.Config):
    """Hyperparameters of DPO; `clip_eps` limits only the value change."""

    alpha: Annotated[float, above(0.0)]  # width of the drift for positive advantages, in the unit of the advantages
    beta: Annotated[float, above(0.0)]  # width of the drift for negative advantages, likewise


class DPO(ff_ppo.PPO[Config]):
    """PPO with the discovered drift function in place of the clipped ratio."""

    def policy_loss(self, pi: Distribution, behaviour: OnPolicyShared, batch: OnPolicyTransition) -> Loss:
        """Compute the surrogate losses with their drift (section 5)."""
        log_prob, config = pi.log_prob(batch.action), self.config
        losses = dpo_loss_per_example(log_prob, batch.log_prob, batch.advantage, config.alpha, config.beta)
        return losses, {"approx_kl": approximate_kl_per_example(log_prob, batch.log_prob)}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build DPO."""
    return ff_ppo.make_algorithm(config, spec, DPO)


build, run_experiment, hydra_entry_point = entry_points("ppo/ff_dpo", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
