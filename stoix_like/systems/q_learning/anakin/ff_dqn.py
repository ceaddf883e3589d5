"""Deep Q-networks with feed-forward networks (Mnih et al. 2015, doi:10.1038/nature14236)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from stoix_like import cli
from stoix_like.base_types import (
    Actor,
    Agent,
    Axes,
    Metrics,
    Observation,
    OnlineAndTarget,
    PyTree,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.distributions import mask_logits
from stoix_like.runner import experiment
from stoix_like.schema import above, at_least
from stoix_like.systems.off_policy import OffPolicyConfig, gradient_step, make_optimiser
from stoix_like.systems.q_learning.exploration import EpsilonConfig, make_epsilon_schedule
from stoix_like.systems.q_learning.q_types import QFunction, QLoss, QShared
from stoix_like.utils.loss import per_item, q_learning
from stoix_like.utils.replay import Batch, Replay, make_replay


@dataclass(frozen=True, kw_only=True)
class BaseConfig(EpsilonConfig, OffPolicyConfig):
    """Hyperparameters of every variant of deep Q-networks.

    Attributes:
        q_lr: Adam step size.
        max_abs_reward: rewards are clipped to this magnitude before they are stored, in the unit of the reward.
    """

    q_lr: Annotated[float, above(0.0)]
    max_abs_reward: Annotated[float, above(0.0)]


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Hyperparameters of deep Q-networks.

    Attributes:
        huber_loss_parameter: error beyond which the loss is linear, in the unit of the values; 0: nowhere.
    """

    huber_loss_parameter: Annotated[float, at_least(0.0)]


@dataclass(frozen=True)
class DQN:
    """The algorithm over its hyperparameters, network, optimiser, replay and loss."""

    config: Any
    axes: Axes
    network: FeedForwardActor
    optim: optax.GradientTransformation
    replay: Replay
    epsilon: Callable[[jax.Array], jax.Array]
    loss: QLoss

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """A new agent with an empty replay."""
        online = self.network.init(key, timestep.observation)
        # A copy, since a donated program must not be given one array twice.
        params = OnlineAndTarget(online, jax.tree.map(jnp.copy, online))
        shared = QShared(params, self.optim.init(online), jnp.zeros((), jnp.int32))
        return Agent(shared, self.replay.init(timestep))

    def act(self, shared: QShared, actor: Actor, key: jax.Array) -> tuple[PyTree, jax.Array, tuple[()]]:
        """The best action, or with probability epsilon a random one."""
        noise_key, key = jax.random.split(key)
        epsilon = {"epsilon": self.epsilon(shared.updates)}
        output = self.network.apply(
            shared.params.online, actor.timestep.observation, head_kwargs=epsilon, rngs={"noise": noise_key}
        )
        return actor.carry, _policy(output).sample(seed=key), ()

    def eval_act(self, shared: QShared, actor: Actor, key: jax.Array) -> tuple[PyTree, jax.Array, tuple[()]]:
        """As `act`, without noise and with the epsilon of evaluations."""
        epsilon = {"epsilon": self.config.evaluation_epsilon}
        output = self.network.apply(shared.params.online, actor.timestep.observation, head_kwargs=epsilon)
        return actor.carry, _policy(output).sample(seed=key), ()

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Remember a rollout."""
        steps, largest = trajectory.transitions, self.config.max_abs_reward
        steps = steps._replace(reward=jnp.clip(steps.reward, -largest, largest))
        return agent._replace(local=self.replay.add(agent.local, trajectory._replace(transitions=steps)))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Several gradient steps, each on a batch of its own."""
        del trajectory
        epsilon = self.epsilon(agent.shared.updates)
        agent, metrics = jax.lax.scan(self.learn, agent, jax.random.split(key, self.config.epochs))
        shared = agent.shared._replace(updates=agent.shared.updates + 1)
        return agent._replace(shared=shared), jax.tree.map(jnp.mean, metrics) | {"epsilon": epsilon}

    def learn(self, agent: Agent, key: jax.Array) -> tuple[Agent, Metrics]:
        """One gradient step, after which the target follows."""
        params, opt_state, updates = agent.shared
        sample_key, loss_key = jax.random.split(key)
        batch = self.sample(agent, sample_key)

        def loss(online: PyTree) -> tuple[jax.Array, Metrics]:
            losses = self.loss(self.config, self.q, OnlineAndTarget(online, params.target), batch, loss_key)
            return jnp.mean(batch.weight * losses), {"losses": losses}

        online, opt_state, found = gradient_step(loss, self.optim, self.axes, params.online, opt_state)
        target = optax.incremental_update(online, params.target, self.config.tau)
        shared = QShared(OnlineAndTarget(online, target), opt_state, updates)
        local = self.revise(agent.local, batch, found["losses"])
        return Agent(shared, local), {"q_loss": jnp.mean(batch.weight * found["losses"])}

    def sample(self, agent: Agent, key: jax.Array) -> Batch:
        """A batch to learn from."""
        return self.replay.sample(agent.local, key)

    def revise(self, local: PyTree, batch: Batch, losses: jax.Array) -> PyTree:
        """What the losses of a batch change in the replay: nothing, where it has no priorities."""
        del batch, losses
        return local

    def q(self, params: PyTree, observation: Observation, noise_key: jax.Array | None = None) -> tuple[Any, ...]:
        """Action values, an illegal action's the lowest, and what else the head makes."""
        rngs = None if noise_key is None else {"noise": noise_key}
        output = self.network.apply(params, observation, rngs=rngs)
        others = output[1:] if isinstance(output, tuple) else ()
        return mask_logits(_policy(output).preferences, observation.action_mask), *others


def _policy(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def q_loss(config: Config, q: QFunction, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> jax.Array:
    """One-step errors against the largest target value (algorithm 1)."""
    del key
    q_tm1 = q(params.online, batch.observation)[0]
    q_t = q(params.target, batch.next_observation)[0]
    loss = partial(q_learning, huber_loss_parameter=config.huber_loss_parameter)
    return per_item(loss)(q_tm1, batch.action, batch.reward, batch.discount, q_t)


def assemble(config: BaseConfig, spec: SystemSpec, loss: QLoss, algorithm: Callable[..., DQN] = DQN) -> System:
    """Assemble a variant of DQN.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.
        loss: what it learns by.
        algorithm: what it is.

    Returns:
        The system.
    """
    network = spec.networks.actor_network
    dqn = algorithm(
        config,
        spec.axes,
        network=FeedForwardActor(network.action_head, network.pre_torso, network.input_layer),
        optim=make_optimiser(config, spec, config.q_lr),
        replay=make_replay(config, spec),
        epsilon=make_epsilon_schedule(config, spec.num_updates),
        loss=loss,
    )
    return System(
        init=dqn.init,
        act=dqn.act,
        observe=dqn.observe,
        update=dqn.update,
        eval_act=dqn.eval_act if spec.evaluation_greedy else dqn.act,
        init_carry=lambda _: (),
    )


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble DQN; see `assemble`."""
    return assemble(config, spec, q_loss)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_dqn")

if __name__ == "__main__":
    hydra_entry_point()
