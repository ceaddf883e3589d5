"""Interface of exportable policies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import jax

from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import ActionSpace, ObservationSpace, Space


def as_result(action: Any) -> Any:
    """Return the arrays of actions: one, or a tuple for a dictionary or a tuple."""
    return action if isinstance(action, jax.Array) else tuple(jax.tree.leaves(action))


class Exportable(Protocol):
    """A policy as a function of plain arrays."""

    name: str  # name of the run: `ppo/ff_ppo on gymnax/CartPole-v1`
    greedy: bool  # whether actions are the mode of the policy
    has_mode: bool  # whether the policy has one
    env_steps: int  # environment steps that the policy was trained for, or gradient steps
    step_unit: str  # which of both, `env steps` or `gradient steps`
    selected: str  # how its parameters were selected; empty if they were not loaded from a run
    member: int  # the policy's member of a population, 0 without one
    agent: int | None  # the policy's agent, with its own networks; None: all agents
    observation_space: ObservationSpace  # the space of one observation
    action_space: ActionSpace  # the space of one action, in the units of the suite
    inner_action_space: Space  # the space of the actions of the networks, before `native_action`
    shared: Any  # trained state of the system: parameters, statistics of normalisation and counters

    @property
    @abstractmethod
    def legend(self) -> Legend:
        """Names of features of the observations, and of actions, where the environment has them."""

    @property
    @abstractmethod
    def argument_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of each array that `act_on` takes, without a batch axis."""

    @property
    @abstractmethod
    def result_names(self) -> list[str]:
        """Names of the arrays that `act_on` returns."""

    @abstractmethod
    def act_on(self, arrays: Sequence[jax.Array], key: jax.Array) -> Any:
        """Choose actions from plain arrays, without checks and conversions, inside a jitted function.

        `arrays`: `[B, ...]`, one for each of `argument_shapes`.
        Returns arrays `[B, ...]`, one for each of `result_names`; actions are in the units of the suite.
        """

    def mode_on(self, arrays: Sequence[jax.Array]) -> Any:
        """Return what `act_on` does for a greedy policy, without random numbers where that is possible."""
        return self.act_on(arrays, jax.random.key(0))

    @abstractmethod
    def native_action(self, action: jax.Array) -> jax.Array:
        """Convert actions `[B, ...]` of the networks to the units of the suite."""

    @abstractmethod
    def random_arguments(self, key: jax.Array, batch: int) -> list[jax.Array]:
        """Draw arrays `[batch, ...]` for `act_on`."""
