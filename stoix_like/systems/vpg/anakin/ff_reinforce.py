"""REINFORCE with a learned baseline (Williams 1992; Sutton & Barto 2018, section 13.4)."""

from __future__ import annotations

from typing import Any

import jax

from stoix_like.base_types import System, SystemSpec, Transition
from stoix_like.systems.launch import entry_points
from stoix_like.systems.on_policy_actor_critic import ActorCriticConfig, assemble
from stoix_like.systems.vpg.anakin import ff_a2c
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.multistep import batch_discounted_returns


class REINFORCE(ff_a2c.A2C):
    """Policy gradient of whole returns, with a value function as baseline."""

    @property
    def gae_lambda(self) -> Scalar:
        """Mixing parameter of n-step advantages: 1, that of whole returns."""
        return 1.0

    def advantages(
        self, shared: Any, steps: Transition, v_tm1: jax.Array, v_t: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Compute returns minus baselines, and the returns `[T, N]`; by V-trace if configured.

        Returns run to the end of the episode. Where it was truncated, or continues beyond the rollout, the value of the
        true successor stands for the rest.
        """
        if self.config.vtrace:
            return super().advantages(shared, steps, v_tm1, v_t)
        returns = batch_discounted_returns(
            steps.reward,
            self.config.gamma * (1.0 - steps.terminated),
            v_t,
            time_major=True,
            truncation_t=steps.truncated,
        )
        return returns - v_tm1, returns


def build(config: ActorCriticConfig, spec: SystemSpec) -> System:
    """Build REINFORCE; see `on_policy_actor_critic.assemble`."""
    return assemble(config, spec, REINFORCE)


run_experiment, hydra_entry_point = entry_points("vpg/ff_reinforce", build)

if __name__ == "__main__":
    hydra_entry_point()
