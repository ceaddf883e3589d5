"""Parallelised Q-networks: no replay, no target network (Gallici et al. 2024, arXiv:2407.04811)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

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
    PyTree,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.distributions import mask_logits
from stoix_like.runner import experiment
from stoix_like.schema import above, between
from stoix_like.systems.off_policy import gradient_step
from stoix_like.systems.on_policy import OnPolicyConfig, make_minibatches
from stoix_like.systems.q_learning.exploration import EpsilonConfig, make_epsilon_schedule
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.multistep import batch_q_lambda
from stoix_like.utils.training import clip_by_global_norm, make_learning_rate_schedule


@dataclass(frozen=True, kw_only=True)
class Config(EpsilonConfig, OnPolicyConfig):
    """Hyperparameters of PQN.

    Attributes:
        q_lr: step size of rectified Adam.
        q_lambda: mixing of n-step returns.
    """

    q_lr: Annotated[float, above(0.0)]
    q_lambda: Annotated[float, between(0.0, 1.0)]


class PQNShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser state, and the updates made so far."""

    params: PyTree
    opt_state: Any
    updates: jax.Array


class PQNTransition(NamedTuple):
    """One step as it is learnt from, `[B, ...]`; `target` is its lambda-return."""

    observation: Observation
    action: jax.Array
    target: jax.Array


@dataclass(frozen=True)
class PQN:
    """The algorithm over its hyperparameters, network and optimiser."""

    config: Config
    axes: Axes
    network: FeedForwardActor
    optim: optax.GradientTransformation
    epsilon: Callable[[jax.Array], jax.Array]

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """A new agent."""
        params = self.network.init(key, timestep.observation)
        return Agent(PQNShared(params, self.optim.init(params), jnp.zeros((), jnp.int32)), ())

    def act(
        self, shared: PQNShared, actor: Actor, key: jax.Array, epsilon: Any = None
    ) -> tuple[PyTree, jax.Array, tuple[()]]:
        """The best action, or with probability epsilon a random one."""
        epsilon = self.epsilon(shared.updates) if epsilon is None else epsilon
        pi = self.network.apply(shared.params, actor.timestep.observation, head_kwargs={"epsilon": epsilon})
        return actor.carry, pi.sample(seed=key), ()

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Several epochs of minibatches over one rollout."""
        params, opt_state, updates = agent.shared
        batch = self.evaluate(params, trajectory)
        batch = jax.tree.map(lambda x: merge_leading_dims(x, 2), batch)

        def epoch(learner: tuple[PyTree, PyTree], key: jax.Array) -> tuple[tuple[PyTree, PyTree], Metrics]:
            return jax.lax.scan(self.learn, learner, make_minibatches(key, batch, self.config.num_minibatches))

        learner, metrics = jax.lax.scan(epoch, (params, opt_state), jax.random.split(key, self.config.epochs))
        metrics = jax.tree.map(jnp.mean, metrics) | {"epsilon": self.epsilon(updates)}
        return Agent(PQNShared(*learner, updates + 1), agent.local), metrics

    def evaluate(self, params: PyTree, trajectory: Trajectory) -> PQNTransition:
        """Lambda-returns that bootstrap from the best action at each true successor, in one pass over the rollout."""
        steps = trajectory.transitions
        target = batch_q_lambda(
            steps.reward * self.config.reward_scale,
            self.config.gamma * (1.0 - steps.terminated),
            self.q(params, steps.next_observation),
            self.config.q_lambda,
            truncation_t=steps.truncated,
            time_major=True,
        )
        return PQNTransition(steps.observation, steps.action, target)

    def learn(self, learner: tuple[PyTree, PyTree], batch: PQNTransition) -> tuple[tuple[PyTree, PyTree], Metrics]:
        """One gradient step on one minibatch."""
        params, opt_state, metrics = gradient_step(self.loss, self.optim, self.axes, *learner, batch)
        return (params, opt_state), metrics

    def loss(self, params: PyTree, batch: PQNTransition) -> tuple[jax.Array, Metrics]:
        """Half the squared error against the lambda-return (equation 10)."""
        q = jnp.take_along_axis(self.q(params, batch.observation), batch.action[:, None], axis=-1)[:, 0]
        loss = 0.5 * jnp.mean(jnp.square(q - batch.target))
        return loss, {"q_loss": loss, "q_value": jnp.mean(q)}

    def q(self, params: PyTree, observation: Observation) -> jax.Array:
        """Action values `[..., A]`, an illegal action's the lowest."""
        return mask_logits(self.network.apply(params, observation).preferences, observation.action_mask)


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble PQN.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.

    Returns:
        The system.
    """
    network = spec.networks.actor_network
    lr: Any = config.q_lr
    if config.decay_learning_rates:
        lr = make_learning_rate_schedule(lr, spec.num_updates, config.epochs, config.num_minibatches)
    pqn = PQN(
        config,
        spec.axes,
        network=FeedForwardActor(network.action_head, network.pre_torso, network.input_layer),
        optim=optax.chain(clip_by_global_norm(config.max_grad_norm), optax.radam(lr)),
        epsilon=make_epsilon_schedule(config, spec.num_updates),
    )
    return System(
        init=pqn.init,
        act=pqn.act,
        observe=lambda agent, _: agent,
        update=pqn.update,
        eval_act=partial(pqn.act, epsilon=config.evaluation_epsilon) if spec.evaluation_greedy else pqn.act,
        init_carry=lambda _: (),
    )


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_pqn")

if __name__ == "__main__":
    hydra_entry_point()
