"""Sequential Monte Carlo policy optimisation with feed-forward networks (Macfarlane et al. 2024, arXiv:2402.07963).

Expectation maximisation with a search as E-step: particles follow the policy in the environment itself, weighted by
the exponential of their advantages, and resampled. The policy learns the weights of their first actions, within bounds
on its change; the temperature of the weights is learned, as in MPO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    ActorCriticOptStates,
    ActorCriticParams,
    Agent,
    Axes,
    Distribution,
    Loss,
    Metrics,
    NetworkOutputs,
    Observation,
    OnlineAndTarget,
    PyTree,
    RolloutState,
    SearchOutput,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.schema import above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.mpo.duals import DualConfig, Duals, constrained_policy_loss, make_dual_optimiser, positive
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.on_policy.networks import NETWORK_HEADS, ActorCriticNetworks, make_networks
from stoix_like.systems.parts.normalizer import Normalizer, make_normalizer
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.target import SoftTarget, TargetParameters, make_soft_target
from stoix_like.systems.spo.smc import ParticleSearch, SearchedStep, SMCConfig
from stoix_like.utils.loss import mpo_policy_loss, mpo_temperature_loss
from stoix_like.utils.multistep import batch_truncated_generalized_advantage_estimation
from stoix_like.utils.replay import SequenceBatch, SequenceReplay, StepSequenceConfig, Stored, make_sequence_replay
from stoix_like.utils.training import join_optimisers


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of SPO."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box, Discrete, MultiDiscrete)
    network_heads: ClassVar = NETWORK_HEADS
    policy_hyperparams: ClassVar = {"evaluation_particles": 0}
    needs_model: ClassVar[bool] = True
    smc: SMCConfig
    duals: DualConfig
    replay: StepSequenceConfig
    gradients: Gradients
    target: SoftTarget
    resets: PeriodicResets
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    critic_lr: Annotated[float, above(0.0)]  # Adam learning rate of the critic
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    gae_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of the value targets, in [0, 1]
    vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss
    normalize_observations: bool  # whether observations are normalised by their running mean and standard deviation


class SPOParams(NamedTuple):
    """Parameters of policy and critic, with their targets, and the duals."""

    networks: OnlineAndTarget
    duals: Duals


class SPOShared(NamedTuple):
    """Parameters, optimiser states of networks and duals, statistics of observations, what options need, by name."""

    params: SPOParams
    opt_states: PyTree
    statistics: PyTree
    parts: PyTree = ()


@dataclass(frozen=True)
class SPO(Algorithm):
    """SPO with its hyperparameters, networks and optimisers."""

    config: Config
    axes: Axes
    networks: ActorCriticNetworks
    optim: optax.GradientTransformation
    target: TargetParameters
    normalizer: Normalizer
    replay: SequenceReplay
    searcher: ParticleSearch

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        statistics, online = self.normalizer.init(timestep.observation), self.networks.init(key, timestep.observation)
        duals = self.config.duals.init(self.networks.policy(online, timestep.observation))
        params = SPOParams(self.target.init(online), duals)
        return Agent(SPOShared(params, self.optim.init((online, duals)), statistics), self.replay.init(timestep))

    def search(
        self, shared: SPOShared, state: RolloutState, key: jax.Array, num_particles: int, greedy: bool = False
    ) -> tuple[SearchOutput, SearchedStep]:
        """Search from the states of the environments, with the current policy."""

        def networks(observation: Observation) -> tuple[Distribution, jax.Array]:
            return self.networks.both(shared.params.networks.online, self.normalize(shared, observation))

        temperature, observation = positive(shared.params.duals.temperature), state.timestep.observation
        return self.searcher(networks, temperature, key, state, observation, num_particles, greedy)

    def normalize(self, shared: SPOShared, observation: Observation) -> Observation:
        """Normalise observations by the current statistics."""
        return self.normalizer.apply(shared.statistics, observation)

    def act(self, shared: SPOShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose actions by a search; the extras are what it found."""
        output, found = self.search(shared, state, key, self.config.smc.num_particles, greedy)
        return state.carry, output.action, Stored((), found)

    def eval_act(self, shared: SPOShared, state: RolloutState, key: jax.Array, greedy: bool) -> Acted:
        """Choose actions by a search of `evaluation_particles`, or without one by the policy alone."""
        if particles := self.config.smc.evaluation_particles:
            return state.carry, self.search(shared, state, key, particles, greedy)[0].action, ()
        pi = self.networks.policy(shared.params.networks.online, self.normalize(shared, state.timestep.observation))
        return state.carry, pi.mode() if greedy else pi.sample(seed=key), ()

    def evaluation_search(self, greedy: bool) -> Callable[..., SearchOutput] | None:
        particles = self.config.smc.evaluation_particles

        def search(shared: SPOShared, state: RolloutState, key: jax.Array) -> SearchOutput:
            return self.search(shared, state, key, particles, greedy)[0]

        return search if particles else None

    def inspect(self, shared: SPOShared, observation: Observation) -> NetworkOutputs:
        return NetworkOutputs(*self.networks.both(shared.params.networks.online, self.normalize(shared, observation)))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout, with what its searches found, to the replay buffer and to the statistics."""
        statistics = self.normalizer.update(agent.shared.statistics, trajectory.transitions.observation)
        return Agent(agent.shared._replace(statistics=statistics), self.replay.add(agent.local, trajectory))

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.replay.sample(agent.local, key, 1.0).observations

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        def step(shared: SPOShared, sample_key: jax.Array, loss_key: jax.Array) -> tuple[PyTree, Metrics]:
            return self.sgd_step(shared, self.replay.sample(agent.local, sample_key, 1.0), loss_key)

        shared, metrics = replay_epochs(step, agent.shared, key, self.config.replay.epochs)
        return agent._replace(shared=shared), metrics

    def sgd_step(self, shared: SPOShared, batch: SequenceBatch, key: jax.Array) -> tuple[SPOShared, Metrics]:
        """Take one gradient step on policy, critic and duals, and a step of the targets towards them."""
        networks, duals = shared.params
        loss = partial(self.loss, shared=shared, batch=batch, key=key)
        (online, duals), opt_states, metrics = gradient_step(
            loss, self.optim, self.axes, (networks.online, duals), shared.opt_states
        )
        params = SPOParams(self.target.update(networks._replace(online=online)), duals)
        return shared._replace(params=params, opt_states=opt_states), metrics

    def loss(
        self, learned: tuple[ActorCriticParams, Duals], shared: SPOShared, batch: SequenceBatch, key: jax.Array
    ) -> Loss:
        """Compute the losses of policy, multipliers, temperature and critic on sequences `[W, B]`."""
        (online, duals), target, config = learned, shared.params.networks.target, self.config
        steps, found = batch.steps, batch.steps.extras
        observation = self.normalize(shared, steps.observation)
        pi, value = self.networks.both(online, observation)
        candidates, weights, advantages = (jnp.moveaxis(x, 2, 0) for x in found)
        target_pi = self.networks.policy(target, observation)
        policy_loss, metrics = constrained_policy_loss(
            config.duals, duals, pi, target_pi, lambda pi: mpo_policy_loss(pi.log_prob(candidates), weights)
        )
        temperature = positive(duals.temperature)
        temperature_loss, _ = mpo_temperature_loss(advantages, temperature, config.duals.epsilon)
        value_loss = 0.5 * jnp.mean(jnp.square(self.value_target(shared, batch) - value))
        metrics |= {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "temperature": temperature,
            "entropy": jnp.mean(pi.entropy(seed=key)),
            "value": jnp.mean(value),
        }
        return policy_loss + temperature_loss + config.vf_coef * value_loss, metrics

    def value_target(self, shared: SPOShared, batch: SequenceBatch) -> jax.Array:
        """Compute lambda-returns by the target critic."""
        steps, critic = batch.steps, partial(self.networks.value, shared.params.networks.target)
        assert steps.next_observation is not None
        v_tm1, v_t = (critic(self.normalize(shared, each)) for each in (steps.observation, steps.next_observation))
        inputs = steps.reward, self.config.gamma * (1.0 - steps.terminated), self.config.gae_lambda, None, v_tm1, v_t
        return batch_truncated_generalized_advantage_estimation(
            *inputs, truncation_t=steps.truncated, stop_target_gradients=True, time_major=True
        )[1]


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build SPO; the floats of the hyperparameters may be traced."""
    assert spec.model is not None
    action, num_particles = jax.eval_shape(spec.action_space.sample, jax.random.key(0)), config.smc.num_particles
    nothing = jnp.zeros((num_particles,), jnp.float32)
    found = SearchedStep(jnp.zeros((num_particles, *action.shape), action.dtype), nothing, nothing)
    optims = (make_optimiser(config, spec, lr) for lr in (config.actor_lr, config.critic_lr))
    return SPO(
        config,
        spec.axes,
        networks=make_networks(spec.networks),
        optim=join_optimisers(join_optimisers(*optims, states=ActorCriticOptStates), make_dual_optimiser(config.duals)),
        target=make_soft_target(config.target),
        normalizer=make_normalizer(config.normalize_observations, spec.axes),
        replay=make_sequence_replay(config.replay, spec, (), found, config.reward_scale),
        searcher=ParticleSearch(config.smc, spec.model, config.gamma, config.reward_scale),
    )


build, run_experiment, hydra_entry_point = entry_points("spo/ff_spo", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
