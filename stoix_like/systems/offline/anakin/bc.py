"""Behavioural cloning: the likelihood of recorded actions (Pomerleau 1988), for any policy head.

With a teacher that labels what the policy visits itself, this is DAgger (Ross, Gordon & Bagnell 2011, arXiv:1011.0686).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    Agent,
    Axes,
    Distribution,
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
from stoix_like.errors import ConfigError
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.requirements import DETERMINISTIC_POLICY, STOCHASTIC_POLICY, HeadRequirement
from stoix_like.schema import above
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.parts.normalizer import MIN_STD_OF_DATA, Normalizer, make_normalizer
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.teacher import Teacher, TeacherConfig
from stoix_like.utils.replay import ReplayConfig, make_replay


@dataclass(frozen=True, kw_only=True)
class CloningReplay(ReplayConfig):
    """Hyperparameters of the steps that are imitated."""

    n_step: Literal[1] = 1  # none; no rewards are read
    store_next_observation: Literal[True] = True  # none; no successors are read


@dataclass(frozen=True, kw_only=True)
class BaseConfig(SystemConfig):
    """Hyperparameters of behavioural cloning with any network."""

    gradients: Gradients
    labels: TeacherConfig
    actor_lr: Annotated[float, above(0.0)]  # Adam learning rate of the policy
    normalize_observations: bool  # whether observations are normalised by mean and deviation

    def check(self, num_envs: int, num_shards: int) -> None:
        """Refuse a run without a policy to imitate."""
        replay: Any = self.find_part(ReplayConfig)
        if not replay.only_data and self.labels.teacher is None:
            raise ConfigError(
                "this system would imitate its own actions: use arch=offline system.data=FILE, or"
                " system.teacher=RUN_DIR"
            )
        if replay.only_data and self.labels.teacher is not None:
            raise ConfigError(
                f"system.teacher={self.labels.teacher} labels steps that system.data_fraction=1 never samples: use a"
                " smaller fraction, or leave one of both out"
            )
        super().check(num_envs, num_shards)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Hyperparameters of behavioural cloning with feed-forward networks."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, alternatives=(DETERMINISTIC_POLICY,))
    }
    replay: CloningReplay


class CloningShared(NamedTuple):
    """The shared state of an agent: parameters, optimiser state, and statistics of observations."""

    params: PyTree
    opt_state: PyTree
    statistics: PyTree


ConfigT = TypeVar("ConfigT", bound=BaseConfig)


@dataclass(frozen=True)
class BC(Algorithm, Generic[ConfigT]):
    """Behavioural cloning with its hyperparameters, network and optimiser."""

    config: ConfigT
    axes: Axes
    replay: Any
    normalizer: Normalizer
    network: Any
    optim: optax.GradientTransformation
    teacher: Teacher | None = None

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        params = self.init_params(key, timestep.observation)
        statistics = self.normalizer.init(timestep.observation)
        return Agent(CloningShared(params, self.optim.init(params), statistics), self.replay.init(timestep))

    def init_params(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of the policy."""
        return self.network.init(key, observation)

    def act(self, shared: CloningShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Sample an action for each environment, or take the mode."""
        pi = self.network.apply(shared.params, self.normalizer.apply(shared.statistics, state.timestep.observation))
        return state.carry, pi.mode() if greedy else pi.sample(seed=key), ()

    def inspect(self, shared: CloningShared, observation: Observation) -> NetworkOutputs:
        observation = self.normalizer.apply(shared.statistics, observation)
        return NetworkOutputs(self.network.apply(shared.params, observation), None)

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout to the replay buffer, with the actions of a teacher, and to the statistics."""
        if self.teacher is not None:
            steps = trajectory.transitions
            action = self.teacher.labels(steps.observation).astype(steps.action.dtype)
            trajectory = trajectory._replace(transitions=steps._replace(action=action))
        statistics = self.normalizer.update(agent.shared.statistics, trajectory.transitions.observation)
        return Agent(agent.shared._replace(statistics=statistics), self.replay.add(agent.local, trajectory))

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.draw(agent.local, key).observation

    def draw(self, local: PyTree, key: jax.Array) -> PyTree:
        """Draw a batch of steps."""
        return self.replay.sample(local, key)

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        epochs = self.config.gradient_steps

        def step(shared: PyTree, sample_key: jax.Array, step_key: jax.Array) -> tuple[PyTree, Metrics]:
            loss = partial(self.loss, batch=self.draw(agent.local, sample_key), statistics=shared.statistics)
            params, opt_state, metrics = gradient_step(loss, self.optim, self.axes, shared.params, shared.opt_state)
            return shared._replace(params=params, opt_state=opt_state), metrics

        shared, metrics = replay_epochs(step, agent.shared, key, epochs)
        return agent._replace(shared=shared), metrics

    def loss(self, params: PyTree, batch: PyTree, statistics: PyTree) -> Loss:
        """Compute the negative log-likelihood of the actions, or their squared error where nothing is drawn."""
        pi = self.network.apply(params, self.normalizer.apply(statistics, batch.observation))
        return self.imitation_loss(pi, batch.action)

    def imitation_loss(self, pi: Distribution, action: jax.Array) -> Loss:
        """Compute the loss of a policy, for actions of its batch."""
        if self.network.action_head.outputs == DETERMINISTIC_POLICY:
            loss = jnp.mean(jnp.square(pi.mode() - action))
        else:
            loss = -jnp.mean(pi.log_prob(action))
        return loss, {"imitation_loss": loss}


def make_variant(
    config: BaseConfig, spec: SystemSpec, algorithm: type[BC[Any]], network: Any, replay: Any
) -> Algorithm:
    """Build behavioural cloning with a network and a replay buffer."""
    normalizer = make_normalizer(config.normalize_observations, spec.axes, min_std=MIN_STD_OF_DATA, data=spec.data)
    optim = make_optimiser(config, spec, config.actor_lr)
    return algorithm(config, spec.axes, replay, normalizer, network, optim, spec.teacher)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build behavioural cloning; the floats of the hyperparameters may be traced."""
    network = spec.networks.actor_network
    actor = FeedForwardActor(network.action_head, network.pre_torso, network.input_layer)
    return make_variant(config, spec, BC, actor, make_replay(config.replay, spec, gamma=1.0))


build, run_experiment, hydra_entry_point = entry_points("offline/bc", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
