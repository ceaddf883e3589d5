"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stoix_like import cli
from stoix_like.base_types import (
    Actor,
    Agent,
    Metrics,
    Observation,
    OnlineAndTarget,
    System,
    SystemSpec,
    TimeStep,
)
from stoix_like.runner import experiment
from stoix_like.schema import at_least
from stoix_like.systems.ddpg.ddpg_types import ActionRange, DDPGOptStates, DDPGParams, DDPGShared
from stoix_like.systems.off_policy import gradient_step, periodically
from stoix_like.systems.off_policy_actor_critic import ActorCritic, ActorCriticConfig, hold_keys, make_parts
from stoix_like.utils.loss import per_item, td3_critic_loss
from stoix_like.utils.replay import Batch

Learner = tuple[DDPGParams, DDPGOptStates]


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Hyperparameters of DDPG.

    Attributes:
        exploration_noise: standard deviation of the noise on actions, in half the width of their range.
    """

    exploration_noise: Annotated[float, at_least(0.0)]


@dataclass(frozen=True)
class DDPG(ActorCritic):
    """The algorithm over its hyperparameters, networks and optimisers."""

    actions: ActionRange

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """A new agent."""
        actor_key, q_key = jax.random.split(key)
        actor_params = self.actor.init(actor_key, timestep.observation)
        action = self.policy(actor_params, timestep.observation)
        q_params = self.critics.init(q_key, timestep.observation, {"action": action})
        opt_states = DDPGOptStates(self.actor_optim.init(actor_params), self.q_optim.init(q_params))
        # Targets are copies: one buffer cannot be donated twice.
        params = [OnlineAndTarget(online, jax.tree.map(jnp.copy, online)) for online in (actor_params, q_params)]
        shared = DDPGShared(DDPGParams(*params), opt_states, jnp.zeros((), jnp.int32))
        return Agent(shared, self.replay.init(timestep))

    def act(self, shared: DDPGShared, actor: Actor, key: jax.Array, greedy: bool = False) -> tuple[Any, jax.Array, Any]:
        """An action for each environment; the keys of its noise are carried on."""
        action = self.policy(shared.params.actor_params.online, actor.timestep.observation)
        if greedy:
            return actor.carry, action, ()
        keys = hold_keys(actor.carry, actor.timestep, key, self.config.noise_correlation)
        noise = jax.vmap(lambda key: jax.random.normal(key, action.shape[1:]))(keys)
        return keys, self.perturbed(action, self.config.exploration_noise * noise), ()

    def learn(self, shared: DDPGShared, batch: Batch, key: jax.Array) -> tuple[DDPGShared, Metrics]:
        """One step of the critics, then of policy and targets where it is their turn."""
        params, opt_states, steps = shared
        online, q_opt_state, q_metrics = gradient_step(
            self.critic_loss, self.q_optim, self.axes, params.q_params.online, opt_states.q_opt_state,
            params, batch, key,
        )  # fmt: skip
        learner = (
            params._replace(q_params=params.q_params._replace(online=online)),
            opt_states._replace(q_opt_state=q_opt_state),
        )
        improve = partial(self.improve, batch=batch)
        learner, metrics = periodically(improve, learner, steps, self.config.policy_frequency)
        return DDPGShared(learner[0], learner[1], steps + 1), q_metrics | metrics

    def improve(self, learner: Learner, batch: Batch) -> tuple[Learner, Metrics]:
        """One step of the policy, and of all targets towards what they follow."""
        (actor_params, q_params), opt_states = learner
        online, actor_opt_state, metrics = gradient_step(
            self.actor_loss, self.actor_optim, self.axes, actor_params.online, opt_states.actor_opt_state,
            q_params.online, batch,
        )  # fmt: skip
        params = DDPGParams(self.follow(actor_params._replace(online=online)), self.follow(q_params))
        return (params, opt_states._replace(actor_opt_state=actor_opt_state)), metrics

    def follow(self, params: OnlineAndTarget) -> OnlineAndTarget:
        """Move the target by `tau` of its distance."""
        return params._replace(target=optax.incremental_update(params.online, params.target, self.config.tau))

    def critic_loss(self, q_params: Any, params: DDPGParams, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Squared errors towards the least of the critics' targets (equations 4 and 5)."""
        action = self.target_action(params.actor_params.target, batch.next_observation, key)
        q_t = self.q_values(params.q_params.target, batch.next_observation, action)
        q_tm1 = self.q_values(q_params, batch.observation, batch.action)
        losses = per_item(td3_critic_loss)(q_tm1, batch.reward, batch.discount, q_t)
        loss = jnp.mean(batch.weight * losses)
        return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1)}

    def actor_loss(self, actor_params: Any, q_params: Any, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Negative value of the policy's actions to the first critic; its gradient is equation 6."""
        action = self.policy(actor_params, batch.observation)
        loss = -jnp.mean(batch.weight * self.q_values(q_params, batch.observation, action)[:, 0])
        return loss, {"actor_loss": loss}

    def q_values(self, q_params: Any, observation: Observation, action: jax.Array) -> jax.Array:
        """Action values `[B, C]`, one per critic."""
        return self.critics.apply(q_params, observation, {"action": action})

    def policy(self, actor_params: Any, observation: Observation) -> jax.Array:
        """The actions of the policy, without noise."""
        return self.actor.apply(actor_params, observation).mode()

    def target_action(self, actor_params: Any, observation: Observation, key: jax.Array) -> jax.Array:
        """The action that the critics' target is computed with."""
        del key
        return self.policy(actor_params, observation)

    def perturbed(self, action: jax.Array, noise: jax.Array) -> jax.Array:
        """Actions with noise, within the bounds; the unit of noise is half their distance."""
        return jnp.clip(action + self.actions.unit * noise, self.actions.minimum, self.actions.maximum)


def build(config: Config, spec: SystemSpec, algorithm: type[DDPG] = DDPG, num_critics: int = 1) -> System:
    """Assemble DDPG.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.
        algorithm: DDPG, or a class that swaps some of its functions.
        num_critics: critics that learn side by side.

    Returns:
        The system.
    """
    return algorithm(**make_parts(config, spec, num_critics), actions=_action_range(spec.action_space)).system(spec)


def _action_range(space: Any) -> ActionRange:
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), (1, *space.shape)) for bound in (space.low, space.high))
    return ActionRange(low, high, space.half_width[None])


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "ddpg/ff_ddpg")

if __name__ == "__main__":
    hydra_entry_point()
