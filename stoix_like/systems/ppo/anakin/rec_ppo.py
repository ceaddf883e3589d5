"""Proximal policy optimisation with recurrent networks (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass

from stoix_like.base_types import System, SystemSpec
from stoix_like.systems.launch import entry_points
from stoix_like.systems.on_policy_actor_critic import assemble
from stoix_like.systems.ppo.anakin import ff_ppo
from stoix_like.systems.recurrent_actor_critic import RecurrentActorCritic, RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentConfig, ff_ppo.Config):
    """Hyperparameters of recurrent PPO."""


class RecurrentPPO(RecurrentActorCritic, ff_ppo.PPO):
    """PPO with recurrent networks; its minibatches are sequences."""


def build(config: Config, spec: SystemSpec) -> System:
    """Build recurrent PPO; see `on_policy_actor_critic.assemble`."""
    return assemble(config, spec, RecurrentPPO)


run_experiment, hydra_entry_point = entry_points("ppo/rec_ppo", build)

if __name__ == "__main__":
    hydra_entry_point()
