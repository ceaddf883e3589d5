"""PQN with value decomposition: the value of a team is the sum of its agents' (Sunehag et al. 2018, arXiv:1706.05296).

Applied to PQN by Gallici et al. 2024 (arXiv:2407.04811, section 5.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, Observation, PyTree, SystemSpec, Trajectory, Transition
from stoix_like.errors import ConfigError
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.mixing import Mixer, Mixing, make_mixer
from stoix_like.systems.q_learning.anakin import ff_pqn
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss import baseline_loss
from stoix_like.utils.loss.common import values_of_actions


@dataclass(frozen=True, kw_only=True)
class Config(ff_pqn.Config):
    """Hyperparameters of PQN with value decomposition."""

    mixing: Mixing


@dataclass(frozen=True)
class ValueDecomposition(ff_pqn.PQN):
    """PQN with the targets, losses and rewards of teams, `Q(s, a) = sum_i Q_i(o_i, a_i)`."""

    num_agents: int  # agents of a game, A, in adjacent rows
    team_reward: bool  # whether the rewards of an agent are already its team's
    mixer: Mixer  # the sum, or another function that grows with the value of each agent

    def init_params(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of the network and of the mixer."""
        params = super().init_params(key, observation)
        return self.mixer.init(params, jax.random.fold_in(key, 1), observation.agent_view)

    def evaluate(self, params: PyTree, trajectory: Trajectory) -> PyTree:
        """Return what minibatches are drawn from: the rows of games `[B, A, ...]`, with the targets of their teams."""
        batch = super().evaluate(params, trajectory)
        return jax.tree.map(lambda x: x.reshape(-1, self.num_agents, *x.shape[1:]), batch)

    def lambda_returns(self, params: PyTree, steps: Transition, q_t: jax.Array) -> jax.Array:
        """Compute the lambda-returns of teams, `[T, N]`, the same for all agents of a game."""
        first = slice(None, None, self.num_agents)
        by_agent = steps.reward.reshape(len(steps.reward), -1, self.num_agents)
        games = steps._replace(
            reward=steps.reward[:, first] if self.team_reward else jnp.sum(by_agent, axis=2),
            terminated=steps.terminated[:, first],
            truncated=steps.truncated[:, first],
        )
        # Greedy agents are a greedy team: its value is largest where each agent's value is.
        value = self.mixer.mix(params, jnp.max(q_t, axis=-1), steps.next_observation.agent_view, 1)
        return jnp.repeat(super().lambda_returns(params, games, value[..., None]), self.num_agents, axis=1)

    def loss(self, params: PyTree, batch: PyTree) -> Loss:
        """Compute half the squared error of the values of teams."""
        rows = jax.tree.map(partial(merge_leading_dims, num_dims=2), batch)
        chosen = values_of_actions(self.q_of_batch(params, rows), rows.action)
        q = self.mixer.mix(params, chosen, rows.observation.agent_view, 0)
        loss = baseline_loss(q, rows.target[:: self.num_agents])
        return loss, {"q_loss": loss, "q_value": jnp.mean(q)}


def make_decomposition(
    config: Any, spec: SystemSpec, network: Any = None, algorithm: type[ValueDecomposition] = ValueDecomposition
) -> Algorithm:
    """Build PQN with value decomposition, or a variant."""
    if config.normalize_rewards and spec.num_agents > 1 and not spec.team_reward:
        raise ConfigError(
            "system.normalize_rewards=true normalises the rewards of each agent, and values are those of the team: set"
            " env.team_reward=true"
        )
    mixer = make_mixer(config.mixing, spec.num_agents)
    of_teams = partial(algorithm, num_agents=spec.num_agents, team_reward=spec.team_reward, mixer=mixer)
    return ff_pqn.make_algorithm(config, spec, network, of_teams)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build PQN with value decomposition."""
    return make_decomposition(config, spec)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_pqn_vdn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
