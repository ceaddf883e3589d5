"""MPO with feed-forward networks (Abdolmaleki et al. 2018, arXiv:1806.06920), with bounds as in arXiv:1812.02256."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    Agent,
    Distribution,
    Loss,
    Metrics,
    Observation,
    OnlineAndTarget,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    Trajectory,
    Transition,
)
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError
from stoix_like.networks.heads import PolicyHead
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, policy_and_critics
from stoix_like.schema import INT32_MAX, above, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.mpo.actions import check_bounded, excess, proposals
from stoix_like.systems.mpo.duals import DualConfig, Duals, constrained_policy_loss, make_dual_optimiser, positive
from stoix_like.systems.off_policy.actor_critic import OffPolicyActorCritic, OffPolicyShared, make_critics, make_parts
from stoix_like.systems.parts.action_vectors import as_vector
from stoix_like.systems.parts.exploration import persist_noise_keys
from stoix_like.systems.parts.normalizer import ReplayNormalisation
from stoix_like.systems.parts.optimiser import Gradients, gradient_step
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.utils.jax_utils import merge_leading_dims, periodically
from stoix_like.utils.loss import mpo_policy_loss, mpo_temperature_loss
from stoix_like.utils.multistep import batch_retrace_continuous
from stoix_like.utils.replay import WholeWindowsConfig
from stoix_like.utils.training import join_optimisers


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of MPO."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box, Discrete, MultiDiscrete)
    network_heads: ClassVar = policy_and_critics(STOCHASTIC_POLICY, VALUE)
    replay: WholeWindowsConfig
    normalisation: ReplayNormalisation
    duals: DualConfig
    gradients: Gradients
    target: SoftTarget
    resets: PeriodicResets
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    q_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critic
    policy_frequency: Annotated[int, between(1, INT32_MAX)]  # gradient steps of the critic per step of the policy
    noise_correlation: Annotated[float, between(0.0, 1.0)]  # correlation of the noise between successive steps
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    num_samples: Annotated[int, between(2, 2**16)]  # actions of the target policy per observation
    retrace_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of the Retrace returns
    action_penalty: bool  # whether actions out of bounds count as worse the further out they are (MO-MPO)
    epsilon_penalty: Annotated[float, above(0.0)]  # bound on the divergence of the weights by this penalty, in nats


class MPOParams(NamedTuple):
    """Parameters of the policy and the critic, with their targets, and the duals."""

    actor_params: OnlineAndTarget
    q_params: OnlineAndTarget
    duals: Duals


class MPOOptStates(NamedTuple):
    """Optimiser states of policy, critic and duals."""

    actor_opt_state: PyTree
    q_opt_state: PyTree
    dual_opt_state: PyTree


@dataclass(frozen=True)
class MPO(OffPolicyActorCritic[Config]):
    """MPO with its hyperparameters, networks and optimisers."""

    dual_optim: optax.GradientTransformation
    action_space: Any

    def init_shared(self, key: jax.Array, observation: Observation) -> OffPolicyShared:
        actor_key, q_key, action_key = jax.random.split(key, 3)
        actor_params = self.actor.init(actor_key, observation)
        pi = self.actor.apply(actor_params, observation)
        q_params = self.critics.init(q_key, *self.critic_input(observation, pi.sample(seed=action_key)))
        duals = self.config.duals.init(pi, penalised=self.config.action_penalty)
        params = MPOParams(self.target.init(actor_params), self.target.init(q_params), duals)
        opt_states = MPOOptStates(
            self.actor_optim.init(actor_params), self.q_optim.init(q_params), self.dual_optim.init(duals)
        )
        return OffPolicyShared(params, opt_states, jnp.zeros((), jnp.int32))

    def pi(self, params: MPOParams, observation: Observation) -> Distribution:
        return self.actor.apply(params.actor_params.online, observation)

    def value(self, params: MPOParams, observation: Observation, action: jax.Array) -> jax.Array:
        return self.q_value(params.q_params.online, observation, action)

    def act(self, shared: OffPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose an action for each environment; the extras are the actions and their log-probabilities."""
        pi = self.pi(shared.params, self.normalizer.apply(shared.statistics, state.timestep.observation))
        if greedy:
            return state.carry, pi.mode(), ()
        keys = persist_noise_keys(state.carry, state.timestep, key, self.config.noise_correlation)
        action = jax.vmap(lambda pi, key: pi.sample(seed=key))(pi, keys)
        return keys, action, (action, pi.log_prob(action))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout to the replay buffer, with log-probabilities as extras, and to the statistics."""
        steps = trajectory.transitions
        chosen, log_prob = steps.extras
        # Rollouts of the warm-up have random actions, not the policy's: an infinite log-probability ends the trace.
        steps = steps._replace(extras=jnp.where(jnp.all(chosen == steps.action), log_prob, jnp.inf))
        return super().observe(agent, trajectory._replace(transitions=steps))

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        windows = super().observations(agent, trajectory, key)
        return jax.tree.map(partial(merge_leading_dims, num_dims=2), windows)

    def draw(self, buffer: PyTree, key: jax.Array) -> Transition:
        """Draw windows `[W, B]` from the replay buffer."""
        return self.replay.sample_steps(buffer, key)

    def sgd_step(self, shared: OffPolicyShared, batch: Transition, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the critic and its target, and every `policy_frequency` steps the policy, its target and the duals."""
        q_key, actor_key = jax.random.split(key)
        loss = partial(self.critic_loss, params=shared.params, steps=batch, key=q_key)
        shared, q_metrics = self.critic_step(shared, loss)
        shared = self.move_target_critics(shared)
        improve = partial(self.improve, observation=batch.observation, key=actor_key)
        shared, metrics = periodically(improve, shared, shared.steps, self.config.policy_frequency)
        return shared._replace(steps=shared.steps + 1), q_metrics | metrics

    def improve(
        self, shared: OffPolicyShared, observation: Observation, key: jax.Array
    ) -> tuple[OffPolicyShared, Metrics]:
        """Update the policy, its target and the duals."""
        params, opt_states = shared.params, shared.opt_states
        loss = partial(self.policy_loss, params=params, observation=observation, key=key)
        (online, duals), (actor_opt_state, dual_opt_state), metrics = gradient_step(
            loss,
            join_optimisers(self.actor_optim, self.dual_optim),
            self.axes,
            (params.actor_params.online, params.duals),
            (opt_states.actor_opt_state, opt_states.dual_opt_state),
        )
        actor_params = self.target.update(params.actor_params._replace(online=online))
        params = MPOParams(actor_params, params.q_params, duals)
        opt_states = MPOOptStates(actor_opt_state, opt_states.q_opt_state, dual_opt_state)
        return shared._replace(params=params, opt_states=opt_states), metrics

    def critic_loss(self, q_params: PyTree, params: MPOParams, steps: Transition, key: jax.Array) -> Loss:
        """Compute squared errors to the Retrace returns of the target policy (equation 14)."""
        actor_target, q_target = params.actor_params.target, params.q_params.target
        _, log_prior, q_t = self.evaluate_policy(actor_target, q_target, steps.next_observation, key)
        log_prob = self.actor.apply(actor_target, steps.observation).log_prob(steps.action)
        q_tm1 = self.q_value(q_params, steps.observation, steps.action)
        later_q = self.q_value(q_target, steps.observation, steps.action)[1:]
        v_t = jnp.sum(jax.nn.softmax(log_prior, axis=0) * q_t, axis=0)
        discount, log_rhos = self.config.gamma * (1.0 - steps.terminated), (log_prob - steps.extras)[1:]
        inputs = q_tm1, later_q, v_t, steps.reward, discount, log_rhos, self.config.retrace_lambda
        errors = batch_retrace_continuous(*inputs, truncation_t=steps.truncated, time_major=True)
        loss = 0.5 * jnp.mean(jnp.square(errors))
        return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1)}

    def policy_loss(
        self, learned: tuple[PyTree, Duals], params: MPOParams, observation: Observation, key: jax.Array
    ) -> Loss:
        """Compute the losses of the temperature, the policy and its multipliers (equations 8 to 12)."""
        (actor_params, duals), targets = learned, (params.actor_params.target, params.q_params.target)
        action, log_prior, q = self.evaluate_policy(*targets, observation, key)
        temperature_loss, weights = self.weigh(duals, action, log_prior, q)
        pi, target_pi = (self.actor.apply(params, observation) for params in (actor_params, targets[0]))
        policy_loss, metrics = constrained_policy_loss(
            self.config.duals, duals, pi, target_pi, lambda pi: mpo_policy_loss(pi.log_prob(action), weights)
        )
        metrics |= {"policy_loss": policy_loss, "temperature": positive(duals.temperature)}
        return temperature_loss + policy_loss, metrics

    def weigh(self, duals: Duals, action: jax.Array, log_prior: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute the loss of the temperatures and the weights `[S, B]` of actions, by value and by penalty."""
        config = self.config
        loss, weights = mpo_temperature_loss(q, positive(duals.temperature), config.duals.epsilon, log_prior)
        if not config.action_penalty:
            return loss, weights
        penalty = -excess(self.action_space, action)
        temperature = positive(duals.penalty_temperature)
        penalty_loss, penalty_weights = mpo_temperature_loss(penalty, temperature, config.epsilon_penalty)
        return loss + penalty_loss, weights + penalty_weights

    def evaluate_policy(
        self, actor_params: PyTree, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return actions `[S, ...]` of a policy for each observation, their log-weights and their values."""
        pi = self.actor.apply(actor_params, observation)
        action, log_prior = proposals(self.action_space, pi, self.config.num_samples, key)
        return action, log_prior, jax.vmap(partial(self.q_value, q_params, observation))(action)

    def q_value(self, q_params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the values of actions."""
        return self.critics.apply(q_params, *self.critic_input(observation, action))[..., 0]

    def critic_input(self, observation: Observation, action: jax.Array) -> tuple[PyTree, ...]:
        """Return the inputs of the critic; discrete actions are one-hot."""
        return observation, {"action": as_vector(self.action_space, action)}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build MPO; the floats of the hyperparameters may be traced."""
    if config.action_penalty:
        check_bounded(spec.action_space)
        head = spec.networks.actor_network.action_head
        if getattr(head, "within_bounds", PolicyHead.within_bounds):
            raise ConfigError(
                f"system.action_penalty=true weights actions out of bounds, and {type(head).__name__} draws none: use"
                " false, or network.actor_network.action_head._target_="
                "stoix_like.networks.heads.MultivariateNormalDiagHead"
            )
    parts = make_parts(config, spec, make_critics(spec.networks.q_network, 1))
    return MPO(**parts, dual_optim=make_dual_optimiser(config.duals), action_space=spec.action_space)


build, run_experiment, hydra_entry_point = entry_points("mpo/ff_mpo", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
