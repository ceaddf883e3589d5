"""DreamerV3 (Hafner et al. 2025, Mastering diverse control tasks through world models, arXiv:2301.04104).

A world model learns latents from replayed sequences. The policy and the critic learn in its imagination: from every
replayed state, a few steps of the policy are imagined, and nothing else is needed of the environment. At a time limit
an episode continues: only a terminated step has no value beyond it.

Shape letters: T time, B sequences, S = T B starts of imagination, H imagined steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    Agent,
    Axes,
    Distribution,
    Dream,
    LastAction,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Space
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.networks.heads import mask_argument
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, VALUE_DISTRIBUTION, HeadRequirement
from stoix_like.networks.rssm import Latent
from stoix_like.schema import Range, above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.dreamer.dreamer_types import DreamerParams, DreamerShared, LaPropConfig, TrainRatioConfig
from stoix_like.systems.dreamer.returns import imagined_returns, replayed_returns
from stoix_like.systems.dreamer.world_model import WorldModel, WorldModelConfig, make_world_model, no_action
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.parts.critic_outputs import two_hot_loss
from stoix_like.systems.parts.optimiser import gradient_step
from stoix_like.systems.parts.return_scale import ReturnScale, ReturnScaleConfig, make_return_scale
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.replay import StreamBatch, StreamReplay, make_stream_replay


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of DreamerV3."""

    network_heads: ClassVar = {
        "reward_network.critic_head": HeadRequirement(VALUE_DISTRIBUTION, optional=("num_atoms",), latent=True),
        "continue_network.critic_head": HeadRequirement(VALUE, latent=True),
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, latent=True),
        "critic_network.critic_head": HeadRequirement(VALUE_DISTRIBUTION, optional=("num_atoms",), latent=True),
    }
    model: WorldModelConfig
    replay: TrainRatioConfig
    laprop: LaPropConfig
    returns: ReturnScaleConfig
    imagination_length: Annotated[int, between(1, 2**10)]  # imagined steps from each replayed state, H
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    gae_lambda: Annotated[float, between(0.0, 1.0)]  # lambda of the returns
    ent_coef: Annotated[float, at_least(0.0)]  # weight of the entropy of the policy
    vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss in imagination
    replay_vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss on replayed rewards
    slow_critic_coef: Annotated[float, at_least(0.0)]  # weight of the critic's regularisation towards its slow average
    tau: Annotated[float, Range(0.0, 1.0, without_low=True)]  # step size of this average


@dataclass(frozen=True)
class Dreamer(Algorithm):
    """DreamerV3 with its hyperparameters, networks and optimiser."""

    config: Config
    axes: Axes
    model: WorldModel
    actor: FeedForwardActor
    critic: FeedForwardCritic
    optim: optax.GradientTransformation
    returns: ReturnScale
    replay: StreamReplay
    action_space: Space
    gradient_steps: int

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        keys, features = jax.random.split(key, 3), self.model.initial((1,)).features
        model = self.model.init(keys[0], timestep.observation)
        params = DreamerParams(model, self.actor.init(keys[1], features), self.critic.init(keys[2], features))
        slow_critic = jax.tree.map(jnp.copy, params.critic_params)
        shared = DreamerShared(params, slow_critic, self.optim.init(params), self.returns.init())
        return Agent(shared, self.replay.init(timestep))

    def init_carry(self, num_envs: int) -> LastAction:
        """Return the latent before an episode, and what stands for the action before it."""
        action = no_action(self.action_space)
        return LastAction(self.model.initial((num_envs,)), jnp.broadcast_to(action, (num_envs, *action.shape)))

    def act(self, shared: DreamerShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose actions by the latents of the last observations; the extras are these latents."""
        latent_key, act_key = jax.random.split(key)
        params, timestep = shared.params, state.timestep
        step = partial(self.model.step, params.model_params, state.carry.state, state.carry.action)
        latent = step(timestep.observation, timestep.starts_episode, None if greedy else latent_key)
        pi = self.policy(params.actor_params, latent, timestep.observation.action_mask)
        action = pi.mode() if greedy else pi.sample(seed=act_key)
        return LastAction(latent, action), action, self.model.stored(latent)

    def policy(self, params: PyTree, latent: Latent, action_mask: jax.Array | None) -> Distribution:
        """Return the policy in latents."""
        masked = mask_argument(self.actor.action_head, action_mask)
        return self.actor.apply(params, latent.features, head_kwargs=masked)

    def sample_action(self, params: PyTree, latent: Latent, action_mask: jax.Array | None, key: jax.Array) -> jax.Array:
        """Draw actions of the policy in latents."""
        return self.policy(params, latent, action_mask).sample(seed=key)

    def inspect(self, shared: DreamerShared, observation: Observation) -> NetworkOutputs:
        carry = self.init_carry(len(jax.tree.leaves(observation.agent_view)[0]))
        starts = jnp.ones(len(carry.action), bool)
        latent = self.model.step(shared.params.model_params, *carry, observation, starts, None)
        pi = self.policy(shared.params.actor_params, latent, observation.action_mask)
        return NetworkOutputs(pi, self.critic.apply(shared.params.critic_params, latent.features).mean())

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        return agent._replace(local=self.replay.add(agent.local, trajectory))

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        entries = self.replay.sample(agent.local, key).entries
        return jax.tree.map(partial(merge_leading_dims, num_dims=2), entries.observation)

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        return replay_epochs(self.sgd_step, agent, key, self.gradient_steps)

    def sgd_step(self, agent: Agent, sample_key: jax.Array, loss_key: jax.Array) -> tuple[Agent, Metrics]:
        """Take a gradient step on all losses, and write the new latents back to the replay buffer."""
        shared, batch = agent.shared, self.replay.sample(agent.local, sample_key)
        others = unpack(shared.slow_critic), shared.return_scale, batch, loss_key
        params, opt_state, (metrics, latent, return_scale) = gradient_step(
            self.loss, self.optim, self.axes, shared.params, shared.opt_state, *others
        )
        slow_critic = optax.incremental_update(params.critic_params, shared.slow_critic, self.config.tau)
        local = self.replay.refresh(agent.local, batch.indices, self.model.stored(latent))
        return Agent(DreamerShared(params, slow_critic, opt_state, return_scale), local), metrics

    def loss(
        self, params: DreamerParams, slow_critic: PyTree, return_scale: PyTree, batch: StreamBatch, key: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Compute the sum of all losses; also metrics, the new latents `[T, B]` and the percentiles of returns."""
        config, entries = self.config, batch.entries
        model_key, imagine_key, entropy_key = jax.random.split(key, 3)
        model_loss, latent, metrics = self.model.loss(params.model_params, batch, model_key)
        # Imagination starts from every replayed state, and teaches the world model nothing.
        frozen, start = jax.lax.stop_gradient((params, latent))
        start, mask = jax.tree.map(partial(merge_leading_dims, num_dims=2), (start, entries.observation.action_mask))
        act = partial(self.sample_action, frozen.actor_params)
        dream = self.model.imagine(frozen.model_params, start, mask, act, imagine_key, config.imagination_length)
        dream = jax.lax.stop_gradient(dream)
        critic = self.critic.apply(params.critic_params, dream.latent.features)
        value = jax.lax.stop_gradient(critic.mean())
        first, later = (
            jax.tree.map(lambda x, part=part: x[part], dream.latent) for part in (slice(-1), slice(1, None))
        )
        returns, weight = imagined_returns(
            self.model.reward(frozen.model_params, later).mean(),
            self.model.continues(frozen.model_params, later),
            value,
            entries.terminated.reshape(-1),
            config.gamma,
            config.gae_lambda,
        )
        return_scale = self.returns.update(return_scale, returns)
        advantage = (returns - value[:-1]) / self.returns.scale(return_scale)
        pi = self.policy(params.actor_params, first, dream.mask)
        entropy = pi.entropy(seed=entropy_key)
        # Equation 6: REINFORCE with an entropy bonus.
        policy_loss = jnp.mean(weight * (-pi.log_prob(dream.action) * advantage - config.ent_coef * entropy))
        value_loss = jnp.mean(weight * self.value_losses(critic[:-1], slow_critic, first, returns))
        replay_returns, counts = replayed_returns(
            entries, returns[0].reshape(entries.reward.shape), config.gamma, config.gae_lambda
        )
        before = jax.tree.map(lambda x: x[:-1], latent)
        critic = self.critic.apply(params.critic_params, before.features)
        replay_loss = jnp.mean(counts * self.value_losses(critic, slow_critic, before, replay_returns))
        loss = model_loss + policy_loss + config.vf_coef * value_loss + config.replay_vf_coef * replay_loss
        metrics |= {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "replay_value_loss": replay_loss,
            "entropy": jnp.mean(entropy),
            "value": jnp.mean(value[0]),
            "imagined_return": jnp.mean(returns[0]),
            "return_range": self.returns.scale(return_scale),
        }
        return loss, (metrics, jax.lax.stop_gradient(latent), return_scale)

    def value_losses(self, critic: Any, slow_params: PyTree, latent: Latent, returns: jax.Array) -> jax.Array:
        """Compute the losses of values towards their returns, and towards the slow average of the critic."""
        slow = jax.lax.stop_gradient(self.critic.apply(slow_params, latent.features).mean())
        return two_hot_loss(critic, returns, slow, weights=(1.0, self.config.slow_critic_coef))

    def dream(
        self, shared: DreamerShared, observation: Observation, action: jax.Array, context: int, key: jax.Array
    ) -> Dream:
        """Predict observations from the first ones and the actions."""
        dream = self.model.dream(shared.params.model_params, observation, action, context)
        return dream._replace(reward=dream.reward / self.config.reward_scale)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build DreamerV3; the floats of the hyperparameters may be traced."""
    networks = spec.networks
    model = make_world_model(config.model, spec)
    stored = jax.tree.map(lambda x: x[0], model.stored(model.initial((1,))))
    return Dreamer(
        config,
        spec.axes,
        model,
        actor=FeedForwardActor(networks.actor_network.action_head, networks.actor_network.pre_torso),
        critic=FeedForwardCritic(networks.critic_network.critic_head, networks.critic_network.pre_torso),
        optim=config.laprop.make_optimiser(),
        returns=make_return_scale(config.returns, spec.axes),
        replay=make_stream_replay(config.replay, spec, stored, config.reward_scale),
        action_space=spec.action_space,
        gradient_steps=config.replay.steps_per_update(config.rollout_length, spec.num_envs, spec.num_shards),
    )


build, run_experiment, hydra_entry_point = entry_points("dreamer/dreamer_v3", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
