"""From an algorithm to a `System`, and the entry points of a system's module."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax

from stoix_like.base_types import (
    Acted,
    Agent,
    Dream,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SearchOutput,
    System,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.utils.jax_utils import merge_leading_dims

# Systems stand below the runner and the command line, and import neither.
RUNNER = "stoix_like.run.experiment", "run_experiment"
COMMAND_LINE = "stoix_like.cli", "launch"

ConfigT = TypeVar("ConfigT", bound=Any)


class Algorithm(ABC):
    """An algorithm with its hyperparameters, networks and optimisers; its methods are the functions of a `System`."""

    dream: ClassVar[Callable[..., Dream] | None] = None  # `System.dream` of a model that draws observations

    @abstractmethod
    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent."""

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the carry of `act` at the start of an episode; none by default."""
        return ()

    @abstractmethod
    def act(self, shared: PyTree, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose an action for each environment; also return the carry and what the update needs to know."""

    def eval_act(self, shared: PyTree, state: RolloutState, key: jax.Array, greedy: bool) -> Acted:
        """Choose actions in evaluation, by default as `act` does."""
        return self.act(shared, state, key, greedy=greedy)

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Return the agent unchanged: by default, rollouts are not stored."""
        return agent

    @abstractmethod
    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Train the agent; return it with metrics."""

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        """Return observations `[B, ...]` that the update learns from; by default, all of the rollout."""
        return jax.tree.map(partial(merge_leading_dims, num_dims=2), trajectory.transitions.observation)

    @abstractmethod
    def inspect(self, shared: PyTree, observation: Observation) -> NetworkOutputs:
        """Return the policy and the values of first observations `[B, ...]`."""

    def evaluation_search(self, greedy: bool) -> Callable[..., SearchOutput] | None:
        """Return `System.search`; None without a search in evaluation."""
        return None


def make_system(algorithm: Algorithm, spec: SystemSpec) -> System:
    """Return the functions of an algorithm; evaluation is greedy if `spec` says so."""
    greedy = spec.evaluation_greedy
    return System(
        init=algorithm.init,
        act=algorithm.act,
        observe=algorithm.observe,
        update=algorithm.update,
        eval_act=partial(algorithm.eval_act, greedy=greedy),
        init_carry=algorithm.init_carry,
        inspect=algorithm.inspect,
        search=algorithm.evaluation_search(greedy),
        observations=algorithm.observations,
        dream=algorithm.dream,
    )


class EntryPoints(NamedTuple):
    """Entry points of a system's module."""

    build: Callable[[SystemConfig, SystemSpec], System]  # `(config, spec) -> System`
    run_experiment: Callable[[Any], float]  # `(config) -> float`, trains what Hydra composed; the evaluation metric
    hydra_entry_point: Callable[[], None]  # trains with the arguments of the command line


def entry_points(system: str, make_algorithm: Callable[..., Algorithm]) -> EntryPoints:
    """Return the entry points of a system's module."""

    @wraps(make_algorithm)
    def build(config: SystemConfig, spec: SystemSpec) -> System:
        return config.adapt(make_system(make_algorithm(config, spec), spec), spec.action_space)

    # As the module calls it, for messages and for pickle.
    build.__name__ = build.__qualname__ = "build"

    def run_experiment(config: Any) -> float:
        """Train a composed configuration."""
        return _resolve(*RUNNER)(config, build)

    def hydra_entry_point() -> None:
        """Train with the arguments of the command line."""
        _resolve(*COMMAND_LINE)(system)

    return EntryPoints(build, run_experiment, hydra_entry_point)


def _resolve(module: str, name: str) -> Any:
    """Import a module and return one of its attributes."""
    return getattr(importlib.import_module(module), name)
