"""Quantile regression deep Q-networks (Dabney et al. 2018, arXiv:1710.10044)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp

from stoix_like import cli
from stoix_like.base_types import OnlineAndTarget, System, SystemSpec
from stoix_like.networks.heads import quantile_levels
from stoix_like.runner import experiment
from stoix_like.schema import at_least
from stoix_like.systems.off_policy import with_head
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.systems.q_learning.q_types import QFunction
from stoix_like.utils.loss import per_item, quantile_q_learning
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.Config):
    """Hyperparameters of QR-DQN.

    Attributes:
        num_quantiles: quantiles of each action's return.
    """

    num_quantiles: Annotated[int, at_least(1)]


def quantile_loss(config: Config, q: QFunction, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> jax.Array:
    """Quantile regression towards the distribution of the greedy action (algorithm 1)."""
    del key
    _, dist_tm1 = q(params.online, batch.observation)
    q_t, dist_t = q(params.target, batch.next_observation)
    levels = jnp.broadcast_to(jnp.asarray(quantile_levels(config.num_quantiles)), dist_tm1.shape[:2])
    loss = partial(quantile_q_learning, huber_param=config.huber_loss_parameter)
    discounted = batch.action, batch.reward, batch.discount
    # The means choose the action: of one quantile, the mean is the quantile.
    return per_item(loss)(dist_tm1, levels, *discounted, q_t[:, None], dist_t)


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble QR-DQN; see `ff_dqn.assemble`."""
    return ff_dqn.assemble(config, with_head(spec, {"num_quantiles": config.num_quantiles}), quantile_loss)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_qr_dqn")

if __name__ == "__main__":
    hydra_entry_point()
