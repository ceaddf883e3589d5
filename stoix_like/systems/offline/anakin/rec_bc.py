"""Behavioural cloning with recurrent networks; the first steps of each sequence bring the state up to date."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax

from stoix_like.base_types import (
    Acted,
    Agent,
    Loss,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SystemSpec,
    Trajectory,
)
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.recurrent import RecurrentReplayConfig, with_cells
from stoix_like.systems.offline.anakin import bc
from stoix_like.systems.parts import recurrent
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.replay import SequenceBatch, make_sequence_replay


@dataclass(frozen=True, kw_only=True)
class CloningSequences(RecurrentReplayConfig):
    """Hyperparameters of the sequences that are imitated."""

    store_next_observation: Literal[False] = False  # never; no successors are read

    @property
    def num_steps(self) -> int:
        return self.burn_in_length + self.sequence_length


@dataclass(frozen=True, kw_only=True)
class Config(bc.BaseConfig):
    """Hyperparameters of recurrent behavioural cloning."""

    network_heads: ClassVar = with_cells(bc.Config.network_heads)
    replay: CloningSequences


class RecurrentBC(recurrent.RecurrentStart, bc.BC[Config]):
    """Behavioural cloning on sequences, with a recurrent network."""

    def act(self, shared: bc.CloningShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Sample an action for each environment, or take the mode; the extras are the state before it."""
        timestep, observation = state.timestep, self.normalizer.apply(shared.statistics, state.timestep.observation)
        carry, pi = recurrent.step(self.network, shared.params, state.carry, observation, timestep.starts_episode)
        return carry, pi.mode() if greedy else pi.sample(seed=key), state.carry

    def inspect(self, shared: bc.CloningShared, observation: Observation) -> NetworkOutputs:
        observation = self.normalizer.apply(shared.statistics, observation)
        return NetworkOutputs(recurrent.first_output(self.network, shared.params, observation), None)

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return jax.tree.map(partial(merge_leading_dims, num_dims=2), self.draw(agent.local, key).steps.observation)

    def draw(self, local: PyTree, key: jax.Array) -> SequenceBatch:
        return self.replay.sample(local, key, 1.0)

    def loss(self, params: PyTree, batch: SequenceBatch, statistics: PyTree) -> Loss:
        """Compute the loss of the steps after the burn-in."""
        first = self.config.replay.burn_in_length
        observation = self.normalizer.apply(statistics, batch.steps.observation)
        state, observation, is_first, _ = recurrent.burn_in(
            self.network, params, batch.carry, observation, batch.is_first, None, first
        )
        _, pi = recurrent.unroll(self.network, params, state, observation, is_first, every=len(is_first))
        return self.imitation_loss(pi, batch.steps.action[first:])


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build recurrent behavioural cloning; the floats of the hyperparameters may be traced."""
    network = recurrent.make_actor(spec.networks.actor_network)
    carry = jax.tree.map(lambda x: x[0], network.initialize_carry(1))
    return bc.make_variant(config, spec, RecurrentBC, network, make_sequence_replay(config.replay, spec, carry))


build, run_experiment, hydra_entry_point = entry_points("offline/rec_bc", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
