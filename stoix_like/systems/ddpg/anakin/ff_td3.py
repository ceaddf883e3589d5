"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import jax

from stoix_like.base_types import Observation, SystemSpec
from stoix_like.schema import at_least
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.anakin import ff_ddpg
from stoix_like.utils.loss import target_policy_smoothing


@dataclass(frozen=True, kw_only=True)
class Config(ff_ddpg.Config):
    """Hyperparameters of TD3.

    Attributes:
        policy_noise: standard deviation of the target policy noise, in units of half the action range.
        noise_clip: largest absolute value of this noise, likewise.
    """

    policy_noise: Annotated[float, at_least(0.0)]
    noise_clip: Annotated[float, at_least(0.0)]


class TD3(ff_ddpg.DDPG[Config]):
    """DDPG with target policy smoothing; `build` and the configuration set the twin critics and the delay."""

    def target_action(self, actor_params: Any, observation: Observation, key: jax.Array) -> jax.Array:
        """Compute the actions of the target policy with clipped noise (equation 14)."""
        action = self.policy(actor_params, observation)
        minimum, maximum, unit = self.actions
        noise_scale, noise_clip = self.config.policy_noise * unit, self.config.noise_clip * unit
        return target_policy_smoothing(key, action, noise_scale, noise_clip, minimum, maximum)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build TD3.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.

    Returns:
        The algorithm.
    """
    return ff_ddpg.make_variant(config, spec, TD3, num_critics=2)


build, run_experiment, hydra_entry_point = entry_points("ddpg/ff_td3", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
