"""Soft actor-critic with categorical critics (C51, Bellemare, Dabney & Munos 2017, arXiv:1707.06887).

With large batches, layer normalisation and `critic_reduction=mean`, where each critic learns its own target and the
policy maximises their mean, this is FastSAC (Seo et al. 2025, arXiv:2512.01996, code: github.com/amazon-far/holosoma).
Theirs adjusts the temperature in every step, this one with the policy; the deviation of their policy is the exponential
of a number in [-5, 0], 0.08 at first, this one's a softplus. The FastSAC of arXiv:2505.22642, which is older,
has scalar critics and the smaller of both targets: that is `sac/ff_sac`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from stoix_like.base_types import Loss, Observation, PyTree, SystemSpec
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE_ATOMS, policy_and_critics
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.distributional import CategoricalCriticsConfig, categorical_loss, configure_head
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of SAC with categorical critics."""

    network_heads: ClassVar = policy_and_critics(
        STOCHASTIC_POLICY, VALUE_ATOMS, ("num_atoms", "vmin", "vmax"), dropout=True
    )
    atoms: CategoricalCriticsConfig
    target: SoftTarget

    def notes(self, action_space: Any) -> tuple[str, ...]:
        entropy = self.atoms.entropy_notes(*self.temperature.initial, self.gamma, action_space)
        return super().notes(action_space) + entropy


class CategoricalSAC(ff_sac.SAC[Config]):
    """SAC with critics that learn the distribution of soft returns."""

    def critic_loss(self, q_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute cross-entropies to the projected soft returns `r + d (Z - alpha log pi)` of the successor."""
        target = params.q_params.target
        (_, logits_t, _), log_prob_t = super().evaluate_policy(params, target, batch.next_observation, key)
        tm1 = self.q_taken(q_params, batch, key)
        reward = batch.reward - batch.discount * self.temperature(params) * log_prob_t
        return categorical_loss(tm1, reward, batch, logits_t, self.config.atoms.reduction)

    def value(self, params: SACParams, observation: Observation, action: jax.Array) -> jax.Array:
        q, _, _ = self.q_values(params.q_params.online, observation, action, None)
        return self.config.atoms.reduction.value(q)

    def evaluate_policy(
        self, params: SACParams, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Compute the value `[B, 1]` of one sampled action per observation, and its log-probability `[B]`."""
        (q, _, _), log_prob = super().evaluate_policy(params, q_params, observation, key)
        return self.config.atoms.reduction.value(q)[:, None], log_prob


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build SAC with categorical critics."""
    head = configure_head(spec.networks.q_network.critic_head, config.atoms.support)
    return ff_sac.make_variant(config, spec, CategoricalSAC, head)


build, run_experiment, hydra_entry_point = entry_points("sac/ff_sac_c51", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
