"""Deep Q-networks with feed-forward networks (Mnih et al. 2015, doi:10.1038/nature14236)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    Agent,
    Axes,
    Metrics,
    NetworkOutputs,
    Observation,
    OnlineAndTarget,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Discrete
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.networks.requirements import ACTION_VALUES, HeadRequirement
from stoix_like.schema import above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.parts.conservatism import Conservatism, conservative
from stoix_like.systems.parts.epsilon_greedy import GREEDY, NEVER_RANDOM, EpsilonGreedyConfig, make_epsilon_schedule
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.target import PeriodicTarget
from stoix_like.utils.loss import q_learning_per_example
from stoix_like.utils.replay import Batch, PrioritisedReplayConfig, Replay, make_replay, with_clipped_rewards


@dataclass(frozen=True, kw_only=True)
class BaseConfig(SystemConfig):
    """Hyperparameters shared by all variants of DQN."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUES, optional=("sigma_zero",))}
    noisy_layers: ClassVar[bool] = True
    mode_hyperparams: ClassVar = NEVER_RANDOM
    replay: PrioritisedReplayConfig
    gradients: Gradients
    resets: PeriodicResets
    exploration: EpsilonGreedyConfig
    target: PeriodicTarget
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    q_lr: Annotated[float, above(0.0)]  # Adam learning rate
    max_abs_reward: Annotated[float, above(0.0)]  # magnitude to which stored rewards are clipped, in units of reward


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Hyperparameters of DQN."""

    conservatism: Conservatism
    huber_loss_parameter: Annotated[float, at_least(0.0)]  # error above which the loss is linear, in units of value


class QShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser state, updates so far, and what options need, by name."""

    params: OnlineAndTarget
    opt_state: PyTree
    updates: jax.Array
    parts: PyTree = ()


ConfigT = TypeVar("ConfigT", bound=BaseConfig)


Losses = tuple[jax.Array, Metrics]
"""Losses `[B]`, and metrics `[B]` by name."""


@dataclass(frozen=True)
class BaseDQN(Algorithm, Generic[ConfigT]):
    """DQN and its variants, which differ in `losses`."""

    config: ConfigT
    axes: Axes
    network: Any
    optim: optax.GradientTransformation
    replay: Replay
    num_updates: int
    epsilon: Callable[[jax.Array], jax.Array]

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        online = self.init_params(key, timestep.observation)
        # The target is a copy: one buffer cannot be donated twice.
        params = OnlineAndTarget(online, jax.tree.map(jnp.copy, online))
        shared = QShared(params, self.optim.init(online), jnp.zeros((), jnp.int32))
        return Agent(shared, self.replay.init(timestep))

    def init_params(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of the network."""
        return self.network.init(key, observation)

    def act(self, shared: QShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose the greedy action, or a random one with probability epsilon; `greedy` without parameter noise."""
        params, observation = shared.params.online, state.timestep.observation
        if greedy:
            fixed = {"epsilon": self.config.exploration.evaluation_epsilon}
            output = self.network.apply(params, observation, head_kwargs=fixed)
            return state.carry, _policy(output).sample(seed=key), ()
        noise_key, key = jax.random.split(key)
        epsilon = {"epsilon": self.epsilon(shared.updates)}
        output = self.network.apply(params, observation, head_kwargs=epsilon, rngs={"noise": noise_key})
        return state.carry, _policy(output).sample(seed=key), ()

    def inspect(self, shared: QShared, observation: Observation) -> NetworkOutputs:
        """Return the greedy policy, and the action values of observations `[B, ...]`, without parameter noise."""
        pi = _policy(self.network.apply(shared.params.online, observation, head_kwargs=GREEDY))
        return NetworkOutputs(pi, mask_logits(pi.preferences, observation.action_mask))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout to the replay buffer, with clipped rewards."""
        steps, largest = trajectory.transitions, self.config.max_abs_reward
        steps = steps._replace(reward=jnp.clip(steps.reward, -largest, largest))
        return agent._replace(local=self.replay.add(agent.local, trajectory._replace(transitions=steps)))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        epsilon, epochs = self.epsilon(agent.shared.updates), self.config.replay.epochs

        def step(agent: Agent, sample_key: jax.Array, loss_key: jax.Array, count: jax.Array) -> tuple[Agent, Metrics]:
            batch = self.sample(agent, sample_key)
            shared, losses, metrics = self.sgd_step(agent.shared, batch, loss_key)
            shared = shared._replace(params=self.config.target.update(shared.params, count))
            # Priorities follow the errors, without other parts of the loss.
            errors = losses - metrics.get("penalty", 0.0)
            local = self.set_priorities(agent.local, batch, errors) if self.config.replay.prioritised else agent.local
            return Agent(shared, local), {"q_loss": jnp.mean(batch.weight * losses), **jax.tree.map(jnp.mean, metrics)}

        counts = agent.shared.updates * epochs + jnp.arange(1, epochs + 1)
        agent, metrics = replay_epochs(step, agent, key, epochs, counts)
        shared = agent.shared._replace(updates=agent.shared.updates + 1)
        return agent._replace(shared=shared), metrics | {"epsilon": epsilon}

    def sgd_step(self, shared: QShared, batch: Batch, key: jax.Array) -> tuple[QShared, jax.Array, Metrics]:
        """Take one gradient step on the online parameters; also return losses and metrics."""
        params = shared.params

        def loss(online: PyTree) -> tuple[jax.Array, Losses]:
            losses, metrics = self.losses(OnlineAndTarget(online, params.target), batch, key)
            return jnp.mean(batch.weight * losses), (losses, metrics)

        online, opt_state, (losses, metrics) = gradient_step(
            loss, self.optim, self.axes, params.online, shared.opt_state
        )
        return shared._replace(params=params._replace(online=online), opt_state=opt_state), losses, metrics

    @abstractmethod
    def losses(self, params: OnlineAndTarget, batch: PyTree, key: jax.Array) -> Losses:
        """Compute the losses `[B]`, and by name metrics `[B]`: `q_value`, the values of the actions.

        The metric `penalty` is what a loss has in addition to the error; no priorities come from it.
        """

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.sample(agent, key).observation

    def sample(self, agent: Agent, key: jax.Array) -> Batch:
        """Sample a batch; by priority, with annealed importance weights (section 3.4 of arXiv:1511.05952)."""
        exponent = self.config.replay.importance_exponent(agent.shared.updates, self.num_updates)
        return self.replay.sample(agent.local, key, exponent)

    def set_priorities(self, local: PyTree, batch: PyTree, losses: jax.Array) -> PyTree:
        """Set the priorities of a batch from its losses."""
        return self.replay.set_priorities(local, batch.indices, self.config.replay.priorities(losses, batch.weight))

    def q(
        self, params: PyTree, observation: Observation, noise_key: jax.Array | None = None, **head_kwargs: Any
    ) -> tuple[jax.Array, ...]:
        """Compute action values `[B, A]`, with illegal actions masked, and the other outputs of the head.

        Noisy layers take their noise from `noise_key`; None for no noise.
        """
        rngs = None if noise_key is None else {"noise": noise_key}
        output = self.network.apply(params, observation, head_kwargs=head_kwargs, rngs=rngs)
        others = output[1:] if isinstance(output, tuple) else ()
        return mask_logits(_policy(output).preferences, observation.action_mask), *others


class DQN(BaseDQN[Config]):
    """DQN: the bootstrap value is the largest target value."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> Losses:
        """Compute the losses (algorithm 1) and the values of the actions `[B]`."""
        online_key, target_key = jax.random.split(key)
        q_tm1 = self.q(params.online, batch.observation, online_key)[0]
        q_t = self.q(params.target, batch.next_observation, target_key)[0]
        huber = self.config.huber_loss_parameter
        losses = q_learning_per_example(q_tm1, batch.action, batch.reward, batch.discount, q_t, huber)
        return conservative(self.config.conservatism, losses, q_tm1, batch.action)


def _policy(output: PyTree) -> Any:
    return output[0] if isinstance(output, tuple) else output


def make_parts(config: BaseConfig, spec: SystemSpec) -> dict[str, Any]:
    """Build the attributes of a `BaseDQN` but its network and its replay buffer."""
    return {
        "config": config,
        "axes": spec.axes,
        "optim": make_optimiser(config, spec, config.q_lr),
        "num_updates": spec.num_updates,
        "epsilon": make_epsilon_schedule(config.exploration, spec.num_updates),
    }


def make_variant(config: BaseConfig, spec: SystemSpec, algorithm: type[BaseDQN[Any]], head: Any = None) -> Algorithm:
    """Build DQN or a variant."""
    actor, clipped = spec.networks.actor_network, with_clipped_rewards(spec, config.max_abs_reward)
    network = FeedForwardActor(actor.action_head if head is None else head, actor.pre_torso, actor.input_layer)
    replay = make_replay(config.replay, clipped, config.gamma, config.reward_scale)
    return algorithm(**make_parts(config, spec), network=network, replay=replay)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build DQN."""
    return make_variant(config, spec, DQN)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_dqn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
