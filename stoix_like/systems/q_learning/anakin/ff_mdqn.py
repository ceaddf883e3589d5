"""Munchausen deep Q-networks (Vieillard, Pietquin & Geist 2020, arXiv:2007.14430)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import jax

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.schema import Range, above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.utils.loss import munchausen_q_learning_per_example
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of Munchausen DQN."""

    entropy_temperature: Annotated[float, above(0.0)]  # temperature of the soft policy, in units of value per nat
    munchausen_coefficient: Annotated[float, between(0.0, 1.0)]  # weight of the policy's log-probability in the reward
    clip_value_min: Annotated[float, Range(high=0.0)]  # lower bound of the temperature times the log-probability
    huber_loss_parameter: Annotated[float, at_least(0.0)]  # error above which the loss is linear, in units of value


class MunchausenDQN(ff_dqn.BaseDQN[Config]):
    """DQN with soft targets and rewards augmented by the log-probability of the action taken."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> ff_dqn.Losses:
        """Compute the losses (equation 2) and the values of the actions `[B]`.

        A window of several steps adds only the log-probability of its first action.
        """
        keys = jax.random.split(key, 3)
        q_tm1 = self.q(params.online, batch.observation, keys[0])[0]
        losses = munchausen_q_learning_per_example(
            q_tm1=q_tm1,
            q_tm1_target=self.q(params.target, batch.observation, keys[1])[0],
            a_tm1=batch.action,
            r_t=batch.reward,
            d_t=batch.discount,
            q_t_target=self.q(params.target, batch.next_observation, keys[2])[0],
            entropy_temperature=self.config.entropy_temperature,
            munchausen_coefficient=self.config.munchausen_coefficient,
            clip_value_min=self.config.clip_value_min,
            huber_loss_parameter=self.config.huber_loss_parameter,
        )
        return losses, {"q_value": values_of_actions(q_tm1, batch.action)}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build Munchausen DQN."""
    return ff_dqn.make_variant(config, spec, MunchausenDQN)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_mdqn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
