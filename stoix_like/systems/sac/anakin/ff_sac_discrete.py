"""Soft actor-critic for discrete actions, with exact expectations (Christodoulou 2019, arXiv:1910.07207)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Discrete
from stoix_like.networks.requirements import ACTION_VALUES, STOCHASTIC_POLICY, policy_and_critics
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.systems.sac.temperature import DiscreteTemperature
from stoix_like.utils.loss.common import taken
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of discrete SAC."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    network_heads: ClassVar = policy_and_critics(STOCHASTIC_POLICY, ACTION_VALUES, dropout=True)
    target: SoftTarget
    temperature: DiscreteTemperature


class DiscreteSAC(ff_sac.SAC[Config]):
    """SAC with critics that evaluate all actions at once."""

    def value(self, params: SACParams, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the smallest value `[B, A]` that a critic gives to every action."""
        return jnp.min(self.q_values(params.q_params.online, observation, None, None).preferences, axis=-1)

    def evaluate_policy(
        self, params: SACParams, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Compute the expected value and the negative entropy of the policy (equation 10)."""
        pi = self.actor.apply(params.actor_params, observation)
        q = self.q_values(q_params, observation, None, key).preferences
        value = jnp.sum(pi.probs * jnp.min(q, axis=-1), axis=-1)
        return jnp.broadcast_to(value[:, None], (value.shape[0], q.shape[-1])), -pi.entropy()

    def q_taken(self, q_params: PyTree, batch: Batch, key: jax.Array) -> jax.Array:
        q = self.q_values(q_params, batch.observation, None, jax.random.fold_in(key, 1)).preferences
        return taken(q, batch.action)

    def critic_input(self, observation: Observation, action: jax.Array | None) -> tuple[PyTree, ...]:
        return (observation,)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build discrete SAC."""
    return ff_sac.make_variant(config, spec, DiscreteSAC)


build, run_experiment, hydra_entry_point = entry_points("sac/ff_sac_discrete", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
