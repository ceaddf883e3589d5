"""Double deep Q-networks (van Hasselt, Guez & Silver 2016, arXiv:1509.06461)."""

from __future__ import annotations

from functools import partial

import jax

from stoix_like import cli
from stoix_like.base_types import OnlineAndTarget, System, SystemSpec
from stoix_like.runner import experiment
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.systems.q_learning.q_types import QFunction
from stoix_like.utils.loss import double_q_learning, per_item
from stoix_like.utils.replay import Batch


def double_q_loss(
    config: ff_dqn.Config, q: QFunction, params: OnlineAndTarget, batch: Batch, key: jax.Array
) -> jax.Array:
    """The parameters that learn choose the successor's action, the target parameters value it (equation 4)."""
    del key
    q_tm1 = q(params.online, batch.observation)[0]
    q_t_value = q(params.target, batch.next_observation)[0]
    q_t_selector = q(params.online, batch.next_observation)[0]
    loss = partial(double_q_learning, huber_loss_parameter=config.huber_loss_parameter)
    return per_item(loss)(q_tm1, q_t_value, batch.action, batch.reward, batch.discount, q_t_selector)


def build(config: ff_dqn.Config, spec: SystemSpec) -> System:
    """Assemble double DQN; see `ff_dqn.assemble`."""
    return ff_dqn.assemble(config, spec, double_q_loss)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_ddqn")

if __name__ == "__main__":
    hydra_entry_point()
