"""Soft actor-critic with twin critics (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications").

With more critics, and fewer for the target, this is REDQ (Chen et al. 2021, arXiv:2101.05982); `network=mlp_droq` has
the critics of DroQ (Hiraoka et al. 2022, arXiv:2110.02034).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp

from stoix_like.base_types import System, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.schema import between
from stoix_like.systems.launch import entry_points
from stoix_like.systems.off_policy import OffPolicyConfig
from stoix_like.systems.sac.soft_actor_critic import BaseConfig, SoftActorCritic, assemble


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig, OffPolicyConfig):
    """Hyperparameters of SAC.

    Attributes:
        num_target_critics: number of critics, drawn at random for each gradient step, whose minimum is the target. With
            fewer than `num_critics`, the policy maximises the mean of all critics instead of their minimum.
    """

    num_target_critics: Annotated[int, between(1, 1000)]

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check sizes, and that there are as many critics as the target needs; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        if self.num_target_critics > self.num_critics:
            raise ConfigError(
                f"system.num_target_critics={self.num_target_critics} must not exceed"
                f" system.num_critics={self.num_critics}: use at most {self.num_critics}"
            )


class SAC(SoftActorCritic):
    """SAC whose targets may come from a random subset of the critics."""

    def target_values(self, q_t: jax.Array, key: jax.Array) -> jax.Array:
        """Replace the values `[B, C]` by the minimum of a random subset (REDQ, algorithm 1)."""
        num_target_critics, num_critics = self.config.num_target_critics, self.config.num_critics
        if num_target_critics == num_critics:
            return q_t
        # Folded: the key itself draws the action.
        subset = jax.random.choice(jax.random.fold_in(key, 2), num_critics, (num_target_critics,), replace=False)
        return jnp.broadcast_to(jnp.min(q_t[:, subset], axis=-1, keepdims=True), q_t.shape)

    def policy_values(self, q: jax.Array) -> jax.Array:
        """Replace the values `[B, C]` by their mean `[B, 1]` where targets come from a subset (REDQ, algorithm 1)."""
        if self.config.num_target_critics == self.config.num_critics:
            return q
        return jnp.mean(q, axis=-1, keepdims=True)


def build(config: Config, spec: SystemSpec) -> System:
    """Build SAC; see `soft_actor_critic.assemble`."""
    return assemble(config, spec, SAC)


run_experiment, hydra_entry_point = entry_points("sac/ff_sac", build)

if __name__ == "__main__":
    hydra_entry_point()
