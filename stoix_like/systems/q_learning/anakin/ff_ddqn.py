"""Double deep Q-networks (van Hasselt, Guez & Silver 2016, arXiv:1509.06461)."""

from __future__ import annotations

import jax

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.conservatism import conservative
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.utils.loss import double_q_learning_per_example
from stoix_like.utils.replay import Batch


class DoubleDQN(ff_dqn.BaseDQN[ff_dqn.Config]):
    """DQN that selects the next action with the online parameters and evaluates it with the target parameters."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> ff_dqn.Losses:
        """Compute the losses (equation 4) and the values of the actions `[B]`."""
        online_key, target_key, selector_key = jax.random.split(key, 3)
        q_tm1 = self.q(params.online, batch.observation, online_key)[0]
        q_t_value = self.q(params.target, batch.next_observation, target_key)[0]
        q_t_selector = self.q(params.online, batch.next_observation, selector_key)[0]
        huber = self.config.huber_loss_parameter
        losses = double_q_learning_per_example(
            q_tm1, q_t_value, batch.action, batch.reward, batch.discount, q_t_selector, huber
        )
        return conservative(self.config.conservatism, losses, q_tm1, batch.action)


def make_algorithm(config: ff_dqn.Config, spec: SystemSpec) -> Algorithm:
    """Build double DQN."""
    return ff_dqn.make_variant(config, spec, DoubleDQN)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_ddqn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
