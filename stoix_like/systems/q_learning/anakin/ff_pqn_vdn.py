"""PQN with value decomposition: the value of a team is the sum of its agents' (Sunehag et al. 2018, arXiv:1706.05296).

Applied to PQN by Gallici et al. 2024 (arXiv:2407.04811, section 5.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, PyTree, SystemSpec, Trajectory, Transition
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.q_learning.anakin import ff_pqn
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss import baseline_loss
from stoix_like.utils.loss.common import values_of_actions


@dataclass(frozen=True)
class ValueDecomposition(ff_pqn.PQN):
    """PQN whose targets and losses are those of teams, `Q(s, a) = sum_i Q_i(o_i, a_i)`; its rewards are those of teams.

    Attributes:
        num_agents: agents of a game, A, whose rows stand together.
        team_reward: whether the rewards of an agent are already those of its team.
    """

    num_agents: int
    team_reward: bool

    def evaluate(self, params: PyTree, trajectory: Trajectory) -> PyTree:
        """Return what minibatches are drawn from: the rows of games `[B, A, ...]`, with the targets of their teams."""
        batch = super().evaluate(params, trajectory)
        return jax.tree.map(lambda x: x.reshape(-1, self.num_agents, *x.shape[1:]), batch)

    def lambda_returns(self, steps: Transition, q_t: jax.Array) -> jax.Array:
        """Compute the lambda-returns of teams, `[T, N]`, the same for all agents of a game."""
        reward = steps.reward[:, :: self.num_agents] if self.team_reward else self.sum_over_agents(steps.reward, axis=1)
        games = steps._replace(
            reward=reward,
            terminated=steps.terminated[:, :: self.num_agents],
            truncated=steps.truncated[:, :: self.num_agents],
        )
        # Each agent's greedy action is that of the team: the sum is largest where each of its terms is.
        value = self.sum_over_agents(jnp.max(q_t, axis=-1), axis=1)
        return jnp.repeat(super().lambda_returns(games, value[..., None]), self.num_agents, axis=1)

    def sum_over_agents(self, rows: jax.Array, axis: int) -> jax.Array:
        """Sum over the agents of each game, whose rows are entries of an axis."""
        shape = *rows.shape[:axis], -1, self.num_agents, *rows.shape[axis + 1 :]
        return jnp.sum(rows.reshape(shape), axis=axis + 1)

    def loss(self, params: PyTree, batch: PyTree) -> Loss:
        """Compute half the squared error of the values of teams."""
        rows = jax.tree.map(partial(merge_leading_dims, num_dims=2), batch)
        chosen = values_of_actions(self.q_of_batch(params, rows), rows.action)
        q = self.sum_over_agents(chosen, axis=0)
        loss = baseline_loss(q, rows.target[:: self.num_agents])
        return loss, {"q_loss": loss, "q_value": jnp.mean(q)}


def make_algorithm(
    config: ff_pqn.Config,
    spec: SystemSpec,
    network: Any = None,
    algorithm: type[ValueDecomposition] = ValueDecomposition,
) -> Algorithm:
    """Build PQN with value decomposition; see `ff_pqn.make_algorithm`."""
    of_games = partial(algorithm, num_agents=spec.num_agents, team_reward=spec.team_reward)
    return ff_pqn.make_algorithm(config, spec, network, of_games)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_pqn_vdn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
