"""Flow Q-learning (Park, Li & Levine 2025, arXiv:2502.02538): a policy of one step, near a flow to the data's actions.

A flow carries noise to the actions of the data, whatever their modes; the policy maps the same noise to an action in
one step, and is drawn towards the end of the flow and towards actions of high value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

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
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.networks.base import FeedForwardCritic
from stoix_like.networks.distributions import Deterministic, Independent
from stoix_like.networks.requirements import ACTION_VECTOR, VALUE, HeadRequirement
from stoix_like.schema import INT32_MAX, above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.ddpg_types import ActionRange, DDPGOptStates, action_range
from stoix_like.systems.off_policy.actor_critic import OffPolicyActorCritic, OffPolicyShared, make_critics, make_parts
from stoix_like.systems.parts.behaviour import value_scale
from stoix_like.systems.parts.chunks import ChunkedReplay
from stoix_like.systems.parts.flows import Flow
from stoix_like.systems.parts.normalizer import ReplayNormalisation
from stoix_like.systems.parts.optimiser import Gradients
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.utils.jax_utils import append_dims
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of FQL."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    has_mode: ClassVar[bool] = False
    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(ACTION_VECTOR),
        "flow_network.action_head": HeadRequirement(ACTION_VECTOR),
        "q_network.critic_head": HeadRequirement(VALUE),
    }
    policy_frequency: ClassVar[int] = 1
    replay: ChunkedReplay
    normalisation: ReplayNormalisation
    gradients: Gradients
    resets: PeriodicResets
    target: SoftTarget
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the flow and of the policy
    q_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critics
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    distillation_coef: Annotated[float, at_least(0.0)]
    flow_steps: Annotated[int, between(1, INT32_MAX)]  # Euler steps of the flow
    normalize_q: bool  # whether values are divided by their mean magnitude in the policy's loss


class FlowParams(NamedTuple):
    """Parameters of the flow and of the policy of one step."""

    flow: PyTree
    one_step: PyTree


class FQLParams(NamedTuple):
    """Parameters of flow and policy, and of the critics."""

    actor_params: FlowParams
    q_params: OnlineAndTarget


@dataclass(frozen=True)
class FQL(OffPolicyActorCritic[Config]):
    """FQL with its hyperparameters, networks and optimisers; losses see actions in units of half their range."""

    flow: Flow
    actions: ActionRange

    def init_shared(self, key: jax.Array, observation: Observation) -> OffPolicyShared:
        flow_key, actor_key, q_key = jax.random.split(key, 3)
        noise = jnp.zeros((len(jax.tree.leaves(observation)[0]), *self.actions.unit.shape))
        flow = self.flow.init(flow_key, observation, noise)
        actor_params = FlowParams(flow, self.actor.init(actor_key, observation, {"action": noise}))
        q_params = self.critics.init(q_key, observation, {"action": noise})
        opt_states = DDPGOptStates(self.actor_optim.init(actor_params), self.q_optim.init(q_params))
        return OffPolicyShared(
            FQLParams(actor_params, self.target.init(q_params)), opt_states, jnp.zeros((), jnp.int32)
        )

    def init_carry(self, num_envs: int) -> PyTree:
        return ()

    def pi(self, params: FQLParams, observation: Observation) -> Distribution:
        """Return the action of the policy without noise, for pictures."""
        zeros = jnp.zeros((*jax.tree.leaves(observation)[0].shape[:1], *self.actions.unit.shape))
        action = self.actions.from_unit(self.one_step(params.actor_params, observation, zeros))
        return Independent(Deterministic(action), self.actions.unit.ndim)

    def value(self, params: FQLParams, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the mean over the critics of the values of actions."""
        return jnp.mean(self.q_values(params.q_params.online, observation, self.actions.to_unit(action)), axis=-1)

    def act(self, shared: OffPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Draw an action for each environment; the policy has no mode."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        noise = jax.random.normal(key, (*state.timestep.reward.shape, *self.actions.unit.shape))
        return state.carry, self.actions.from_unit(self.one_step(shared.params.actor_params, observation, noise)), ()

    def sgd_step(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the critics and their targets, the flow and the policy (algorithm 1)."""
        q_key, actor_key = jax.random.split(key)
        batch = batch._replace(action=self.actions.to_unit(batch.action))
        critic_loss = partial(self.critic_loss, params=shared.params, batch=batch, key=q_key)
        shared, q_metrics = self.critic_step(shared, critic_loss)
        actor_loss = partial(self.actor_loss, q_params=shared.params.q_params.online, batch=batch, key=actor_key)
        shared, metrics = self.actor_step(shared, actor_loss)
        shared = self.move_target_critics(shared)
        return shared._replace(steps=shared.steps + 1), q_metrics | metrics

    def critic_loss(self, q_params: PyTree, params: FQLParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute squared errors to the mean of the target critics at the policy's action (equation 2)."""
        action = self.one_step(params.actor_params, batch.next_observation, jax.random.normal(key, batch.action.shape))
        q_t = jnp.mean(self.q_values(params.q_params.target, batch.next_observation, action), axis=-1)
        target = jax.lax.stop_gradient(batch.reward + batch.discount * q_t)
        q_tm1 = self.q_values(q_params, batch.observation, batch.action)
        loss = jnp.mean(batch.weight * jnp.sum(jnp.square(q_tm1 - target[:, None]), axis=-1))
        return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1)}

    def actor_loss(self, actor_params: FlowParams, q_params: PyTree, batch: Batch, key: jax.Array) -> Loss:
        """Compute the losses of the flow (equation 6) and the policy (equation 8)."""
        start_key, time_key, noise_key = jax.random.split(key, 3)
        start, time = jax.random.normal(start_key, batch.action.shape), jax.random.uniform(time_key, batch.reward.shape)
        place = start + append_dims(time, start.ndim) * (batch.action - start)
        errors = self.flow.velocity(actor_params.flow, batch.observation, place, time) - (batch.action - start)
        flow_loss = jnp.mean(append_dims(batch.weight, errors.ndim) * jnp.square(errors))
        noise = jax.random.normal(noise_key, batch.action.shape)
        end = jax.lax.stop_gradient(self.flow.follow(actor_params.flow, batch.observation, noise))
        action = self.actor.apply(actor_params.one_step, batch.observation, {"action": noise})
        distances = jnp.mean(jnp.square(action - end).reshape(len(action), -1), axis=-1)
        distillation_loss = jnp.mean(batch.weight * distances)
        q = jnp.mean(self.q_values(q_params, batch.observation, jnp.clip(action, -1.0, 1.0)), axis=-1)
        scale = value_scale(q, self.axes) if self.config.normalize_q else 1.0
        loss = flow_loss + self.config.distillation_coef * distillation_loss - jnp.mean(batch.weight * q) / scale
        return loss, {"actor_loss": loss, "flow_loss": flow_loss, "distillation_loss": distillation_loss}

    def one_step(self, actor_params: FlowParams, observation: Observation, noise: jax.Array) -> jax.Array:
        """Compute the actions of the policy, in units of half their range, within the bounds."""
        return jnp.clip(self.actor.apply(actor_params.one_step, observation, {"action": noise}), -1.0, 1.0)

    def q_values(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute action values `[B, C]`, one per critic."""
        return self.critics.apply(q_params, observation, {"action": action})


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build FQL; the floats of the hyperparameters may be traced."""
    space: Any = spec.action_space
    if not space.bounded:
        raise ConfigError("system=offline/ff_fql needs bounded actions: use system=offline/ff_iql, or set bounds")
    flow, actor = spec.networks.flow_network, spec.networks.actor_network
    return FQL(
        **make_parts(config, spec, make_critics(spec.networks.q_network, 2))
        | {"actor": FeedForwardCritic(actor.action_head, actor.pre_torso, actor.input_layer)},
        flow=Flow(FeedForwardCritic(flow.action_head, flow.pre_torso, flow.input_layer), config.flow_steps),
        actions=action_range(space),
    )


build, run_experiment, hydra_entry_point = entry_points("offline/ff_fql", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
