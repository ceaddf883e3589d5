"""DQNReg, a regularised deep Q-network found by search (Co-Reyes et al. 2021, arXiv:2101.03958)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import jax

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.schema import at_least
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.utils.loss import dqn_reg_loss_per_example
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of DQNReg."""

    regularizer_weight: Annotated[float, at_least(0.0)]  # weight of the value of the action taken, in units of value


class DQNReg(ff_dqn.BaseDQN[Config]):
    """DQN with a penalty on the values of the actions taken."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> ff_dqn.Losses:
        """Compute the losses (section 4.2) and the values of the actions `[B]`."""
        online_key, target_key = jax.random.split(key)
        q_tm1 = self.q(params.online, batch.observation, online_key)[0]
        q_t = self.q(params.target, batch.next_observation, target_key)[0]
        weight = self.config.regularizer_weight
        losses = dqn_reg_loss_per_example(q_tm1, batch.action, batch.reward, batch.discount, q_t, weight)
        q_value = values_of_actions(q_tm1, batch.action)
        return losses, {"q_value": q_value, "penalty": weight * q_value}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build DQNReg."""
    return ff_dqn.make_variant(config, spec, DQNReg)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_dqn_reg", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
