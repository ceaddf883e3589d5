"""IMPALA with recurrent networks (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stoix_like.base_types import SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.impala.anakin import ff_impala
from stoix_like.systems.on_policy.intrinsic import IntrinsicReward
from stoix_like.systems.on_policy.recurrent import NETWORK_HEADS, LearnedSequences, make_recurrent_networks
from stoix_like.systems.parts.teacher import Kickstarting
from stoix_like.systems.vpg.anakin import ff_a2c


@dataclass(frozen=True, kw_only=True)
class Config(ff_a2c.BaseConfig):
    """Hyperparameters of recurrent IMPALA."""

    network_heads: ClassVar = NETWORK_HEADS
    gradients: ff_impala.RMSPropGradients  # gradient descent
    targets: ff_impala.VTrace  # values and advantages
    sequences: LearnedSequences
    intrinsic_reward: IntrinsicReward
    kickstarting: Kickstarting


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build IMPALA with recurrent networks; the policy is unrolled from the states of the behaviour policy."""
    networks = make_recurrent_networks(spec.networks, config.sequences.steps_per_sequence(config.rollout_length))
    return ff_impala.make_variant(config, spec, networks)


build, run_experiment, hydra_entry_point = entry_points("impala/rec_impala", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
