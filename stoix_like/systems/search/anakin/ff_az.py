"""AlphaZero with feed-forward networks (Silver et al. 2018, doi 10.1126/science.aar6404), by Gumbel search.

The environment itself is the model: every action searches from the state of the rollout. The policy learns the
probabilities that the search found (Danihelka et al. 2022, openreview.net/forum?id=bERaNdoegnO, equation 11), and the
critic n-step returns of rewards and of the values that the search found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import mctx
import optax

from stoix_like.base_types import (
    ActorCriticOptStates,
    ActorCriticParams,
    Agent,
    Axes,
    Metrics,
    NetworkOutputs,
    Observation,
    RolloutState,
    SearchOutput,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Discrete
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement
from stoix_like.schema import above, at_least
from stoix_like.systems.actor_critic import ActorCriticNetworks, make_networks
from stoix_like.systems.gradient_descent import gradient_step, make_optimiser
from stoix_like.systems.launch import Algorithm, entry_points, make_system
from stoix_like.systems.off_policy import OffPolicyConfig, replay_epochs
from stoix_like.systems.search.simulation import Expansion, Simulation, make_simulation
from stoix_like.systems.search.tree import SearchConfig, describe, search
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.multistep import batch_n_step_bootstrapped_returns
from stoix_like.utils.normalizer import Normalizer, make_normalizer
from stoix_like.utils.replay import (
    BlockReplayConfig,
    Remembered,
    SequenceBatch,
    SequenceConfig,
    SequenceReplay,
    make_sequence_replay,
)
from stoix_like.utils.successors import successor_values
from stoix_like.utils.training import join_optimisers


@dataclass(frozen=True, kw_only=True)
class BaseConfig(SearchConfig, BlockReplayConfig, OffPolicyConfig):
    """Hyperparameters of systems that learn what their searches found.

    Attributes:
        action_spaces: action spaces that the system supports.
        policy_hyperparams: see `SystemConfig`.
        plays_both_seats: see `SystemConfig`.
        needs_successors: see `SystemConfig`.
        store_next_observation: see `ReplayConfig`; the values of successors are stored.
        vf_coef: weight of the value loss.
        ent_coef: weight of the entropy bonus.
        normalize_observations: whether observations are normalised by their running mean and standard deviation.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    policy_hyperparams: ClassVar[Mapping[str, float]] = {"evaluation_simulations": 0}
    plays_both_seats: ClassVar[bool] = True
    needs_successors: ClassVar[bool] = False
    store_next_observation: bool = False
    vf_coef: Annotated[float, at_least(0.0)]
    ent_coef: Annotated[float, at_least(0.0)]
    normalize_observations: bool


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig, SequenceConfig):
    """Hyperparameters of AlphaZero.

    Attributes:
        network_heads: heads that the system needs; a critic without a torso of its own shares that of the actor.
        needs_model: see `SystemConfig`.
        actor_lr: Adam learning rate of the policy.
        critic_lr: Adam learning rate of the critic.
    """

    network_heads: ClassVar[Mapping[str, HeadRequirement]] = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
        "critic_network.critic_head": HeadRequirement(VALUE, shares_torso_of="actor_network"),
    }
    needs_model: ClassVar[bool] = True
    actor_lr: Annotated[float, above(0.0)]
    critic_lr: Annotated[float, above(0.0)]


ConfigT = TypeVar("ConfigT", bound=BaseConfig)


class SearchShared(NamedTuple):
    """The shared state of an agent: parameters, optimiser states, statistics of observations, updates so far."""

    params: ActorCriticParams
    opt_states: ActorCriticOptStates
    statistics: Any
    updates: jax.Array


class Found(NamedTuple):
    """What a search found in a state, of which the networks learn.

    Attributes:
        candidates: `[..., K, *action]`, the actions considered; None for all discrete ones.
        weights: `[..., K]`, their probabilities.
        value: `[...]` of the state; in the replay buffer of its true successor, of which it is a bootstrap value.
    """

    candidates: jax.Array | None
    weights: jax.Array
    value: jax.Array


@dataclass(frozen=True)
class AlphaZero(Algorithm, Generic[ConfigT]):
    """AlphaZero with its hyperparameters, networks and optimisers; `discount` is negative where players take turns."""

    config: ConfigT
    axes: Axes
    networks: ActorCriticNetworks
    optim: optax.GradientTransformation
    normalizer: Normalizer
    replay: SequenceReplay
    discount: Scalar
    num_updates: int
    simulation: Simulation

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent, with an empty replay buffer."""
        params, statistics = self.networks.init(key, timestep.observation), self.normalizer.init(timestep.observation)
        shared = SearchShared(params, self.optim.init(params), statistics, jnp.zeros((), jnp.int32))
        return Agent(shared, self.replay.init(timestep))

    def tree(
        self,
        shared: SearchShared,
        state: Any,
        observation: Observation,
        key: jax.Array,
        num_simulations: int,
        greedy: bool = False,
    ) -> tuple[mctx.RootFnOutput, mctx.PolicyOutput[Any]]:
        """Search from observations `[B, ...]` of a `RolloutState`, which a learned model does not need."""
        root_key, key = jax.random.split(key)
        params = shared.params, shared.statistics
        root = self.simulation.root(params, state, observation, root_key)
        return root, search(self.config, params, key, root, self.simulation.step, num_simulations, greedy)

    def search(
        self, shared: SearchShared, state: RolloutState, key: jax.Array, num_simulations: int, greedy: bool = False
    ) -> SearchOutput:
        """Search from the states of the environments, and describe what was found."""
        return self.describe(*self.tree(shared, state, state.timestep.observation, key, num_simulations, greedy))

    def describe(self, root: mctx.RootFnOutput, output: mctx.PolicyOutput[Any]) -> SearchOutput:
        """Describe what a search found; the index of an action is the action."""
        return describe(root, output, output.action)

    def act(
        self, shared: SearchShared, state: RolloutState, key: jax.Array, greedy: bool = False
    ) -> tuple[Any, jax.Array, Any]:
        """Choose actions by a search; the extras are what it found."""
        found = self.search(shared, state, key, self.config.num_simulations, greedy)
        return state.carry, found.action, Remembered((), Found(found.candidates, found.weights, found.value))

    def evaluate(
        self, shared: SearchShared, state: RolloutState, key: jax.Array, greedy: bool
    ) -> tuple[Any, jax.Array, Any]:
        """Choose actions by a search of `evaluation_simulations`, or without one by the policy alone."""
        if self.config.evaluation_simulations:
            return state.carry, self.search(shared, state, key, self.config.evaluation_simulations, greedy).action, ()
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        pi = self.networks.policy(shared.params, observation)
        return state.carry, pi.mode() if greedy else pi.sample(seed=key), ()

    def inspect(self, shared: SearchShared, observation: Observation) -> NetworkOutputs:
        """Return the policy and the values of observations `[B, ...]`, without a search."""
        pi, value = self.networks.both(shared.params, self.normalizer.apply(shared.statistics, observation))
        return NetworkOutputs(pi, value)

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout to the replay buffer, with the values of true successors, and to the statistics.

        The value of a successor is the one that the search found in the next step; where the episode was truncated, and
        after the last step, that of the critic.
        """
        steps, shared = trajectory.transitions, agent.shared
        found: Found = steps.extras.extras
        values = self.networks.value(shared.params, self.normalizer.apply(shared.statistics, steps.next_observation))
        beyond = successor_values(values, found.value, steps.truncated)
        following = jnp.concatenate([found.value[1:], values[-1:]])
        found = found._replace(value=jnp.where(steps.truncated, beyond, following))
        steps = steps._replace(extras=Remembered((), found))
        statistics = self.normalizer.update(shared.statistics, steps.observation)
        local = self.replay.add(agent.local, trajectory._replace(transitions=steps))
        return Agent(shared._replace(statistics=statistics), local)

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Take several gradient steps, each on a new batch of sequences, and average their metrics."""
        del trajectory
        config = self.config
        exponent = config.importance_exponent(agent.shared.updates, self.num_updates)

        def step(agent: Agent, sample_key: jax.Array, loss_key: jax.Array, count: None) -> tuple[Agent, Metrics]:
            del count
            (params, opt_states, *others), local = agent
            batch = self.sample(agent, sample_key, exponent)
            loss = partial(self.loss, statistics=agent.shared.statistics, batch=batch, key=loss_key)
            params, opt_states, (metrics, errors) = gradient_step(loss, self.optim, self.axes, params, opt_states)
            if batch.indices is not None:
                priorities = (jnp.mean(errors, axis=0) + 1e-6) ** config.priority_exponent
                local = self.replay.set_priorities(local, batch.indices, priorities)
            return Agent(SearchShared(params, opt_states, *others), local), metrics

        agent, metrics = replay_epochs(step, agent, key, config.epochs)
        return agent._replace(shared=agent.shared._replace(updates=agent.shared.updates + 1)), metrics

    def sample(self, agent: Agent, key: jax.Array, importance_exponent: Any) -> SequenceBatch:
        """Sample a batch of sequences."""
        return self.replay.sample(agent.local, key, importance_exponent)

    def loss(
        self, params: ActorCriticParams, statistics: Any, batch: SequenceBatch, key: jax.Array
    ) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
        """Compute the losses of policy and critic on sequences `[W, B]`; also the absolute errors of values."""
        config, steps, found = self.config, batch.steps, batch.steps.extras
        pi, value = self.networks.both(params, self.normalizer.apply(statistics, steps.observation))
        error = self.value_target(batch) - value
        policy_loss = jnp.mean(batch.weight * self.policy_loss(pi, found))
        value_loss = jnp.mean(batch.weight * 0.5 * jnp.square(error))
        entropy = jnp.mean(batch.weight * pi.entropy(seed=key))
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "value": jnp.mean(value)}
        return loss, (metrics, jnp.abs(error))

    def policy_loss(self, pi: Any, found: Found) -> jax.Array:
        """Compute cross-entropies to the probabilities that the search found."""
        return -jnp.sum(found.weights * pi.logits, axis=-1)

    def value_target(self, batch: SequenceBatch) -> jax.Array:
        """Compute n-step returns of rewards and of the values that the search found."""
        steps = batch.steps
        return batch_n_step_bootstrapped_returns(
            steps.reward,
            self.discount * (1.0 - steps.terminated),
            steps.extras.value,
            self.config.n_step,
            truncation_t=steps.truncated,
            time_major=True,
        )


def make_parts(config: Config, spec: SystemSpec, found: Found, expand: Any) -> dict[str, Any]:
    """Build the attributes of AlphaZero.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes, sizes and the model.
        found: what a search finds in one state, an example.
        expand: `(networks) -> Expand`, what networks say about a new node.

    Returns:
        The attributes by name.
    """
    assert spec.model is not None
    networks, normalizer = make_networks(spec.networks), make_normalizer(config.normalize_observations, spec.axes)
    discount = config.gamma if spec.num_players == 1 else -config.gamma

    def expand_normalized(params: Any, observation: Observation, key: jax.Array) -> Expansion:
        network_params, statistics = params
        expansion: Expansion = expand(networks)(network_params, normalizer.apply(statistics, observation), key)
        return expansion

    optims = (make_optimiser(config, spec, lr) for lr in (config.actor_lr, config.critic_lr))
    return {
        "config": config,
        "axes": spec.axes,
        "networks": networks,
        "optim": join_optimisers(*optims, states=ActorCriticOptStates),
        "normalizer": normalizer,
        "replay": make_sequence_replay(config, spec, (), found),
        "discount": discount,
        "num_updates": spec.num_updates,
        "simulation": make_simulation(spec.model, expand_normalized, discount, config.reward_scale),
    }


def assemble(algorithm: AlphaZero[Any], spec: SystemSpec) -> System:
    """Return the functions of AlphaZero or a variant; evaluation searches with simulations of its own."""
    greedy, simulations = spec.evaluation_greedy, algorithm.config.evaluation_simulations
    system = make_system(algorithm, spec)._replace(eval_act=partial(algorithm.evaluate, greedy=greedy))
    if not simulations:
        return system
    return system._replace(search=partial(algorithm.search, num_simulations=simulations, greedy=greedy))


def build(config: Config, spec: SystemSpec) -> System:
    """Build AlphaZero; the floats of the hyperparameters may be traced."""

    def expand(networks: ActorCriticNetworks) -> Any:
        def of_all_actions(params: ActorCriticParams, observation: Observation, key: jax.Array) -> Expansion:
            del key
            pi, value = networks.both(params, observation)
            return Expansion(pi.logits, value)

        return of_all_actions

    space: Any = spec.action_space
    found = Found(None, jnp.zeros((space.n,)), jnp.zeros(()))
    return assemble(AlphaZero(**make_parts(config, spec, found, expand)), spec)


run_experiment, hydra_entry_point = entry_points("search/ff_az", build)

if __name__ == "__main__":
    hydra_entry_point()
