"""IMPALA with recurrent networks (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

from dataclasses import dataclass

from stoix_like.base_types import System, SystemSpec
from stoix_like.systems.impala.anakin import ff_impala
from stoix_like.systems.launch import entry_points
from stoix_like.systems.recurrent_actor_critic import RecurrentConfig, make_recurrent_networks


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentConfig, ff_impala.Config):
    """Hyperparameters of recurrent IMPALA."""


def build(config: Config, spec: SystemSpec) -> System:
    """Build IMPALA with recurrent networks; the policy is unrolled from the states of the behaviour policy."""
    return ff_impala.assemble(config, spec, make_recurrent_networks(spec.networks, config.steps_per_sequence))


run_experiment, hydra_entry_point = entry_points("impala/rec_impala", build)

if __name__ == "__main__":
    hydra_entry_point()
