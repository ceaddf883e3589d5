"""Quantile regression deep Q-networks (Dabney et al. 2018, arXiv:1710.10044)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.networks.heads import quantile_levels
from stoix_like.networks.requirements import ACTION_VALUE_QUANTILES, HeadRequirement
from stoix_like.schema import at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.distributional import configure_head
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.utils.loss import quantile_q_learning_per_example
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of QR-DQN."""

    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUE_QUANTILES, ("num_quantiles",))}
    num_quantiles: Annotated[int, between(1, 100_000)]  # number of quantiles per action
    huber_loss_parameter: Annotated[float, at_least(0.0)]  # error above which the loss is linear, in units of value


class QRDQN(ff_dqn.BaseDQN[Config]):
    """DQN that learns quantiles of returns."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> ff_dqn.Losses:
        """Compute the losses and the values of the actions `[B]`.

        The losses are quantile regressions towards the return of the greedy action (algorithm 1).
        """
        online_key, target_key = jax.random.split(key)
        q_tm1, dist_tm1 = self.q(params.online, batch.observation, online_key)
        q_t, dist_t = self.q(params.target, batch.next_observation, target_key)
        levels = jnp.broadcast_to(jnp.asarray(quantile_levels(self.config.num_quantiles)), dist_tm1.shape[:2])
        # The mean over quantiles selects the action.
        selector = q_t[:, None]
        huber = self.config.huber_loss_parameter
        losses = quantile_q_learning_per_example(
            dist_tm1, levels, batch.action, batch.reward, batch.discount, selector, dist_t, huber
        )
        return losses, {"q_value": values_of_actions(q_tm1, batch.action)}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build QR-DQN."""
    head = configure_head(spec.networks.actor_network.action_head, {"num_quantiles": config.num_quantiles})
    return ff_dqn.make_variant(config, spec, QRDQN, head)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_qr_dqn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
