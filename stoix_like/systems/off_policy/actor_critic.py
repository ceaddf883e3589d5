"""Components of off-policy actor-critic systems: SAC, DDPG and their variants."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple

import jax
import optax

from stoix_like.base_types import (
    Agent,
    Axes,
    Distribution,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic, MultiNetwork
from stoix_like.networks.feed_forward import Network
from stoix_like.systems.algorithm import Algorithm, ConfigT
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.parts.exploration import initial_noise_keys
from stoix_like.systems.parts.normalizer import (
    MIN_STD_OF_DATA,
    Normalizer,
    ReturnScaler,
    make_normalizer,
    make_return_scaler,
)
from stoix_like.systems.parts.optimiser import LossFn, gradient_step, make_optimiser
from stoix_like.systems.parts.symmetry import SymmetryConfig, make_mirror
from stoix_like.systems.parts.target import SoftTarget, TargetParameters, make_soft_target
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.replay import Replay, make_replay


class OffPolicyShared(NamedTuple):
    """The shared state of an agent."""

    params: PyTree  # the parameters of policy and critics
    opt_states: PyTree  # the states of the optimisers
    steps: jax.Array  # gradient steps of the critics so far
    statistics: PyTree = ()  # statistics of observations
    return_statistics: PyTree = ()  # statistics of discounted returns
    parts: PyTree = ()  # what other options need, by name


class OffPolicyLocal(NamedTuple):
    """The local state of an agent; `()` for options that are off."""

    buffer: PyTree  # the replay buffer
    returns: PyTree = ()  # `[N]`, discounted returns of the episodes under way
    critic_hidden_state: PyTree = ()  # `[N, H]`, the state of recurrent critics


@dataclass(frozen=True)
class OffPolicyActorCritic(Algorithm, Generic[ConfigT]):
    """Parts and state of an off-policy actor-critic; its losses never see a raw observation if the run normalises them.

    The carry of `act` holds the keys of exploration noise, see `persist_noise_keys`.
    """

    config: ConfigT
    axes: Axes
    replay: Replay
    normalizer: Normalizer
    returns: ReturnScaler
    actor: FeedForwardActor
    critics: Network
    actor_optim: optax.GradientTransformation
    q_optim: optax.GradientTransformation
    target: TargetParameters

    @abstractmethod
    def init_shared(self, key: jax.Array, observation: Observation) -> OffPolicyShared:
        """Initialise the shared state, without statistics, for observations `[N, ...]`."""

    @abstractmethod
    def pi(self, params: PyTree, observation: Observation) -> Distribution:
        """Return the policy, a distribution for each observation."""

    @abstractmethod
    def value(self, params: PyTree, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the values `[B]` of actions, or `[B, A]` of all actions, as the policy maximises them."""

    @abstractmethod
    def sgd_step(self, shared: OffPolicyShared, batch: PyTree, key: jax.Array) -> tuple[OffPolicyShared, Metrics]:
        """Take one gradient step on a batch."""

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        shared = self.init_shared(key, timestep.observation)
        shared = shared._replace(
            statistics=self.normalizer.init(timestep.observation), return_statistics=self.returns.init()
        )
        returns = self.returns.init_returns(len(timestep.reward))
        return Agent(shared, OffPolicyLocal(self.replay.init(timestep), returns))

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the noise keys at the start of an episode."""
        return initial_noise_keys(num_envs)

    def inspect(self, shared: OffPolicyShared, observation: Observation) -> NetworkOutputs:
        observation = self.normalizer.apply(shared.statistics, observation)
        pi = self.pi(shared.params, observation)
        return NetworkOutputs(pi, self.value(shared.params, observation, pi.mode()))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        (shared, local), steps = agent, trajectory.transitions
        statistics = self.normalizer.update(shared.statistics, steps.observation)
        return_statistics, returns = self.returns.update(shared.return_statistics, local.returns, steps)
        shared = shared._replace(statistics=statistics, return_statistics=return_statistics)
        return Agent(shared, local._replace(buffer=self.replay.add(local.buffer, trajectory), returns=returns))

    def draw(self, buffer: PyTree, key: jax.Array) -> PyTree:
        """Draw a batch from the replay buffer."""
        return self.replay.sample(buffer, key)

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.draw(agent.local.buffer, key).observation

    def sample(self, agent: Agent, key: jax.Array) -> PyTree:
        """Sample a batch of normalised observations and rewards."""
        batch = self.draw(agent.local.buffer, key)
        normalize = partial(self.normalizer.apply, agent.shared.statistics)
        return batch._replace(
            observation=normalize(batch.observation),
            next_observation=normalize(batch.next_observation),
            reward=self.returns.apply(agent.shared.return_statistics, batch.reward),
        )

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        def step(shared: PyTree, sample_key: jax.Array, step_key: jax.Array) -> tuple[PyTree, Metrics]:
            return self.sgd_step(shared, self.sample(agent, sample_key), step_key)

        shared, metrics = replay_epochs(step, agent.shared, key, self.config.replay.epochs)
        return agent._replace(shared=shared), metrics

    def critic_step(self, shared: OffPolicyShared, loss: LossFn[Metrics]) -> tuple[OffPolicyShared, Metrics]:
        """Take a gradient step of the online critics on a loss of their parameters."""
        params, opt_states = shared.params, shared.opt_states
        online, q_opt_state, metrics = gradient_step(
            loss, self.q_optim, self.axes, params.q_params.online, opt_states.q_opt_state
        )
        params = params._replace(q_params=params.q_params._replace(online=online))
        return shared._replace(params=params, opt_states=opt_states._replace(q_opt_state=q_opt_state)), metrics

    def actor_step(self, shared: OffPolicyShared, loss: LossFn[Metrics]) -> tuple[OffPolicyShared, Metrics]:
        """Take a gradient step of a policy without target parameters on a loss of its parameters."""
        params, opt_states = shared.params, shared.opt_states
        actor_params, actor_opt_state, metrics = gradient_step(
            loss, self.actor_optim, self.axes, params.actor_params, opt_states.actor_opt_state
        )
        opt_states = opt_states._replace(actor_opt_state=actor_opt_state)
        return shared._replace(params=params._replace(actor_params=actor_params), opt_states=opt_states), metrics

    def move_target_critics(self, shared: OffPolicyShared) -> OffPolicyShared:
        """Take a step of the target critics towards the online ones."""
        q_params = self.target.update(shared.params.q_params)
        return shared._replace(params=shared.params._replace(q_params=q_params))


def make_parts(config: Any, spec: SystemSpec, critics: MultiNetwork, b1: Scalar = 0.9) -> dict[str, Any]:
    """Build the attributes of an `OffPolicyActorCritic`."""
    mirror = make_mirror(config.find_part(SymmetryConfig), spec)
    network, normalizes = spec.networks.actor_network, config.normalisation.normalize_observations
    return {
        "config": config,
        "axes": spec.axes,
        "replay": mirror.replay(make_replay(config.replay, spec, config.gamma, config.reward_scale)),
        "normalizer": make_normalizer(normalizes, spec.axes, min_std=MIN_STD_OF_DATA, data=spec.data),
        "returns": make_return_scaler(config.normalisation, config.gamma, config.reward_scale, spec.axes, spec.data),
        "actor": FeedForwardActor(network.action_head, network.pre_torso, network.input_layer),
        "critics": critics,
        "actor_optim": make_optimiser(config, spec, config.actor_lr, config.policy_frequency, b1=b1),
        "q_optim": make_optimiser(config, spec, config.q_lr, b1=b1),
        "target": make_soft_target(config.find_part(SoftTarget)),
    }


def make_critics(network: SimpleNamespace, num_critics: int, head: Any = None) -> MultiNetwork:
    """Build an ensemble of critics with independent parameters.

    Returns a network with values `[..., C]`; it takes the arguments of the input layer.
    """

    def critic() -> FeedForwardCritic:
        # Copies: calls of the same module object share its parameters.
        parts = (network.critic_head if head is None else head, network.pre_torso, network.input_layer)
        return FeedForwardCritic(*(copy.deepcopy(part) for part in parts))

    return MultiNetwork(tuple(critic() for _ in range(num_critics)))
