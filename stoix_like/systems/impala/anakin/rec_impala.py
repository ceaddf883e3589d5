"""IMPALA with recurrent networks (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

from dataclasses import dataclass

from stoix_like.base_types import SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.impala.anakin import ff_impala
from stoix_like.systems.on_policy.recurrent import RecurrentConfig, make_recurrent_networks


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentConfig, ff_impala.Config):
    """Hyperparameters of recurrent IMPALA."""


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build IMPALA with recurrent networks; the policy is unrolled from the states of the behaviour policy."""
    return ff_impala.make_algorithm(config, spec, make_recurrent_networks(spec.networks, config.steps_per_sequence))


build, run_experiment, hydra_entry_point = entry_points("impala/rec_impala", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
