"""From an algorithm to a `System`, and the entry points of a system's module."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from stoix_like.base_types import (
    Agent,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.utils.jax_utils import merge_leading_dims

# Systems stand below the runner and the command line, and import neither.
RUNNER = "stoix_like.run.experiment", "run_experiment"
COMMAND_LINE = "stoix_like.cli", "launch"


class Algorithm(ABC):
    """An algorithm with its hyperparameters, networks and optimisers; its methods are the functions of a `System`."""

    @abstractmethod
    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent."""

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the carry of `act` at the start of an episode; none by default."""
        del num_envs
        return ()

    @abstractmethod
    def act(self, shared: Any, state: RolloutState, key: jax.Array, greedy: bool = False) -> tuple[Any, jax.Array, Any]:
        """Choose an action for each environment; also return the carry and what the update needs to know."""

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Return the agent unchanged: by default, rollouts are not stored."""
        del trajectory
        return agent

    @abstractmethod
    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Train the agent; return it with metrics."""

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        """Return observations `[B, ...]` that the update learns from; by default, those of the rollout."""
        del agent, key
        observation: Observation = jax.tree.map(
            partial(merge_leading_dims, num_dims=2), trajectory.transitions.observation
        )
        return observation

    @abstractmethod
    def inspect(self, shared: Any, observation: Observation) -> NetworkOutputs:
        """Return the policy and the values of first observations `[B, ...]`."""


def make_system(algorithm: Algorithm, spec: SystemSpec) -> System:
    """Return the functions of an algorithm; evaluation is greedy if `spec` says so."""
    return System(
        init=algorithm.init,
        act=algorithm.act,
        observe=algorithm.observe,
        update=algorithm.update,
        eval_act=partial(algorithm.act, greedy=spec.evaluation_greedy),
        init_carry=algorithm.init_carry,
        inspect=algorithm.inspect,
        observations=algorithm.observations,
    )


def entry_points(system: str, build: Callable[[Any, Any], Any]) -> tuple[Callable[[Any], float], Callable[[], None]]:
    """Return the entry points of a system's module.

    Args:
        system: name of the system, `ppo/ff_ppo`.
        build: the module's `build(config, spec)`.

    Returns:
        `run_experiment(config) -> float`, which trains a configuration composed by Hydra and returns the evaluation
        metric, and `hydra_entry_point()`, which trains with the arguments of the command line.
    """

    def run_experiment(config: Any) -> float:
        """Train a composed configuration; see `stoix_like.run.experiment.run_experiment`."""
        metric: float = _resolve(*RUNNER)(config, build)
        return metric

    def hydra_entry_point() -> None:
        """Train with the arguments of the command line; see `stoix_like.cli.launch`."""
        _resolve(*COMMAND_LINE)(system)

    return run_experiment, hydra_entry_point


def _resolve(module: str, name: str) -> Any:
    """Import a module and return one of its attributes."""
    return getattr(importlib.import_module(module), name)
