"""Soft actor-critic with twin critics (Haarnoja et al. 2018, arXiv:1812.05905, the source of the equations).

With more critics, and fewer for the target, this is REDQ (Chen et al. 2021, arXiv:2101.05982); `network=mlp_droq` has
the critics of DroQ (Hiraoka et al. 2022, arXiv:2110.02034).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import optax

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
from stoix_like.networks.layers import DROPOUT
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, policy_and_critics
from stoix_like.schema import INT32_MAX, above, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.actor_critic import OffPolicyActorCritic, OffPolicyShared, make_critics, make_parts
from stoix_like.systems.parts.chunks import ChunkedReplay
from stoix_like.systems.parts.conservatism import SampledConservatism, SampledPenalty, make_sampled_penalty, no_penalty
from stoix_like.systems.parts.exploration import persist_noise_keys
from stoix_like.systems.parts.normalizer import ReplayNormalisation
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.symmetry import SymmetryConfig
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.sac.sac_types import Ensemble, SACOptStates, SACParams, TargetCritics, make_ensemble
from stoix_like.systems.sac.temperature import Temperature
from stoix_like.utils.jax_utils import Scalar, periodically
from stoix_like.utils.loss import sac_actor_loss_per_example, sac_critic_loss_per_example
from stoix_like.utils.replay import Batch, ReplayConfig


@dataclass(frozen=True, kw_only=True)
class BaseConfig(SystemConfig):
    """Hyperparameters shared by all variants of SAC."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    network_heads: ClassVar = policy_and_critics(STOCHASTIC_POLICY, VALUE, dropout=True)
    replay: ReplayConfig
    normalisation: ReplayNormalisation
    gradients: Gradients
    resets: PeriodicResets
    temperature: Temperature
    symmetry: SymmetryConfig
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    q_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critics
    policy_frequency: Annotated[int, between(1, INT32_MAX)]  # critic steps per step of the policy and the temperature
    noise_correlation: Annotated[float, between(0.0, 1.0)]  # correlation of the noise between successive steps
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    num_critics: Annotated[int, between(1, 1000)] = 2  # number of critics


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Hyperparameters of SAC."""

    replay: ChunkedReplay
    target: SoftTarget
    ensemble: TargetCritics
    conservatism: SampledConservatism


ConfigT = TypeVar("ConfigT", bound=BaseConfig)


@dataclass(frozen=True)
class SAC(OffPolicyActorCritic[ConfigT]):
    """SAC with its hyperparameters, networks and optimisers; targets may come from a random subset of the critics."""

    alpha_optim: optax.GradientTransformation
    action_space: Any
    ensemble: Ensemble
    penalty: SampledPenalty = no_penalty

    def init_shared(self, key: jax.Array, observation: Observation) -> OffPolicyShared:
        actor_key, q_key = jax.random.split(key)
        action = jnp.zeros((len(jax.tree.leaves(observation)[0]), *self.action_space.shape))
        actor_params = self.init_actor(actor_key, observation, action)
        q_params = self.critics.init(q_key, *self.critic_input(observation, action))
        log_alpha = self.config.temperature.init()
        params = SACParams(actor_params, self.target.init(q_params), log_alpha)
        opt_states = SACOptStates(
            self.actor_optim.init(actor_params), self.q_optim.init(q_params), self.alpha_optim.init(log_alpha)
        )
        return OffPolicyShared(params, opt_states, jnp.zeros((), jnp.int32))

    def init_actor(self, key: jax.Array, observation: Observation, action: jax.Array) -> PyTree:
        """Initialise the policy for observations and actions `[N, ...]`."""
        return self.actor.init(key, observation)

    def pi(self, params: SACParams, observation: Observation) -> Distribution:
        return self.actor.apply(params.actor_params, observation)

    def value(self, params: SACParams, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the values that the policy maximises: the least of the critics', or their mean (REDQ)."""
        q = self.q_values(params.q_params.online, observation, action, None)
        return jnp.min(self.ensemble.policy(q), axis=-1)

    def act(self, shared: OffPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Sample an action for each environment, with persistent noise if configured; or take the mode."""
        pi = self.pi(shared.params, self.normalizer.apply(shared.statistics, state.timestep.observation))
        if greedy:
            return state.carry, pi.mode(), ()
        keys = persist_noise_keys(state.carry, state.timestep, key, self.config.noise_correlation)
        return keys, jax.vmap(lambda pi, key: pi.sample(seed=key))(pi, keys), ()

    def sgd_step(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the critics and their targets, and every `policy_frequency` steps the policy and the temperature."""
        q_key, actor_key = jax.random.split(key)
        before = shared.params
        shared, q_metrics = self.improve_critics(shared, batch, q_key)
        improve = partial(self.improve, batch=batch, key=actor_key)
        shared, metrics = periodically(improve, shared, shared.steps, self.config.policy_frequency)
        metrics |= {"temperature": self.temperature(before)}
        return shared._replace(steps=shared.steps + 1), q_metrics | metrics

    def improve_critics(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the critics and their targets."""
        loss = partial(self.critic_loss, params=shared.params, batch=batch, key=key)
        shared, metrics = self.critic_step(shared, loss)
        return self.move_target_critics(shared), metrics

    def critic_loss(self, q_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute squared errors to the soft value of the successor (equations 5 and 6); rewards are not soft."""
        q_t, log_prob_t = self.evaluate_policy(params, params.q_params.target, batch.next_observation, key)
        q_tm1 = self.q_taken(q_params, batch, key)
        losses = sac_critic_loss_per_example(
            q_tm1, batch.reward, batch.discount, self.ensemble.target(q_t, key), log_prob_t, self.temperature(params)
        )
        loss = self.penalty(self, jnp.mean(batch.weight * losses), q_params, params, batch, q_tm1, key)
        return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1)}

    def improve(self, shared: OffPolicyShared, batch: Batch, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Update the policy, and the temperature towards the target entropy."""
        loss = partial(self.actor_loss, params=shared.params, batch=batch, key=key)
        shared, metrics = self.actor_step(shared, loss)
        params, opt_states, temperature = shared.params, shared.opt_states, self.config.temperature
        if not temperature.autotune:
            return shared, metrics
        target_entropy = self.target_entropy(batch.observation)
        dual_loss = partial(temperature.dual_loss, entropy=metrics["entropy"], target_entropy=target_entropy)
        log_alpha, alpha_opt_state, alpha_metrics = gradient_step(
            dual_loss, self.alpha_optim, self.axes, params.log_alpha, opt_states.alpha_opt_state
        )
        params, opt_states = params._replace(log_alpha=log_alpha), opt_states._replace(alpha_opt_state=alpha_opt_state)
        return shared._replace(params=params, opt_states=opt_states), metrics | alpha_metrics

    def actor_loss(self, actor_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute the negative soft value of the policy (equation 7)."""
        params = params._replace(actor_params=actor_params)
        q, log_prob = self.evaluate_policy(params, params.q_params.online, batch.observation, key)
        losses = sac_actor_loss_per_example(log_prob, self.ensemble.policy(q), self.temperature(params))
        loss = jnp.mean(batch.weight * losses)
        return loss, {"actor_loss": loss, "entropy": -jnp.mean(log_prob)}

    def target_entropy(self, observation: Observation) -> Scalar:
        """Return the target entropy in nats, the mean over a batch of observations."""
        return self.config.temperature.target_entropy(self.action_space, observation)

    def temperature(self, params: SACParams) -> jax.Array:
        """Return the temperature, a scalar."""
        return self.config.temperature.value(params.log_alpha)

    def evaluate_policy(
        self, params: SACParams, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        """Compute the values `[B, C]` of one sampled action per observation, and its log-probability `[B]`."""
        action, log_prob = self.actor.apply(params.actor_params, observation).sample_and_log_prob(seed=key)
        return self.q_values(q_params, observation, action, key), log_prob

    def q_taken(self, q_params: PyTree, batch: Batch, key: jax.Array) -> PyTree:
        """Compute the values `[B, C]` of the actions taken."""
        # Folded: another dropout mask than the target's.
        return self.q_values(q_params, batch.observation, batch.action, jax.random.fold_in(key, 1))

    def q_values(
        self, q_params: PyTree, observation: Observation, action: jax.Array | None, key: jax.Array | None
    ) -> PyTree:
        """Apply the critics, with the key for their dropout, if any; None for no dropout."""
        rngs = None if key is None else {DROPOUT: key}
        return self.critics.apply(q_params, *self.critic_input(observation, action), rngs=rngs)

    def critic_input(self, observation: Observation, action: jax.Array | None) -> tuple[PyTree, ...]:
        """Return the inputs of the critics."""
        return observation, {"action": action}


SACT = TypeVar("SACT", bound=SAC[Any])


def make_variant(
    config: BaseConfig, spec: SystemSpec, algorithm: type[SACT], critic_head: Any = None, b1: Scalar = 0.9
) -> SACT:
    """Build SAC or a variant, which may have another head of critics, and another decay of means in Adam."""
    critics = make_critics(spec.networks.q_network, config.num_critics, critic_head)
    return algorithm(
        **make_parts(config, spec, critics, b1),
        alpha_optim=make_optimiser(config, spec, config.temperature.alpha_lr, config.policy_frequency),
        action_space=spec.action_space,
        ensemble=make_ensemble(config.find_part(TargetCritics), config.num_critics),
    )


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build SAC; the floats of the hyperparameters may be traced."""
    penalty = make_sampled_penalty(config.conservatism, spec.action_space)
    return replace(make_variant(config, spec, SAC), penalty=penalty)


build, run_experiment, hydra_entry_point = entry_points("sac/ff_sac", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
