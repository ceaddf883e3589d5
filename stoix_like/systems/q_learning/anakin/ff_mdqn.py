"""Munchausen deep Q-networks (Vieillard, Pietquin & Geist 2020, arXiv:2007.14430)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import jax

from stoix_like import cli
from stoix_like.base_types import OnlineAndTarget, System, SystemSpec
from stoix_like.runner import experiment
from stoix_like.schema import Range, above, between
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.systems.q_learning.q_types import QFunction
from stoix_like.utils.loss import munchausen_q_learning, per_item
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.Config):
    """Hyperparameters of Munchausen DQN.

    Attributes:
        entropy_temperature: of the soft policy, in the unit of the values per nat.
        munchausen_coefficient: weight of the policy's own log-probability in the reward.
        clip_value_min: the log-probability, times the temperature, is not let below this, in the unit of the values.
    """

    entropy_temperature: Annotated[float, above(0.0)]
    munchausen_coefficient: Annotated[float, between(0.0, 1.0)]
    clip_value_min: Annotated[float, Range(high=0.0)]


def munchausen_loss(config: Config, q: QFunction, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> jax.Array:
    """Soft one-step errors of a reward raised by the log-probability of the action taken (equation 2).

    Of a window of several steps, that of the first action alone.
    """
    del key
    q_tm1 = q(params.online, batch.observation)[0]
    q_tm1_target = q(params.target, batch.observation)[0]
    q_t_target = q(params.target, batch.next_observation)[0]
    loss = partial(
        munchausen_q_learning,
        entropy_temperature=config.entropy_temperature,
        munchausen_coefficient=config.munchausen_coefficient,
        clip_value_min=config.clip_value_min,
        huber_loss_parameter=config.huber_loss_parameter,
    )
    return per_item(loss)(q_tm1, q_tm1_target, batch.action, batch.reward, batch.discount, q_t_target)


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble Munchausen DQN; see `ff_dqn.assemble`."""
    return ff_dqn.assemble(config, spec, munchausen_loss)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_mdqn")

if __name__ == "__main__":
    hydra_entry_point()
