"""AlphaZero with feed-forward networks (Silver et al. 2018, doi 10.1126/science.aar6404), by Gumbel search.

The environment itself is the model: every action searches from the state of the rollout. The policy learns the
probabilities that the search found (Danihelka et al. 2022, openreview.net/forum?id=bERaNdoegnO, equation 11), and the
critic n-step returns of rewards and of the values that the search found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, cast

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    Acted,
    ActorCriticOptStates,
    Agent,
    Distribution,
    Metrics,
    Observation,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    Trajectory,
)
from stoix_like.envs.spaces import Discrete
from stoix_like.schema import above, at_least, between
from stoix_like.systems.algorithm import Algorithm, ConfigT, entry_points
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.on_policy.networks import NETWORK_HEADS, make_networks
from stoix_like.systems.parts.critic_outputs import with_distributions
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.search.candidates import Candidates, Found, all_actions, search_policy_loss
from stoix_like.systems.search.planner import Planner, SearchShared, make_parts
from stoix_like.systems.search.simulation import Expansion, make_simulation
from stoix_like.systems.search.tree import SearchConfig
from stoix_like.utils.multistep import batch_n_step_bootstrapped_returns
from stoix_like.utils.replay import PrioritisedBlockConfig, SequenceBatch, SequenceConfig, Stored
from stoix_like.utils.training import join_optimisers


@dataclass(frozen=True, kw_only=True)
class AlphaZeroReplay(PrioritisedBlockConfig, SequenceConfig):
    """Hyperparameters of the replay buffer, without next observations."""

    store_next_observation: Literal[False] = False


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of AlphaZero."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    policy_hyperparams: ClassVar = {"evaluation_simulations": 0}
    plays_both_seats: ClassVar[bool] = True
    needs_successors: ClassVar[bool] = False
    network_heads: ClassVar = with_distributions(NETWORK_HEADS)
    needs_model: ClassVar[bool] = True
    search: SearchConfig
    replay: AlphaZeroReplay
    gradients: Gradients
    resets: PeriodicResets
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    critic_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critic
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss
    ent_coef: Annotated[float, at_least(0.0)]  # weight of the entropy bonus
    normalize_observations: bool  # whether observations are normalised by their running mean and standard deviation


Losses = tuple[jax.Array, tuple[Metrics, jax.Array]]
"""A loss, its metrics, and absolute errors of values; their mean over the first axis is per sequence, `[B]`."""


class AlphaZero(Planner[ConfigT]):
    """AlphaZero: policy and critic learn what searches in the environment found."""

    def act(self, shared: SearchShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose actions by a search; the extras are what it found."""
        found = self.search(shared, state, key, self.config.search.num_simulations, greedy)
        return state.carry, found.action, Stored((), Found(found.candidates, found.weights, found.value))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        config = self.config.replay
        exponent = config.importance_exponent(agent.shared.updates, self.num_updates)

        def step(agent: Agent, sample_key: jax.Array, loss_key: jax.Array) -> tuple[Agent, Metrics]:
            shared, local = agent
            batch = self.sample(agent, sample_key, exponent)
            loss = partial(self.loss, statistics=shared.statistics, batch=batch, key=loss_key)
            params, opt_states, (metrics, errors) = gradient_step(
                loss, self.optim, self.axes, shared.params, shared.opt_states
            )
            if batch.indices is not None:
                priorities = (jnp.mean(errors, axis=0) + 1e-6) ** config.priority_exponent
                local = self.replay.set_priorities(local, batch.indices, priorities)
            return Agent(shared._replace(params=params, opt_states=opt_states), local), metrics

        agent, metrics = replay_epochs(step, agent, key, config.epochs)
        return agent._replace(shared=agent.shared._replace(updates=agent.shared.updates + 1)), metrics

    def loss(self, params: PyTree, statistics: PyTree, batch: SequenceBatch, key: jax.Array) -> Losses:
        """Compute the losses of policy and critic on sequences `[W, B]`; also the absolute errors of values."""
        config, steps, found = self.config, batch.steps, batch.steps.extras
        pi, output = self.networks.both(params, self.normalizer.apply(statistics, steps.observation))
        critic, target = self.networks.output, self.value_target(batch)
        value = critic.value(output)
        policy_loss = jnp.mean(batch.weight * self.policy_loss(pi, found))
        value_loss = jnp.mean(batch.weight * critic.loss(output, target))
        entropy = jnp.mean(batch.weight * pi.entropy(seed=key))
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "value": jnp.mean(value)}
        metrics |= jax.tree.map(jnp.mean, critic.metrics(output, target))
        return loss, (metrics, jnp.abs(target - value))

    def policy_loss(self, pi: Distribution, found: Found) -> jax.Array:
        """Compute cross-entropies to the probabilities that the search found."""
        return search_policy_loss(pi, found.candidates, found.weights)

    def value_target(self, batch: SequenceBatch) -> jax.Array:
        """Compute n-step returns of rewards and of the values that the search found."""
        steps, n_step = batch.steps, self.config.replay.n_step
        inputs = steps.reward, self.discount * (1.0 - steps.terminated), steps.extras.value, n_step
        return batch_n_step_bootstrapped_returns(*inputs, truncation_t=steps.truncated, time_major=True)


def make_algorithm(config: Config, spec: SystemSpec, candidates: Candidates | None = None) -> Algorithm:
    """Build AlphaZero; its searches consider all actions in each node, or some candidates."""
    candidates = candidates or all_actions(cast(Discrete, spec.action_space))
    assert spec.model is not None
    parts, networks = make_parts(config, spec, candidates), make_networks(spec.networks)

    def expand(params: PyTree, observation: Observation, key: jax.Array) -> Expansion:
        network_params, statistics = params
        pi, value = networks.first(network_params, parts["normalizer"].apply(statistics, observation))
        prior_logits, actions = candidates.choose(pi, key)
        return Expansion(prior_logits, value, actions)

    optims = (make_optimiser(config, spec, lr) for lr in (config.actor_lr, config.critic_lr))
    return AlphaZero(
        **parts,
        networks=networks,
        optim=join_optimisers(*optims, states=ActorCriticOptStates),
        simulation=make_simulation(spec.model, expand, parts["discount"], config.reward_scale),
    )


build, run_experiment, hydra_entry_point = entry_points("search/ff_az", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
