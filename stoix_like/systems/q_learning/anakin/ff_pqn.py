"""Parallelised Q-networks, without replay buffer or target network (Gallici et al. 2024, arXiv:2407.04811)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    Agent,
    Axes,
    Loss,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
    Transition,
)
from stoix_like.envs.spaces import Discrete
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.networks.requirements import ACTION_VALUES, HeadRequirement
from stoix_like.schema import above, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.epochs import MinibatchConfig, minibatch_epochs
from stoix_like.systems.parts.epsilon_greedy import GREEDY, NEVER_RANDOM, EpsilonGreedyConfig, make_epsilon_schedule
from stoix_like.systems.parts.normalizer import RewardNormalizer, make_reward_normalizer
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss import baseline_loss
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.multistep import batch_q_lambda


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of PQN."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUES, layer_norm=True)}
    mode_hyperparams: ClassVar = NEVER_RANDOM
    exploration: EpsilonGreedyConfig
    minibatches: MinibatchConfig
    gradients: Gradients
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    normalize_rewards: bool = False  # divide rewards by the running standard deviation of the discounted return
    q_lr: Annotated[float, above(0.0)]  # learning rate
    q_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step returns


class PQNShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser state, updates so far, and statistics of returns."""

    params: PyTree
    opt_state: PyTree
    updates: jax.Array
    return_statistics: PyTree = ()


class PQNTransition(NamedTuple):
    """Steps `[B, ...]` with lambda-returns as targets."""

    observation: Observation
    action: jax.Array
    target: jax.Array


@dataclass(frozen=True)
class PQN(Algorithm):
    """PQN with its hyperparameters, network and optimiser."""

    config: Config
    axes: Axes
    network: Any
    optim: optax.GradientTransformation
    epsilon: Callable[[jax.Array], jax.Array]
    reward_normalizer: RewardNormalizer

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        params = self.init_params(key, timestep.observation)
        statistics, returns = self.reward_normalizer.init(), self.reward_normalizer.init_returns(len(timestep.reward))
        return Agent(PQNShared(params, self.optim.init(params), jnp.zeros((), jnp.int32), statistics), returns)

    def init_params(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of the network."""
        return self.network.init(key, observation)

    def act(self, shared: PQNShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose the greedy action, or a random one with probability epsilon."""
        epsilon = self.config.exploration.evaluation_epsilon if greedy else self.epsilon(shared.updates)
        pi = self.network.apply(shared.params, state.timestep.observation, head_kwargs={"epsilon": epsilon})
        return state.carry, pi.sample(seed=key), ()

    def inspect(self, shared: PQNShared, observation: Observation) -> NetworkOutputs:
        """Return the greedy policy, and the action values of observations `[B, ...]`."""
        pi = self.network.apply(shared.params, observation, head_kwargs=GREEDY)
        return NetworkOutputs(pi, mask_logits(pi.preferences, observation.action_mask))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        steps = trajectory.transitions
        reward, statistics, returns = self.reward_normalizer.apply(agent.shared.return_statistics, agent.local, steps)
        agent = Agent(agent.shared._replace(return_statistics=statistics), returns)
        trajectory = trajectory._replace(transitions=steps._replace(reward=reward))
        batch = self.evaluate(agent.shared.params, trajectory)
        minibatches = self.config.minibatches
        shared, metrics = minibatch_epochs(self.sgd_step, agent.shared, batch, key, minibatches, step_keys=False)
        metrics |= {"epsilon": self.epsilon(shared.updates)}
        return Agent(shared._replace(updates=shared.updates + 1), agent.local), metrics

    def evaluate(self, params: PyTree, trajectory: Trajectory) -> PyTree:
        """Return what minibatches are drawn from: the steps of the rollout with their lambda-returns."""
        steps = trajectory.transitions
        target = self.lambda_returns(params, steps, self.q(params, steps.next_observation))
        batch = PQNTransition(steps.observation, steps.action, target)
        return jax.tree.map(lambda x: merge_leading_dims(x, 2), batch)

    def lambda_returns(self, params: PyTree, steps: Transition, q_t: jax.Array) -> jax.Array:
        """Compute lambda-returns `[T, N]`; bootstrap values are greedy action values of the true successors."""
        reward, discount = steps.reward * self.config.reward_scale, self.config.gamma * (1.0 - steps.terminated)
        inputs = reward, discount, q_t, self.config.q_lambda
        return batch_q_lambda(*inputs, truncation_t=steps.truncated, time_major=True)

    def sgd_step(self, shared: PQNShared, batch: PyTree, key: None) -> tuple[PQNShared, Metrics]:
        """Take one gradient step on one minibatch; it needs no key."""
        params, opt_state, metrics = gradient_step(
            self.loss, self.optim, self.axes, shared.params, shared.opt_state, batch
        )
        return shared._replace(params=params, opt_state=opt_state), metrics

    def loss(self, params: PyTree, batch: PyTree) -> Loss:
        """Compute half the squared error to the lambda-return (equation 10)."""
        q = values_of_actions(self.q_of_batch(params, batch), batch.action)
        loss = baseline_loss(q, batch.target)
        return loss, {"q_loss": loss, "q_value": jnp.mean(q)}

    def q_of_batch(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Compute the action values of a minibatch."""
        return self.q(params, batch.observation)

    def q(self, params: PyTree, observation: Observation) -> jax.Array:
        """Compute action values `[..., A]`, with illegal actions masked."""
        return mask_logits(self.network.apply(params, observation).preferences, observation.action_mask)


def make_algorithm(
    config: Config, spec: SystemSpec, network: Any = None, algorithm: Callable[..., PQN] = PQN
) -> Algorithm:
    """Build PQN or a variant."""
    actor = spec.networks.actor_network
    return algorithm(
        config,
        spec.axes,
        network=network or FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        optim=make_optimiser(config, spec, config.q_lr),
        epsilon=make_epsilon_schedule(config.exploration, spec.num_updates),
        reward_normalizer=make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes),
    )


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_pqn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
