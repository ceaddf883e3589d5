"""What a trained policy acts with, apart from its parameters."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from stoix_like.base_types import System, SystemSpec
from stoix_like.config import RunConfig
from stoix_like.envs.environment import VectorEnvironment


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
        return self.config.build(dataclasses.replace(self.config.system, **(hyperparams or {})), spec)
