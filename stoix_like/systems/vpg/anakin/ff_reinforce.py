"""REINFORCE with a learned baseline (Williams 1992; Sutton & Barto 2018, section 13.4)."""

from __future__ import annotations

from dataclasses import dataclass

from stoix_like.base_types import SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.actor_critic import make_parts
from stoix_like.systems.on_policy.intrinsic import IntrinsicReward
from stoix_like.systems.parts.advantages import make_advantages, make_return_advantages
from stoix_like.systems.parts.teacher import Kickstarting
from stoix_like.systems.vpg.anakin.ff_a2c import A2C, BaseConfig


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Hyperparameters of REINFORCE."""

    intrinsic_reward: IntrinsicReward
    kickstarting: Kickstarting


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build REINFORCE: the policy gradient of whole returns, with a value function as baseline."""
    gamma = config.gamma
    advantages = make_advantages(gamma, 1.0, vtrace=True) if config.vtrace else make_return_advantages(gamma)
    return A2C(**make_parts(config, spec), advantages=advantages)


build, run_experiment, hydra_entry_point = entry_points("vpg/ff_reinforce", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
