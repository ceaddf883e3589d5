"""Advantage actor-critic with feed-forward networks (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import jax

from stoix_like.base_types import Metrics, System, SystemSpec
from stoix_like.schema import between
from stoix_like.systems.launch import entry_points
from stoix_like.systems.on_policy_actor_critic import ActorCritic, ActorCriticConfig, OnPolicyTransition, assemble
from stoix_like.utils.loss import policy_gradient_loss


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Hyperparameters of A2C.

    Attributes:
        gae_lambda: mixing parameter of n-step advantages; at 1, they are as long as the rollout allows.
    """

    gae_lambda: Annotated[float, between(0.0, 1.0)]


class A2C(ActorCritic):
    """A2C: one step along the policy gradient per rollout."""

    def policy_loss(self, pi: Any, behaviour: Any, batch: OnPolicyTransition) -> tuple[jax.Array, Metrics]:
        """Compute the policy-gradient loss of the advantages (section 4)."""
        del behaviour
        return policy_gradient_loss(pi.log_prob(batch.action), batch.advantage), {}


def build(config: Config, spec: SystemSpec) -> System:
    """Build A2C; see `on_policy_actor_critic.assemble`."""
    return assemble(config, spec, A2C)


run_experiment, hydra_entry_point = entry_points("vpg/ff_a2c", build)

if __name__ == "__main__":
    hydra_entry_point()
