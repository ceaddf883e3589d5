"""Recurrent replay distributed DQN (Kapturowski et al. 2019, openreview.net/forum?id=r1lyTjAqYX).

Double Q-learning of n-step returns on replayed sequences, on a rescaled value scale. The recurrent state before each
sequence is the behaviour policy's, brought up to date by a burn-in with the current parameters. All environments
explore alike, with a share of random actions that is annealed; the actors of the paper have shares of their own, from
0.4 to 7e-4, and compute the first priority of a sequence, which is the largest so far here. Sequences may cross the end
of an episode. The paper's network also reads the last action and reward: set `env.observe_last_action` and
`env.observe_last_reward`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import rlax

from stoix_like.base_types import (
    Acted,
    Agent,
    NetworkOutputs,
    Observation,
    OnlineAndTarget,
    PyTree,
    RolloutState,
    SystemSpec,
    Trajectory,
)
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.networks.requirements import ACTION_VALUES, HeadRequirement
from stoix_like.schema import between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts import recurrent
from stoix_like.systems.parts.epsilon_greedy import GREEDY, choose_action
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.utils.accelerate.columns import argmax
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.multistep import batch_n_step_bootstrapped_returns, batch_transformed_n_step_returns
from stoix_like.utils.replay import SequenceBatch, SequenceReplayConfig, Step, make_sequence_replay
from stoix_like.utils.replay.data import with_clipped_rewards
from stoix_like.utils.replay.sequences import PrioritisedBlockConfig
from stoix_like.utils.scales import signed_hyperbolic, signed_parabolic


@dataclass(frozen=True, kw_only=True)
class R2D2Replay(PrioritisedBlockConfig, SequenceReplayConfig):
    """Hyperparameters of the replay buffer."""

    prioritised: bool = True

    def importance_exponent(self, updates: jax.Array, num_updates: int) -> Scalar:
        """Return the exponent of the importance weights, which is constant."""
        return self.importance_sampling_exponent


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of R2D2."""

    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUES, recurrent=True)}
    replay: R2D2Replay
    rescale_values: bool  # whether values are learned on the scale h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x
    max_priority_weight: Annotated[float, between(0.0, 1.0)]  # weight of the largest error; the mean has the rest


class R2D2(recurrent.RecurrentStart, ff_dqn.BaseDQN[Config]):
    """DQN on sequences, with a recurrent network."""

    def act(self, shared: ff_dqn.QShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose the greedy action, or a random one with probability epsilon; the extras are the state before it."""
        epsilon = self.config.exploration.evaluation_epsilon if greedy else self.epsilon(shared.updates)
        params, timestep = shared.params.online, state.timestep
        inputs = timestep.observation, timestep.starts_episode
        carry, pi = recurrent.step(self.network, params, state.carry, *inputs, head_kwargs={"epsilon": epsilon})
        return carry, choose_action(pi, epsilon, key), state.carry

    def inspect(self, shared: ff_dqn.QShared, observation: Observation) -> NetworkOutputs:
        """Return the greedy policy, and the action values of first observations `[B, ...]`, in units of return."""
        pi = recurrent.first_output(self.network, shared.params.online, observation, head_kwargs=GREEDY)
        return NetworkOutputs(pi, mask_logits(self.scale.apply_inv(pi.preferences), observation.action_mask))

    @property
    def scale(self) -> rlax.TxPair:
        """The scale that values are learned on."""
        return rlax.TxPair(signed_hyperbolic, signed_parabolic) if self.config.rescale_values else rlax.IDENTITY_PAIR

    def losses(self, params: OnlineAndTarget, batch: SequenceBatch, key: jax.Array) -> ff_dqn.Losses:
        """Compute the losses, and the values of the actions on the scale that they are learned on, `[T, B]`.

        The losses are half the squared errors to transformed n-step returns; zero where there is no target.
        """
        q_tm1, q_t_selector, q_t_value = self.values_of_both(params, batch)
        first = self.config.replay.burn_in_length
        steps = jax.tree.map(lambda x: x[first : first + len(q_tm1)], batch.steps)
        discount, v_t = self.config.gamma * (1.0 - steps.terminated), values_of_actions(q_t_value, argmax(q_t_selector))
        inputs = steps.reward, discount, v_t, self.config.replay.n_step, self.scale
        target = batch_transformed_n_step_returns(*inputs, truncation_t=steps.truncated, time_major=True)
        values = values_of_actions(q_tm1, steps.action)
        return 0.5 * self.has_target(steps) * jnp.square(target - values), {"q_value": values}

    def values_of_both(self, params: OnlineAndTarget, batch: SequenceBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Compute `values_of_sequences`, and target values at the successors; on accelerators, both in one loop."""
        online, target = unpack(params)
        if on_cpu():
            return *self.values_of_sequences(online, batch), self.values_of_sequences(target, batch)[1]
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), online, jax.lax.stop_gradient(target))
        q_tm1, q_t = jax.vmap(self.values_of_sequences, (0, None))(both, batch)
        return q_tm1[0], *q_t

    def values_of_sequences(self, params: PyTree, batch: SequenceBatch) -> tuple[jax.Array, jax.Array]:
        """Compute action values `[T, B, A]` at the observations after the burn-in, and at their true successors."""
        inputs = batch.steps.observation, batch.is_first, batch.steps.next_observation
        carry, observation, is_first, next_observation = recurrent.burn_in(
            self.network, params, batch.carry, *inputs, self.config.replay.burn_in_length
        )
        if next_observation is None:
            _, pi = recurrent.unroll(self.network, params, carry, observation, is_first)
            q = mask_logits(pi.preferences, observation.action_mask)
            return q[:-1], q[1:]
        _, pi, pi_t = recurrent.unroll_with_successors(
            self.network, params, carry, observation, is_first, next_observation, every=len(is_first)
        )
        return (
            mask_logits(pi.preferences, observation.action_mask),
            mask_logits(pi_t.preferences, next_observation.action_mask),
        )

    def has_target(self, steps: Step) -> jax.Array:
        """Return one for steps `[T, B]` with a target, zero for steps without a stored bootstrap value."""
        assert steps.truncated is not None
        if self.config.replay.store_next_observation:
            return jnp.ones_like(steps.reward)
        stored = 1.0 - steps.truncated
        nothing, ended = jnp.zeros_like(stored), steps.terminated | steps.truncated
        return batch_n_step_bootstrapped_returns(
            nothing, nothing + 1.0, stored, self.config.replay.n_step, truncation_t=ended, time_major=True
        )

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        batch: Any = self.sample(agent, key)
        return batch.observations

    def set_priorities(self, local: PyTree, batch: SequenceBatch, losses: jax.Array) -> PyTree:
        """Set the priorities of a batch from the absolute errors of its steps (section 2.3)."""
        errors, eta = jnp.sqrt(2.0 * losses), self.config.max_priority_weight
        mixed = eta * jnp.max(errors, axis=0) + (1.0 - eta) * jnp.mean(errors, axis=0)
        return self.replay.set_priorities(local, batch.indices, (mixed + 1e-6) ** self.config.replay.priority_exponent)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build R2D2."""
    network = recurrent.make_actor(spec.networks.actor_network)
    carry = jax.tree.map(lambda x: x[0], network.initialize_carry(1))
    clipped = with_clipped_rewards(spec, config.max_abs_reward)
    replay: Any = make_sequence_replay(config.replay, clipped, carry, reward_scale=config.reward_scale)
    return R2D2(**ff_dqn.make_parts(config, spec), network=network, replay=replay)


build, run_experiment, hydra_entry_point = entry_points("q_learning/rec_r2d2", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
