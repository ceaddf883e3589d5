"""REPPO with discrete actions and exact expectations (Voelcker et al. 2025, arXiv:2507.11019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Discrete
from stoix_like.networks.distributions.masks import mean_uniform_entropy
from stoix_like.networks.requirements import ACTION_VALUE_ATOMS, STOCHASTIC_POLICY, policy_and_critics
from stoix_like.schema import Range
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.reppo.anakin import ff_reppo
from stoix_like.systems.reppo.reppo_types import REPPOTransition, SoftValue
from stoix_like.utils.jax_utils import Scalar


@dataclass(frozen=True, kw_only=True)
class Config(ff_reppo.Config):
    """Hyperparameters of discrete REPPO."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    network_heads: ClassVar = policy_and_critics(STOCHASTIC_POLICY, ACTION_VALUE_ATOMS, ("num_atoms", "vmin", "vmax"))
    target_entropy_scale: Annotated[float, Range(0.0, 1.0, without_high=True)]  # share of the uniform policy's entropy


class DiscreteREPPO(ff_reppo.REPPO):
    """REPPO with a critic that evaluates all actions at once."""

    def target_entropy(self, observation: Observation) -> Scalar:
        """Return the mean over a batch of `target_entropy_scale` times the entropy of the uniform legal policy."""
        entropy = mean_uniform_entropy(self.action_space.n, observation.action_mask)
        return self.config.target_entropy_scale * entropy

    def value(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the mean values `[..., A]` of all actions."""
        return self.output(q_params, observation, None)[0].preferences

    def evaluate_policy(
        self, actor_params: PyTree, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> SoftValue:
        """Compute the expected value of the policy, and its negative entropy."""
        pi = self.actor.apply(actor_params, observation)
        q = jnp.sum(pi.probs * self.output(q_params, observation, None)[0].preferences, axis=-1)
        return SoftValue(pi, q, -pi.entropy())

    def taken(self, q_params: PyTree, batch: REPPOTransition) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Compute means `[B]`, logits and atoms `[B, K]` of the actions taken."""
        policy, logits, atoms = self.output(q_params, batch.observation, None)

        def select(x: jax.Array) -> jax.Array:
            return x[jnp.arange(len(batch.action)), batch.action]

        return select(policy.preferences), select(logits), atoms

    def critic_input(self, observation: Observation, action: jax.Array | None) -> tuple[PyTree, ...]:
        return (observation,)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build discrete REPPO."""
    return ff_reppo.make_algorithm(config, spec, DiscreteREPPO)


build, run_experiment, hydra_entry_point = entry_points("reppo/ff_reppo_discrete", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
