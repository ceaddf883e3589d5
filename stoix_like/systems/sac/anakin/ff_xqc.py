"""XQC: batch normalisation, weights of norm one and categorical critics (Palenicek et al. 2026, arXiv:2509.25174).

Unlike CrossQ, it has target critics; they normalise their own batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, Observation, PyTree, SystemSpec
from stoix_like.networks.normalisation import STATISTICS
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE_ATOMS, HeadRequirement
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.distributional import MEAN, AtomsConfig, categorical_loss, configure_head
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.anakin.ff_crossq import CrossQ, check_batches
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of XQC."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, batch_norm=True),
        "q_network.critic_head": HeadRequirement(VALUE_ATOMS, ("num_atoms", "vmin", "vmax"), batch_norm=True),
    }
    atoms: AtomsConfig
    target: SoftTarget

    def check(self, num_envs: int, num_shards: int) -> None:
        super().check(num_envs, num_shards)
        check_batches(self.replay.total_batch_size, num_shards)

    def notes(self, action_space: Any) -> tuple[str, ...]:
        entropy = self.atoms.entropy_notes(*self.temperature.initial, self.gamma, action_space)
        return super().notes(action_space) + entropy


class XQC(CrossQ[Config]):
    """CrossQ with target critics, and critics that learn the distribution of soft returns."""

    def critic_loss(self, q_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute cross-entropies to the projected soft returns `r + d (Z - alpha log pi)` of the successor.

        Critics and target critics evaluate both steps in one batch, and normalise it by its statistics. Every critic
        learns the target with the smallest mean before its projection.
        """
        inputs, log_prob_t = self.joint_batch(params, batch, key)
        targets, _ = self.critics.apply(params.q_params.target, *inputs, mutable=STATISTICS)
        outputs, updated = self.critics.apply(q_params, *inputs, mutable=STATISTICS)
        size = len(batch.reward)
        tm1 = jax.tree.map(lambda x: x[:size], outputs)
        q_t, logits_t, _ = jax.tree.map(lambda x: x[size:], targets)
        smallest = jnp.argmin(q_t, axis=-1)[:, None, None]
        logits_t = jnp.broadcast_to(jnp.take_along_axis(logits_t, smallest, axis=-1), logits_t.shape)
        reward = batch.reward - batch.discount * self.temperature(params) * log_prob_t
        loss, metrics = categorical_loss(tm1, reward, batch, logits_t, MEAN)
        return loss, {**metrics, **updated}

    def value(self, params: SACParams, observation: Observation, action: jax.Array) -> jax.Array:
        q, _, _ = self.q_values(params.q_params.online, observation, action, None)
        return jnp.min(q, axis=-1)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build XQC."""
    head = configure_head(spec.networks.q_network.critic_head, config.atoms.support)
    return ff_sac.make_variant(config, spec, XQC, head)


build, run_experiment, hydra_entry_point = entry_points("sac/ff_xqc", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
