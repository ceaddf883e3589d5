"""What a trained policy acts with, apart from its parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from stoix_like.base_types import System, SystemSpec
from stoix_like.config import RunConfig
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.systems.parts.resets import with_resets


class InferenceSetup(NamedTuple):
    """The configuration, the spaces and the networks of a run.

    Attributes:
        config: the typed configuration.
        env: environments to evaluate in.
        spec: spaces, networks and sizes that the system is built from.
    """

    config: RunConfig
    env: VectorEnvironment
    spec: SystemSpec

    @property
    def name(self) -> str:
        """The system and the environment: `ppo/ff_ppo on gymnax/CartPole-v1`."""
        return f"{self.config.system_name} on {self.config.environment_name}"

    @property
    def environment_name(self) -> str:
        """The suite and the task, `gymnax/CartPole-v1`; the task is the scenario unless it has a name of its own."""
        return f"{self.config.env.env_name}/{self.config.env.scenario.task_name}"

    def build_system(self, hyperparams: dict[str, Any] | None = None, greedy: bool | None = None) -> System:
        """Build the system.

        Args:
            hyperparams: those in which a member differs from the configuration; they may be traced.
            greedy: whether `eval_act` takes the mode of the policy; by default `arch.evaluation_greedy`.

        Returns:
            The system.
        """
        spec = self.spec if greedy is None else self.spec._replace(evaluation_greedy=greedy)
        system = with_resets(self.config.build, self.config.system, hyperparams or {}, spec)
        precision = self.config.matmul_precision
        if precision is None:
            return system
        functions = {name: function for name, function in system._asdict().items() if function is not None}
        return system._replace(**{name: _in_precision(function, precision) for name, function in functions.items()})


def _in_precision(function: Callable[..., Any], precision: str) -> Callable[..., Any]:
    """Let a function compute products of matrices in a precision of their own."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*args, **kwargs)

    return call
