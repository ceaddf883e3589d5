"""Recurrent PQN with value decomposition (Gallici et al. 2024, arXiv:2407.04811, section 5.4); see `ff_pqn_vdn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stoix_like.base_types import SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts import recurrent
from stoix_like.systems.parts.mixing import Mixing
from stoix_like.systems.q_learning.anakin import ff_pqn, ff_pqn_vdn, rec_pqn


@dataclass(frozen=True, kw_only=True)
class Config(ff_pqn.Config):
    """Hyperparameters of recurrent PQN with value decomposition."""

    network_heads: ClassVar = rec_pqn.Config.network_heads
    minibatches: rec_pqn.WholeRollouts  # `epochs` passes over each rollout, in `num_minibatches` each
    mixing: Mixing


class RecurrentValueDecomposition(ff_pqn_vdn.ValueDecomposition, rec_pqn.RecurrentPQN):
    """Value decomposition on sequences: what is of rows comes from recurrent PQN."""


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build recurrent PQN with value decomposition."""
    network = recurrent.make_actor(spec.networks.actor_network)
    return ff_pqn_vdn.make_decomposition(config, spec, network, RecurrentValueDecomposition)


build, run_experiment, hydra_entry_point = entry_points("q_learning/rec_pqn_vdn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
