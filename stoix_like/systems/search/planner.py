"""Base class of AlphaZero and MuZero: searches, and a replay buffer of their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import optax

from stoix_like.base_types import (
    Acted,
    Agent,
    Axes,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SearchOutput,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.systems.algorithm import Algorithm, ConfigT
from stoix_like.systems.parts.normalizer import Normalizer, make_normalizer
from stoix_like.systems.search.candidates import Candidates, Found, take_action
from stoix_like.systems.search.simulation import Simulation
from stoix_like.systems.search.tree import describe, search
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.accelerate.successors import successor_values
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.replay import SequenceBatch, SequenceReplay, Stored, make_sequence_replay


class SearchShared(NamedTuple):
    """The shared state of an agent: parameters, optimiser states, statistics of observations, updates so far."""

    params: PyTree
    opt_states: PyTree
    statistics: PyTree
    updates: jax.Array
    parts: PyTree = ()  # what options need, by name


@dataclass(frozen=True)
class Planner(Algorithm, Generic[ConfigT]):
    """A system that acts by searches; its `discount` is negative where players take turns."""

    config: ConfigT
    axes: Axes
    networks: Any
    optim: optax.GradientTransformation
    normalizer: Normalizer
    replay: SequenceReplay
    discount: Scalar
    num_updates: int
    simulation: Simulation

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
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
    ) -> tuple[mctx.RootFnOutput, mctx.PolicyOutput]:
        """Search from observations `[B, ...]` of a `RolloutState`, which a learned model does not need."""
        root_key, key = jax.random.split(key)
        params = shared.params, shared.statistics
        root = self.simulation.root(params, state, observation, root_key)
        return root, search(self.config.search, params, key, root, self.simulation.step, num_simulations, greedy)

    def search(
        self, shared: SearchShared, state: RolloutState, key: jax.Array, num_simulations: int, greedy: bool = False
    ) -> SearchOutput:
        """Search from the states of the environments, and describe what was found."""
        return self.describe(*self.tree(shared, state, state.timestep.observation, key, num_simulations, greedy))

    def describe(self, root: mctx.RootFnOutput, output: mctx.PolicyOutput) -> SearchOutput:
        """Describe what a search found."""
        candidates = unpack(root.embedding).actions
        return describe(root, output, take_action(candidates, output.action), candidates)

    def eval_act(self, shared: SearchShared, state: RolloutState, key: jax.Array, greedy: bool) -> Acted:
        """Choose actions by a search of `evaluation_simulations`, or without one by the policy alone."""
        if simulations := self.config.search.evaluation_simulations:
            return state.carry, self.search(shared, state, key, simulations, greedy).action, ()
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        pi = self.networks.policy(shared.params, observation)
        return state.carry, pi.mode() if greedy else pi.sample(seed=key), ()

    def evaluation_search(self, greedy: bool) -> Callable[..., SearchOutput] | None:
        simulations = self.config.search.evaluation_simulations
        return partial(self.search, num_simulations=simulations, greedy=greedy) if simulations else None

    def inspect(self, shared: SearchShared, observation: Observation) -> NetworkOutputs:
        observation = self.normalizer.apply(shared.statistics, observation)
        return NetworkOutputs(*self.networks.first(shared.params, observation))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout to the replay buffer, with the values of true successors, and to the statistics.

        The value of a successor is the one that the search found in the next step, or the critic's value where the
        episode was truncated and after the last step.
        """
        steps, shared = trajectory.transitions, agent.shared
        found: Found = steps.extras.extras
        values = self.networks.values(shared.params, self.normalizer.apply(shared.statistics, steps.next_observation))
        beyond = successor_values(values, found.value, steps.truncated)
        following = jnp.where(steps.truncated, beyond, jnp.concatenate([found.value[1:], beyond[-1:]]))
        steps = steps._replace(extras=Stored((), found._replace(value=following)))
        statistics = self.normalizer.update(shared.statistics, steps.observation)
        local = self.replay.add(agent.local, trajectory._replace(transitions=steps))
        return Agent(shared._replace(statistics=statistics), local)

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.replay.sample(agent.local, key, 1.0).observations

    def sample(self, agent: Agent, key: jax.Array, importance_exponent: Scalar) -> SequenceBatch:
        """Sample a batch of sequences."""
        return self.replay.sample(agent.local, key, importance_exponent)


def make_parts(config: Any, spec: SystemSpec, candidates: Candidates) -> dict[str, Any]:
    """Build the attributes of a `Planner` but its networks, optimiser and simulation."""
    return {
        "config": config,
        "axes": spec.axes,
        "normalizer": make_normalizer(config.normalize_observations, spec.axes),
        "replay": make_sequence_replay(config.replay, spec, (), candidates.example, config.reward_scale),
        "discount": config.gamma if spec.num_players == 1 else -config.gamma,
        "num_updates": spec.num_updates,
    }
