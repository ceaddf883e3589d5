"""Proximal policy optimisation with recurrent networks (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stoix_like.base_types import SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.recurrent import NETWORK_HEADS, LearnedSequences, make_recurrent_networks
from stoix_like.systems.parts.critic_outputs import with_distributions
from stoix_like.systems.ppo.anakin import ff_ppo


@dataclass(frozen=True, kw_only=True)
class Config(ff_ppo.Config):
    """Hyperparameters of recurrent PPO."""

    networks_per_agent: ClassVar[bool] = False
    network_heads: ClassVar = with_distributions(NETWORK_HEADS)
    sequences: LearnedSequences


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build PPO with recurrent networks."""
    networks = make_recurrent_networks(spec.networks, config.sequences.steps_per_sequence(config.rollout_length))
    return ff_ppo.make_algorithm(config, spec, networks=networks)


build, run_experiment, hydra_entry_point = entry_points("ppo/rec_ppo", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
