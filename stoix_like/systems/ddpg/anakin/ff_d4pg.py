"""Distributional deterministic policy gradient with n-step targets (Barth-Maron et al. 2018, arXiv:1804.08617).

Parallel environments replace the paper's distributed actors. Prioritised replay is omitted: it did not help on simple
tasks (section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax

from stoix_like.base_types import Loss, Observation, PyTree, SystemSpec
from stoix_like.networks.requirements import DETERMINISTIC_POLICY, VALUE_ATOMS, policy_and_critics
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.anakin import ff_ddpg
from stoix_like.systems.ddpg.ddpg_types import DDPGParams
from stoix_like.systems.parts.distributional import MEAN, AtomsConfig, Reduction, categorical_loss, configure_head
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_ddpg.Config):
    """Hyperparameters of D4PG."""

    network_heads: ClassVar = policy_and_critics(DETERMINISTIC_POLICY, VALUE_ATOMS, ("num_atoms", "vmin", "vmax"))
    atoms: AtomsConfig


class D4PG(ff_ddpg.DDPG[ff_ddpg.ConfigT]):
    """DDPG with critics that learn the distribution of returns; D4PG has a single one."""

    @property
    def reduction(self) -> Reduction:
        """Objective of the policy and targets of the critics."""
        return MEAN

    def critic_loss(self, q_params: PyTree, params: DDPGParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute cross-entropies to the projected target distributions (equation 4, algorithm 1)."""
        action = self.target_action(params.actor_params.target, batch.next_observation, key)
        _, logits_t, _ = self.distribution(params.q_params.target, batch.next_observation, action)
        tm1 = self.distribution(q_params, batch.observation, batch.action)
        return categorical_loss(tm1, batch.reward, batch, logits_t, self.reduction)

    def q_values(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the means `[B, 1]` of the return distributions."""
        return self.reduction.value(self.distribution(q_params, observation, action)[0])[:, None]

    def distribution(self, q_params: PyTree, observation: Observation, action: jax.Array) -> PyTree:
        """Compute means `[B, C]`, logits and atoms `[B, K, C]` of the critics."""
        return self.critics.apply(q_params, observation, {"action": action})


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build D4PG."""
    head = configure_head(spec.networks.q_network.critic_head, config.atoms.support)
    return ff_ddpg.make_variant(config, spec, D4PG, critic_head=head)


build, run_experiment, hydra_entry_point = entry_points("ddpg/ff_d4pg", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
