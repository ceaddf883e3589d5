"""Relative entropy pathwise policy optimisation (Voelcker et al. 2025, arXiv:2507.11019).

Unlike in the paper, the critic has no auxiliary loss. Rewards are normalised by default, for which the support of
its distribution is smaller. The authors' environments start at random ages, `env.staggered_starts=true`; the presets do
not.
"""

from __future__ import annotations

import math
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
)
from stoix_like.envs.spaces import Box, Space
from stoix_like.networks.base import FeedForwardActor, MultiNetwork
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE_ATOMS, policy_and_critics
from stoix_like.schema import above, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.actor_critic import make_critics
from stoix_like.systems.on_policy.epochs import MinibatchConfig, minibatch_epochs
from stoix_like.systems.parts.action_vectors import target_entropy
from stoix_like.systems.parts.distributional import AtomsConfig, configure_head
from stoix_like.systems.parts.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.reppo.reppo_types import REPPOOptStates, REPPOParams, REPPOShared, REPPOTransition, SoftValue
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss import hl_gauss_loss, is_outside, sac_temperature_loss
from stoix_like.utils.multistep import batch_lambda_returns


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of REPPO."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    network_heads: ClassVar = policy_and_critics(STOCHASTIC_POLICY, VALUE_ATOMS, ("num_atoms", "vmin", "vmax"))
    atoms: AtomsConfig
    minibatches: MinibatchConfig
    gradients: Gradients
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    normalize_rewards: bool = False  # divide rewards by the running standard deviation of the discounted return
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    q_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critic
    dual_lr: Annotated[float, above(0.0)]  # Adam learning rate of the logarithms of the temperature and the multiplier
    q_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step returns
    # Negative target entropy in nats per action dimension, for actions in units of half their range.
    target_entropy_scale: Annotated[float, above(-math.log(2.0))]
    init_alpha: Annotated[float, above(0.0)]  # initial temperature, in scaled rewards per nat of entropy
    target_kl: Annotated[float, above(0.0)]  # bound of the divergence from the behaviour policy, in nats
    init_kl_multiplier: Annotated[float, above(0.0)]  # initial multiplier of this constraint, in scaled rewards per nat
    normalize_observations: bool  # whether observations are normalised by their running mean and standard deviation

    def notes(self, action_space: Space) -> tuple[str, ...]:
        notes = super().notes(action_space)
        if isinstance(action_space, Box):
            notes += self.atoms.entropy_notes("init_alpha", self.init_alpha, self.gamma, action_space)
        return notes


@dataclass(frozen=True)
class REPPO(Algorithm):
    """REPPO with its hyperparameters, networks and optimisers."""

    config: Config
    axes: Axes
    actor: FeedForwardActor
    critic: MultiNetwork
    actor_optim: optax.GradientTransformation
    q_optim: optax.GradientTransformation
    dual_optim: optax.GradientTransformation
    normalizer: Normalizer
    reward_normalizer: RewardNormalizer
    action_space: Any

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        actor_key, q_key, action_key = jax.random.split(key, 3)
        observation = timestep.observation
        actor_params = self.actor.init(actor_key, observation)
        action = self.actor.apply(actor_params, observation).sample(seed=action_key)
        q_params = self.critic.init(q_key, *self.critic_input(observation, action))
        initial = (self.config.init_alpha, self.config.init_kl_multiplier)
        duals = tuple(jnp.log(jnp.asarray(value, jnp.float32)) for value in initial)
        opt_states = REPPOOptStates(
            self.actor_optim.init(actor_params), self.q_optim.init(q_params), self.dual_optim.init(duals)
        )
        statistics = self.normalizer.init(observation), self.reward_normalizer.init()
        shared = REPPOShared(REPPOParams(actor_params, q_params, *duals), opt_states, *statistics)
        return Agent(shared, self.reward_normalizer.init_returns(len(timestep.reward)))

    def act(self, shared: REPPOShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        pi = self.actor.apply(shared.params.actor_params, observation)
        return state.carry, pi.mode() if greedy else pi.sample(seed=key), ()

    def inspect(self, shared: REPPOShared, observation: Observation) -> NetworkOutputs:
        observation = self.normalizer.apply(shared.statistics, observation)
        pi = self.actor.apply(shared.params.actor_params, observation)
        return NetworkOutputs(pi, self.value(shared.params.q_params, observation, pi.mode()))

    def value(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the mean values of actions."""
        return self.output(q_params, observation, action)[0]

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        target_key, key = jax.random.split(key)
        steps = trajectory.transitions
        reward, statistics, returns = self.reward_normalizer.apply(agent.shared.return_statistics, agent.local, steps)
        behaviour = agent.shared._replace(return_statistics=statistics)
        trajectory = trajectory._replace(transitions=steps._replace(reward=reward))
        batch = jax.tree.map(lambda x: merge_leading_dims(x, 2), self.evaluate(behaviour, trajectory, target_key))

        sgd_step = partial(self.sgd_step, behaviour.params.actor_params)
        shared, metrics = minibatch_epochs(sgd_step, behaviour, batch, key, self.config.minibatches)
        # Updated last: the divergence from the behaviour policy needs its statistics.
        statistics = self.normalizer.update(shared.statistics, steps.observation)
        return Agent(shared._replace(statistics=statistics), returns), metrics

    def evaluate(self, shared: REPPOShared, trajectory: Trajectory, key: jax.Array) -> REPPOTransition:
        """Compute soft lambda-returns `[T, N]`, with one action of the policy at each true successor."""
        steps, params, config = trajectory.transitions, shared.params, self.config
        next_observation = self.normalizer.apply(shared.statistics, steps.next_observation)
        soft = self.evaluate_policy(params.actor_params, params.q_params, next_observation, key)
        discount = config.gamma * (1.0 - steps.terminated)
        reward = config.reward_scale * steps.reward - discount * jnp.exp(params.log_alpha) * soft.log_prob
        target = batch_lambda_returns(
            reward, discount, soft.q, config.q_lambda, time_major=True, truncation_t=steps.truncated
        )
        observation = self.normalizer.apply(shared.statistics, steps.observation)
        return REPPOTransition(observation, steps.action, target)

    def sgd_step(
        self, b_actor_params: PyTree, shared: REPPOShared, batch: REPPOTransition, key: jax.Array
    ) -> tuple[REPPOShared, Metrics]:
        """Update the critic, then the policy, then both multipliers; the first argument is the behaviour policy."""
        params, opt_states = shared.params, shared.opt_states
        q_params, q_opt_state, q_metrics = gradient_step(
            self.critic_loss, self.q_optim, self.axes, params.q_params, opt_states.q_opt_state, batch
        )
        params = params._replace(q_params=q_params)
        loss = partial(self.policy_loss, params=params, b_actor_params=b_actor_params, batch=batch, key=key)
        actor_params, actor_opt_state, metrics = gradient_step(
            loss, self.actor_optim, self.axes, params.actor_params, opt_states.actor_opt_state
        )
        duals, target_entropy = (params.log_alpha, params.log_kl_multiplier), self.target_entropy(batch.observation)
        duals, dual_opt_state, dual_metrics = gradient_step(
            self.dual_loss, self.dual_optim, self.axes, duals, opt_states.dual_opt_state, metrics, target_entropy
        )
        params = REPPOParams(actor_params, q_params, *duals)
        opt_states = REPPOOptStates(actor_opt_state, q_opt_state, dual_opt_state)
        return shared._replace(params=params, opt_states=opt_states), q_metrics | metrics | dual_metrics

    def critic_loss(self, q_params: PyTree, batch: REPPOTransition) -> Loss:
        """Compute cross-entropies to the targets, smoothed over the atoms."""
        q, logits, atoms = self.taken(q_params, batch)
        loss = hl_gauss_loss(logits, atoms, batch.target)
        clipped = jnp.mean(is_outside(batch.target, atoms))
        return loss, {"q_loss": loss, "q_value": jnp.mean(q), "clipped_targets": clipped}

    def policy_loss(
        self, actor_params: PyTree, params: REPPOParams, b_actor_params: PyTree, batch: REPPOTransition, key: jax.Array
    ) -> Loss:
        """Compute the negative soft value, or the divergence where it exceeds its bound."""
        soft = self.evaluate_policy(actor_params, params.q_params, batch.observation, key)
        b_pi = self.actor.apply(b_actor_params, batch.observation)
        kl = b_pi.kl_divergence(soft.pi)
        improvement = jnp.exp(params.log_alpha) * soft.log_prob - soft.q
        penalty = jnp.exp(params.log_kl_multiplier) * kl
        loss = jnp.mean(jnp.where(kl < self.config.target_kl, improvement, penalty))
        return loss, {"policy_loss": loss, "entropy": -jnp.mean(soft.log_prob), "kl": jnp.mean(kl)}

    def dual_loss(
        self, duals: tuple[jax.Array, jax.Array], metrics: Metrics, target_entropy: float | jax.Array
    ) -> Loss:
        """Compute the dual losses of both constraints."""
        log_alpha, log_kl_multiplier = duals
        entropy_loss = sac_temperature_loss(log_alpha, -metrics["entropy"], target_entropy)
        kl_loss = jnp.exp(log_kl_multiplier) * (self.config.target_kl - metrics["kl"])
        values = {"temperature": jnp.exp(log_alpha), "kl_multiplier": jnp.exp(log_kl_multiplier)}
        return entropy_loss + kl_loss, values

    def target_entropy(self, observation: Observation) -> float | jax.Array:
        """Return the target entropy in nats; the mean over a batch of observations."""
        return target_entropy(self.action_space, self.config.target_entropy_scale)

    def evaluate_policy(
        self, actor_params: PyTree, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> SoftValue:
        """Compute the value of one sampled action per observation, and its log-probability."""
        pi = self.actor.apply(actor_params, observation)
        action, log_prob = pi.sample_and_log_prob(seed=key)
        return SoftValue(pi, self.output(q_params, observation, action)[0], log_prob)

    def taken(self, q_params: PyTree, batch: REPPOTransition) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Compute means `[B]`, logits and atoms `[B, K]` of the actions taken."""
        mean, logits, atoms = self.output(q_params, batch.observation, batch.action)
        return mean, logits, atoms

    def output(self, q_params: PyTree, observation: Observation, action: jax.Array | None) -> PyTree:
        """Compute the output of the critic: means `[...]`, logits and atoms `[..., K]`."""
        output = self.critic.apply(q_params, *self.critic_input(observation, action))
        return jax.tree.map(lambda x: x[..., 0], output)

    def critic_input(self, observation: Observation, action: jax.Array | None) -> tuple[PyTree, ...]:
        """Return the inputs of the critic."""
        return observation, {"action": action}


def make_algorithm(config: Config, spec: SystemSpec, algorithm: type[REPPO] = REPPO) -> Algorithm:
    """Build REPPO or a variant."""
    actor, q_network = spec.networks.actor_network, spec.networks.q_network
    optim = partial(make_optimiser, config, spec)
    return algorithm(
        config,
        spec.axes,
        actor=FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
        critic=make_critics(q_network, 1, configure_head(q_network.critic_head, config.atoms.support)),
        actor_optim=optim(config.actor_lr),
        q_optim=optim(config.q_lr),
        dual_optim=optim(config.dual_lr),
        normalizer=make_normalizer(config.normalize_observations, spec.axes),
        reward_normalizer=make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes),
        action_space=spec.action_space,
    )


build, run_experiment, hydra_entry_point = entry_points("reppo/ff_reppo", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
