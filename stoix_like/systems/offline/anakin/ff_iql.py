"""Implicit Q-learning (Kostrikov, Nair & Levine 2021, arXiv:2110.06169): values only of actions in the data.

Actions are continuous, or discrete, which the critics take one-hot. State values, critics and policy are updated from
the same parameters; the authors' code updates the state values first, and decays only the policy's learning rate, by a
cosine. Its normal policy has one deviation for all states, of at least 0.007; here it depends on the state, and
`network.actor_network.action_head.min_scale` bounds it, by default at a tenth of half the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    Distribution,
    Loss,
    Metrics,
    Observation,
    OnlineAndTarget,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
)
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.networks.base import FeedForwardCritic
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement
from stoix_like.schema import Range, above, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.actor_critic import OffPolicyActorCritic, OffPolicyShared, make_critics, make_parts
from stoix_like.systems.parts.action_vectors import as_vector, clip_to_bounds
from stoix_like.systems.parts.normalizer import ReplayNormalisation
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.utils.loss import awr_loss, expectile_loss, td3_critic_loss_per_example
from stoix_like.utils.replay import Batch, ReplayConfig


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of IQL."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box, Discrete)
    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
        "q_network.critic_head": HeadRequirement(VALUE),
        "critic_network.critic_head": HeadRequirement(VALUE),
    }
    policy_frequency: ClassVar[int] = 1
    replay: ReplayConfig
    normalisation: ReplayNormalisation
    gradients: Gradients
    resets: PeriodicResets
    target: SoftTarget
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    q_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critics
    value_lr: Annotated[float, above(0.0)]  # Adam learning rate of the state values
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    # The expectile of the values of recorded actions that the state value learns; above 0.5 favours better actions.
    expectile: Annotated[float, Range(0.0, 1.0, without_low=True, without_high=True)]
    beta: Annotated[float, above(0.0)]  # temperature of the weights of actions, in the unit of the advantages
    weight_max: Annotated[float, above(0.0)]  # largest weight


class IQLParams(NamedTuple):
    """Parameters of policy, critics and state values."""

    actor_params: PyTree
    q_params: OnlineAndTarget
    value_params: PyTree


class IQLOptStates(NamedTuple):
    """Optimiser states of policy, critics and state values."""

    actor_opt_state: PyTree
    q_opt_state: PyTree
    value_opt_state: PyTree


@dataclass(frozen=True)
class IQL(OffPolicyActorCritic[Config]):
    """IQL with its hyperparameters, networks and optimisers."""

    values: FeedForwardCritic
    value_optim: optax.GradientTransformation
    action_space: Any

    def init_shared(self, key: jax.Array, observation: Observation) -> OffPolicyShared:
        actor_key, q_key, value_key, action_key = jax.random.split(key, 4)
        actor_params = self.actor.init(actor_key, observation)
        action = self.actor.apply(actor_params, observation).sample(seed=action_key)
        q_params = self.critics.init(q_key, observation, {"action": as_vector(self.action_space, action)})
        value_params = self.values.init(value_key, observation)
        opt_states = IQLOptStates(
            self.actor_optim.init(actor_params), self.q_optim.init(q_params), self.value_optim.init(value_params)
        )
        params = IQLParams(actor_params, self.target.init(q_params), value_params)
        return OffPolicyShared(params, opt_states, jnp.zeros((), jnp.int32))

    def init_carry(self, num_envs: int) -> PyTree:
        return ()

    def pi(self, params: IQLParams, observation: Observation) -> Distribution:
        return self.actor.apply(params.actor_params, observation)

    def value(self, params: IQLParams, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the smallest value that a critic gives to each action."""
        return jnp.min(self.q_values(params.q_params.online, observation, action), axis=-1)

    def act(self, shared: OffPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Sample an action for each environment, or take the mode."""
        pi = self.pi(shared.params, self.normalizer.apply(shared.statistics, state.timestep.observation))
        # Data hold actions within the bounds of their space, and so does the replay buffer.
        return state.carry, pi.mode() if greedy else clip_to_bounds(self.action_space, pi.sample(seed=key)), ()

    def sgd_step(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update state values, critics and policy, each with the others as they are."""
        before = shared.params
        q = jnp.min(self.q_values(before.q_params.target, batch.observation, batch.action), axis=-1)
        value_loss = partial(self.value_loss, batch=batch, q=q)
        value_params, value_opt_state, value_metrics = gradient_step(
            value_loss, self.value_optim, self.axes, before.value_params, shared.opt_states.value_opt_state
        )
        critic_loss = partial(self.critic_loss, value_params=before.value_params, batch=batch)
        shared, q_metrics = self.critic_step(shared, critic_loss)
        advantage = q - self.values.apply(before.value_params, batch.observation)
        actor_loss = partial(self.actor_loss, batch=batch, advantage=advantage)
        shared, actor_metrics = self.actor_step(shared, actor_loss)
        shared = self.move_target_critics(shared)
        shared = shared._replace(
            params=shared.params._replace(value_params=value_params),
            opt_states=shared.opt_states._replace(value_opt_state=value_opt_state),
            steps=shared.steps + 1,
        )
        return shared, value_metrics | q_metrics | actor_metrics

    def value_loss(self, value_params: PyTree, batch: Batch, q: jax.Array) -> Loss:
        """Compute the expectile loss of state values towards the values of recorded actions (equation 5)."""
        values = self.values.apply(value_params, batch.observation)
        loss = jnp.mean(batch.weight * expectile_loss(q - values, self.config.expectile))
        return loss, {"value_loss": loss, "value": jnp.mean(values)}

    def critic_loss(self, q_params: PyTree, value_params: PyTree, batch: Batch) -> Loss:
        """Compute squared errors to the state value of the successor (equation 6)."""
        q_tm1 = self.q_values(q_params, batch.observation, batch.action)
        v_t = self.values.apply(value_params, batch.next_observation)[:, None]
        losses = td3_critic_loss_per_example(q_tm1, batch.reward, batch.discount, jnp.broadcast_to(v_t, q_tm1.shape))
        loss = jnp.mean(batch.weight * losses)
        return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1)}

    def actor_loss(self, actor_params: PyTree, batch: Batch, advantage: jax.Array) -> Loss:
        """Compute the log-likelihood of the actions of the data, weighted by their advantages (equation 7)."""
        log_prob = self.actor.apply(actor_params, batch.observation).log_prob(batch.action)
        loss = awr_loss(batch.weight * log_prob, advantage, self.config.beta, self.config.weight_max)
        return loss, {"actor_loss": loss}

    def q_values(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute action values `[B, C]`, one per critic; discrete actions are one-hot."""
        return self.critics.apply(q_params, observation, {"action": as_vector(self.action_space, action)})


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build IQL; the floats of the hyperparameters may be traced."""
    network = spec.networks.critic_network
    return IQL(
        **make_parts(config, spec, make_critics(spec.networks.q_network, 2)),
        values=FeedForwardCritic(network.critic_head, network.pre_torso, network.input_layer),
        value_optim=make_optimiser(config, spec, config.value_lr),
        action_space=spec.action_space,
    )


build, run_experiment, hydra_entry_point = entry_points("offline/ff_iql", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
