"""Soft actor-critic with recurrent networks (Ni, Eysenbach & Salakhutdinov 2022, arXiv:2110.05038).

The losses of SAC, on replayed sequences; see `systems.off_policy.recurrent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from stoix_like.base_types import Distribution, SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy import recurrent
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams, TargetCritics


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of recurrent SAC."""

    network_heads: ClassVar = recurrent.with_cells(ff_sac.BaseConfig.network_heads)
    replay: recurrent.RecurrentReplayConfig
    target: SoftTarget
    ensemble: TargetCritics  # which critics make targets
    noise_correlation: Literal[0] = 0  # none; the carry is the recurrent state


class RecurrentSAC(recurrent.RecurrentOffPolicy[Config], ff_sac.SAC[Config]):
    """SAC on sequences, with recurrent networks."""

    def online_actor(self, params: SACParams) -> recurrent.RecurrentParams:
        return params.actor_params

    def explore(self, pi: Distribution, key: jax.Array) -> jax.Array:
        """Sample an action for each environment."""
        return pi.sample(seed=key)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build recurrent SAC."""
    return recurrent.with_recurrent_networks(ff_sac.make_variant(config, spec, RecurrentSAC), spec)


build, run_experiment, hydra_entry_point = entry_points("sac/rec_sac", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
