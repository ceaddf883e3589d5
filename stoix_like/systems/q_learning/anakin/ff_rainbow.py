"""Rainbow (Hessel et al. 2018, arXiv:1710.02298): double, dueling, noisy, n-step, distributional and prioritised.

Priorities are the cross-entropies of the loss; the KL divergences of the paper differ by the entropy of the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.networks.requirements import ACTION_VALUE_ATOMS, HeadRequirement
from stoix_like.schema import at_least
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.distributional import AtomsConfig, configure_head
from stoix_like.systems.q_learning.anakin import ff_c51, ff_dqn
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of Rainbow."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(ACTION_VALUE_ATOMS, ("num_atoms", "vmin", "vmax", "sigma_zero"))
    }
    atoms: AtomsConfig
    sigma_zero: Annotated[float, at_least(0.0)]  # initial scale of the parameter noise


class Rainbow(ff_c51.C51[Config]):
    """C51 with double targets; the configuration adds noisy dueling layers and priorities."""

    def selector(self, params: OnlineAndTarget, batch: Batch, q_t: jax.Array, key: jax.Array) -> jax.Array:
        """Return the online values `[B, A]`, which choose the greedy action of the successor."""
        return self.q(params.online, batch.next_observation, key)[0]


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build Rainbow."""
    hyperparams = config.atoms.support | {"sigma_zero": config.sigma_zero}
    head = configure_head(spec.networks.actor_network.action_head, hyperparams)
    return ff_dqn.make_variant(config, spec, Rainbow, head)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_rainbow", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
