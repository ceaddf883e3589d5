"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from stoix_like import cli
from stoix_like.base_types import Observation, System, SystemSpec
from stoix_like.runner import experiment
from stoix_like.schema import at_least
from stoix_like.systems.ddpg.anakin import ff_ddpg


@dataclass(frozen=True, kw_only=True)
class Config(ff_ddpg.Config):
    """Hyperparameters of TD3.

    Attributes:
        policy_noise: standard deviation of the noise on the target policy, in half the width of the actions' range.
        noise_clip: largest absolute value of that noise, likewise.
    """

    policy_noise: Annotated[float, at_least(0.0)]
    noise_clip: Annotated[float, at_least(0.0)]


class TD3(ff_ddpg.DDPG):
    """DDPG with a smoothed target policy; the least of twin critics and the delay are a matter of its sizes."""

    def target_action(self, actor_params: Any, observation: Observation, key: jax.Array) -> jax.Array:
        """The target policy's action with clipped noise (equation 14)."""
        action = self.policy(actor_params, observation)
        noise = self.config.policy_noise * jax.random.normal(key, action.shape)
        return self.perturbed(action, jnp.clip(noise, -self.config.noise_clip, self.config.noise_clip))


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble TD3.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.

    Returns:
        The system.
    """
    return ff_ddpg.build(config, spec, TD3, num_critics=2)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "ddpg/ff_td3")

if __name__ == "__main__":
    hydra_entry_point()
