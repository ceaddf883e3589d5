"""Parallelised Q-networks with recurrent networks (Gallici et al. 2024, arXiv:2407.04811, section 4).

Lambda-returns are computed once per update, as by the feed-forward system. The authors' recurrent one computes them in
every gradient step, from the current parameters, lets sequences start with a window of earlier steps, and reads the
last action, as with `env.observe_last_action=true`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    Acted,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    Trajectory,
)
from stoix_like.errors import ConfigError
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.networks.requirements import ACTION_VALUES, HeadRequirement
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.epochs import MinibatchConfig
from stoix_like.systems.parts import recurrent
from stoix_like.systems.parts.epsilon_greedy import GREEDY, choose_action
from stoix_like.systems.q_learning.anakin import ff_pqn


class WholeRollouts(MinibatchConfig):
    """Hyperparameters of gradient steps on minibatches of environments, with their whole rollouts."""

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that minibatches divide the environments."""
        if num_envs % self.num_minibatches:
            raise ConfigError(
                f"system.num_minibatches={self.num_minibatches} must divide the {num_envs} environments of a shard,"
                f" whose whole rollouts minibatches consist of: use a divisor of {num_envs}"
            )


@dataclass(frozen=True, kw_only=True)
class Config(ff_pqn.Config):
    """Hyperparameters of recurrent PQN, the same as of PQN."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(ACTION_VALUES, layer_norm=True, recurrent=True)
    }
    minibatches: WholeRollouts


class PQNSequences(NamedTuple):
    """Rollouts `[N, T, ...]` with lambda-returns as targets, and the recurrent states `[N, ...]` before them."""

    observation: Observation
    is_first: jax.Array
    action: jax.Array
    target: jax.Array
    first_carry: PyTree


class RecurrentPQN(recurrent.RecurrentStart, ff_pqn.PQN):
    """PQN on sequences; every gradient step unrolls its minibatch from the states of the behaviour policy."""

    def act(self, shared: ff_pqn.PQNShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        epsilon = self.config.exploration.evaluation_epsilon if greedy else self.epsilon(shared.updates)
        inputs = state.timestep.observation, state.timestep.starts_episode
        carry, pi = recurrent.step(self.network, shared.params, state.carry, *inputs, head_kwargs={"epsilon": epsilon})
        return carry, choose_action(pi, epsilon, key), ()

    def inspect(self, shared: ff_pqn.PQNShared, observation: Observation) -> NetworkOutputs:
        pi = recurrent.first_output(self.network, shared.params, observation, head_kwargs=GREEDY)
        return NetworkOutputs(pi, _masked(pi, observation))

    def evaluate(self, params: PyTree, trajectory: Trajectory) -> PQNSequences:
        """Return the sequences of each environment with their lambda-returns."""
        steps, first_carry = trajectory
        observations = steps.observation, steps.is_first, steps.next_observation
        every = len(steps.is_first)
        *_, successor = recurrent.unroll_with_successors(self.network, params, first_carry, *observations, every=every)
        target = self.lambda_returns(params, steps, _masked(successor, steps.next_observation))
        observation, is_first, action, target = jax.tree.map(
            lambda x: jnp.swapaxes(x, 0, 1), (steps.observation, steps.is_first, steps.action, target)
        )
        return PQNSequences(observation, is_first, action, target, first_carry)

    def q_of_batch(self, params: PyTree, batch: PQNSequences) -> jax.Array:
        """Compute the action values `[N, T, A]` of a minibatch."""
        observation, is_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batch.observation, batch.is_first))
        _, pi = recurrent.unroll(self.network, params, batch.first_carry, observation, is_first)
        return jnp.swapaxes(_masked(pi, observation), 0, 1)


def _masked(pi: Any, observation: Observation) -> jax.Array:
    return mask_logits(pi.preferences, observation.action_mask)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build recurrent PQN."""
    return ff_pqn.make_algorithm(config, spec, recurrent.make_actor(spec.networks.actor_network), RecurrentPQN)


build, run_experiment, hydra_entry_point = entry_points("q_learning/rec_pqn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
