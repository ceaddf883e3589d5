"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    Acted,
    Distribution,
    Loss,
    Metrics,
    Observation,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
)
from stoix_like.envs.spaces import Box
from stoix_like.networks.requirements import DETERMINISTIC_POLICY, VALUE, policy_and_critics
from stoix_like.schema import INT32_MAX, above, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.ddpg_types import ActionRange, DDPGOptStates, DDPGParams, action_range
from stoix_like.systems.off_policy.actor_critic import OffPolicyActorCritic, OffPolicyShared, make_critics, make_parts
from stoix_like.systems.parts.exploration import ExplorationNoise, NormalNoise, make_normal_noise
from stoix_like.systems.parts.normalizer import ReplayNormalisation
from stoix_like.systems.parts.optimiser import Gradients, gradient_step
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.symmetry import SymmetryConfig
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.utils.jax_utils import periodically
from stoix_like.utils.loss import td3_critic_loss_per_example
from stoix_like.utils.replay import Batch, ReplayConfig


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of DDPG."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    network_heads: ClassVar = policy_and_critics(DETERMINISTIC_POLICY, VALUE)
    replay: ReplayConfig
    normalisation: ReplayNormalisation
    gradients: Gradients
    target: SoftTarget
    exploration: ExplorationNoise
    resets: PeriodicResets
    symmetry: SymmetryConfig
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    q_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critics
    policy_frequency: Annotated[int, between(1, INT32_MAX)]  # critic steps per step of the policy; see also YAML
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied


ConfigT = TypeVar("ConfigT", bound=Config)
Smoothing = Callable[[jax.Array, jax.Array, ActionRange], jax.Array]
"""`(action, key, range) -> action`, of targets; the identity in DDPG."""


@dataclass(frozen=True)
class DDPG(OffPolicyActorCritic[ConfigT]):
    """DDPG with its hyperparameters, networks and optimisers."""

    actions: ActionRange
    noise: NormalNoise
    smooth: Smoothing

    def init_carry(self, num_envs: int) -> PyTree:
        return self.noise.init_carry(num_envs)

    def init_shared(self, key: jax.Array, observation: Observation) -> OffPolicyShared:
        actor_key, q_key = jax.random.split(key)
        actor_params = self.actor.init(actor_key, observation)
        action = self.policy(actor_params, observation)
        q_params = self.critics.init(q_key, observation, {"action": action})
        opt_states = DDPGOptStates(self.actor_optim.init(actor_params), self.q_optim.init(q_params))
        params = DDPGParams(self.target.init(actor_params), self.target.init(q_params))
        return OffPolicyShared(params, opt_states, jnp.zeros((), jnp.int32))

    def pi(self, params: DDPGParams, observation: Observation) -> Distribution:
        """Return the policy, which is deterministic."""
        return self.actor.apply(params.actor_params.online, observation)

    def value(self, params: DDPGParams, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the values of actions under the first critic."""
        return self.q_values(params.q_params.online, observation, action)[:, 0]

    def act(self, shared: OffPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Add normal noise, persistent if configured, to the actions of the policy."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        action = self.policy(shared.params.actor_params.online, observation)
        if greedy:
            return state.carry, action, ()
        carry, noise = self.noise.draw(state.carry, state.timestep, key, action.shape[1:])
        return carry, self.actions.add_noise(action, noise), ()

    def sgd_step(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the critics, and every `policy_frequency` steps the policy and all target parameters."""
        loss = partial(self.critic_loss, params=shared.params, batch=batch, key=key)
        shared, q_metrics = self.critic_step(shared, loss)
        improve, steps = partial(self.improve, batch=batch), shared.steps
        shared, metrics = periodically(improve, shared, steps, self.config.policy_frequency)
        return shared._replace(steps=steps + 1), q_metrics | metrics

    def improve(self, shared: OffPolicyShared, batch: Batch) -> tuple[OffPolicyShared, Metrics]:
        """Update the policy and all target parameters."""
        actor_params, q_params = shared.params
        loss = partial(self.actor_loss, q_params=q_params.online, batch=batch)
        online, actor_opt_state, metrics = gradient_step(
            loss, self.actor_optim, self.axes, actor_params.online, shared.opt_states.actor_opt_state
        )
        params = self.move_targets(DDPGParams(actor_params._replace(online=online), q_params))
        opt_states = shared.opt_states._replace(actor_opt_state=actor_opt_state)
        return shared._replace(params=params, opt_states=opt_states), metrics

    def move_targets(self, params: DDPGParams) -> DDPGParams:
        """Take a step of the target parameters, after one of the policy."""
        return DDPGParams(self.target.update(params.actor_params), self.target.update(params.q_params))

    def critic_loss(self, q_params: PyTree, params: DDPGParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute squared errors to the minimum of the target critics (equations 4 and 5)."""
        action = self.target_action(params.actor_params.target, batch.next_observation, key)
        return self.td_loss(q_params, batch, self.q_values(params.q_params.target, batch.next_observation, action))

    def td_loss(self, q_params: PyTree, batch: Batch, q_t: jax.Array) -> Loss:
        """Compute squared errors to the minimum of the values `[B, C]` of the successor."""
        q_tm1 = self.q_values(q_params, batch.observation, batch.action)
        losses = td3_critic_loss_per_example(q_tm1, batch.reward, batch.discount, q_t)
        loss = jnp.mean(batch.weight * losses)
        return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1)}

    def actor_loss(self, actor_params: PyTree, q_params: PyTree, batch: Batch) -> Loss:
        """Compute the negative value of the policy under the first critic; its gradient is equation 6."""
        action = self.policy(actor_params, batch.observation)
        loss = -jnp.mean(batch.weight * self.q_values(q_params, batch.observation, action)[:, 0])
        return loss, {"actor_loss": loss}

    def q_values(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute action values `[B, C]`, one per critic."""
        return self.critics.apply(q_params, observation, {"action": action})

    def policy(self, actor_params: PyTree, observation: Observation) -> jax.Array:
        """Compute the actions of the policy, without noise."""
        return self.actor.apply(actor_params, observation).mode()

    def target_action(self, actor_params: PyTree, observation: Observation, key: jax.Array) -> jax.Array:
        """Compute the actions for the critic targets."""
        return self.smooth(self.policy(actor_params, observation), key, self.actions)


DDPGT = TypeVar("DDPGT", bound=DDPG[Any])


def make_variant(
    config: Config,
    spec: SystemSpec,
    algorithm: type[DDPGT],
    num_critics: int = 1,
    critic_head: Any = None,
    smooth: Smoothing = lambda action, *_: action,
) -> DDPGT:
    """Build DDPG or a variant."""
    critics = make_critics(spec.networks.q_network, num_critics, critic_head)
    parts, noise = make_parts(config, spec, critics), make_normal_noise(config.exploration)
    return algorithm(**parts, actions=action_range(spec.action_space), noise=noise, smooth=smooth)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build DDPG."""
    return make_variant(config, spec, DDPG)


build, run_experiment, hydra_entry_point = entry_points("ddpg/ff_ddpg", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
