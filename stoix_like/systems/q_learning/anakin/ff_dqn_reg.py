"""DQNReg, a regularised deep Q-network found by search (Co-Reyes et al. 2021, arXiv:2101.03958)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import jax

from stoix_like import cli
from stoix_like.base_types import OnlineAndTarget, System, SystemSpec
from stoix_like.runner import experiment
from stoix_like.schema import at_least
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.systems.q_learning.q_types import QFunction
from stoix_like.utils.loss import dqn_reg_loss, per_item
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of DQNReg.

    Attributes:
        regularizer_weight: of the value of the action taken, in the unit of the values.
    """

    regularizer_weight: Annotated[float, at_least(0.0)]


def regularised_q_loss(
    config: Config, q: QFunction, params: OnlineAndTarget, batch: Batch, key: jax.Array
) -> jax.Array:
    """Squared one-step errors with a pull towards low values (section 4.2)."""
    del key
    q_tm1 = q(params.online, batch.observation)[0]
    q_t = q(params.target, batch.next_observation)[0]
    loss = partial(dqn_reg_loss, regularizer_weight=config.regularizer_weight)
    return per_item(loss)(q_tm1, batch.action, batch.reward, batch.discount, q_t)


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble DQNReg; see `ff_dqn.assemble`."""
    return ff_dqn.assemble(config, spec, regularised_q_loss)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_dqn_reg")

if __name__ == "__main__":
    hydra_entry_point()
