"""Categorical deep Q-networks, C51 (Bellemare, Dabney & Munos 2017, arXiv:1707.06887)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.networks.requirements import ACTION_VALUE_ATOMS, HeadRequirement
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.distributional import AtomsConfig, configure_head
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.utils.accelerate.columns import argmax
from stoix_like.utils.loss import categorical_double_q_learning, clipped_probability
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of C51."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(
            ACTION_VALUE_ATOMS, ("num_atoms", "vmin", "vmax"), optional=("sigma_zero",)
        )
    }
    atoms: AtomsConfig


class C51(ff_dqn.BaseDQN[ff_dqn.ConfigT]):
    """DQN that learns the distribution of returns."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> ff_dqn.Losses:
        """Compute the losses and the values of the actions `[B]`.

        The losses are cross-entropies to the projected target distribution of the greedy action (algorithm 1).
        """
        online_key, target_key, selector_key = jax.random.split(key, 3)
        q_tm1, logits_tm1, atoms_tm1 = self.q(params.online, batch.observation, online_key)
        q_t, logits_t, atoms_t = self.q(params.target, batch.next_observation, target_key)
        selector = self.selector(params, batch, q_t, selector_key)
        losses = categorical_double_q_learning(
            logits_tm1, atoms_tm1, batch.action, batch.reward, batch.discount, logits_t, atoms_t, selector
        )
        greedy = argmax(selector)[:, None, None]
        probs_t = jax.nn.softmax(jnp.take_along_axis(logits_t, greedy, axis=1)[:, 0])
        clipped = clipped_probability(batch.reward, batch.discount, atoms_t, probs_t)
        return losses, {"q_value": values_of_actions(q_tm1, batch.action), "clipped_targets": clipped}

    def selector(self, params: OnlineAndTarget, batch: Batch, q_t: jax.Array, key: jax.Array) -> jax.Array:
        """Return the values `[B, A]` by which the greedy action of the successor is chosen: the target's, `q_t`."""
        return q_t


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build C51."""
    return ff_dqn.make_variant(
        config, spec, C51, configure_head(spec.networks.actor_network.action_head, config.atoms.support)
    )


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_c51", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
