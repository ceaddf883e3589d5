"""Probe environments: each isolates one thing that an agent must be able to learn, and its answer is known.

A learner that fails one of them is wrong in the part that the probe isolates:

| probe | what it isolates | best mean return | value of the best policy |
|---|---|---|---|
| value | a constant value | 1 | 1 |
| observed_value | a value that the view tells | 0 | the view, -1 or 1 |
| discount | discounting over two steps | 1 | gamma, then 1 |
| time_limit | the bootstrap at a limit | `limit` | 1 / (1 - gamma) |
| termination | no bootstrap at an end | `limit` | (1 - gamma^left) / (1 - gamma) |
| action | the better of two actions | 1 | 1 |
| policy | an action that the view tells | 1 | 1 |
| multi_discrete | a vector of such actions | 1 | 1 |
| continuous_action | a constant in a range | 0 | 0 |
| continuous_policy | a number that the view tells | 0 | 0 |
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs.arguments import check_names, check_scenario, construct
from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize, restart, transition
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space


class ProbeState(NamedTuple):
    """What the agent sees, `[D]` float32, and `steps`, int32, taken since the episode began."""

    view: jax.Array
    steps: jax.Array


class Outcome(NamedTuple):
    """What a step of a probe leads to: reward, flags and the next view `[D]`."""

    reward: Any
    terminated: Any
    truncated: Any
    view: jax.Array


class Probe(Environment):
    """What all probes share.

    Attributes:
        optimal_return: the mean undiscounted return of the best policy.
    """

    optimal_return: float = 1.0
    observation_space: Space = Box(-1.0, 1.0, (1,))
    action_space: Space = Discrete(2)

    @abstractmethod
    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """The value of the best policy.

        Args:
            view: `[..., D]`, what the agent sees.
            gamma: discount per step.

        Returns:
            `[...]` discounted returns to be expected.
        """

    @abstractmethod
    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        """What `action` leads to.

        Args:
            state: the state before the step.
            action: an element of `action_space`.

        Returns:
            Reward, flags and the next view.
        """

    def first_view(self, key: jax.Array) -> jax.Array:
        """What the agent sees first: `[D]`, a one unless a probe says otherwise."""
        del key
        return jnp.ones((1,), jnp.float32)

    def reset(self, key: jax.Array) -> tuple[ProbeState, TimeStep]:
        """See `Environment.reset`."""
        view = self.first_view(key)
        return ProbeState(view, jnp.zeros((), jnp.int32)), restart(Observation(view))

    def step(self, key: jax.Array, state: ProbeState, action: jax.Array) -> tuple[ProbeState, TimeStep]:
        """See `Environment.step`."""
        del key
        reward, terminated, truncated, view = self.outcome(state, action)
        return ProbeState(view, state.steps + 1), transition(Observation(view), reward, terminated, truncated)


class OneStepProbe(Probe):
    """An episode of a single step, whose best reward is the same whatever the agent sees."""

    @abstractmethod
    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array | float:
        """The reward of `action` where the agent sees `view` `[D]`."""

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        """See `Probe.outcome`."""
        return Outcome(self.reward(state.view, action), True, False, state.view)

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """See `Probe.optimal_value`."""
        del gamma
        return jnp.full(view.shape[:-1], self.optimal_return)


class Value(OneStepProbe):
    """Always a reward of one: can the critic learn a constant?"""

    def reward(self, view: jax.Array, action: jax.Array) -> float:
        """See `OneStepProbe.reward`."""
        del view, action
        return 1.0


class ObservedValue(OneStepProbe):
    """The reward is what the agent sees, -1 or 1: does the critic use its input?"""

    optimal_return = 0.0

    def first_view(self, key: jax.Array) -> jax.Array:
        """See `Probe.first_view`."""
        return _sign(key)

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        """See `OneStepProbe.reward`."""
        del action
        return view[0]

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """See `Probe.optimal_value`."""
        del gamma
        return view[..., 0]


class Discount(Probe):
    """Two steps, seen as -1 and 1, the second of which is rewarded: is the future discounted?"""

    def first_view(self, key: jax.Array) -> jax.Array:
        """See `Probe.first_view`."""
        del key
        return jnp.full((1,), -1.0, jnp.float32)

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        """See `Probe.outcome`."""
        del action
        last = state.steps == 1
        return Outcome(last, last, False, jnp.ones_like(state.view))

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """See `Probe.optimal_value`."""
        return jnp.where(view[..., 0] > 0, 1.0, gamma)


class TimeLimited(Probe):
    """A reward of one in every step of a task without an end, cut by a limit that the agent cannot see.

    Its value is that of the endless task, because the value beyond the limit is bootstrapped.

    Args:
        limit: steps until the episode is truncated.
    """

    def __init__(self, limit: int = 5) -> None:
        self.limit = _positive(limit)
        self.optimal_return = float(limit)

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        """See `Probe.outcome`."""
        del action
        return Outcome(1.0, False, state.steps + 1 >= self.limit, state.view)

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """See `Probe.optimal_value`."""
        return jnp.full(view.shape[:-1], 1.0 / (1.0 - gamma))


class Terminating(Probe):
    """The twin of `TimeLimited` whose task does end: the view tells, one-hot, the steps taken so far.

    Args:
        limit: steps until the task ends.
    """

    def __init__(self, limit: int = 5) -> None:
        self.limit = _positive(limit)
        self.optimal_return = float(limit)
        self.observation_space = Box(0.0, 1.0, (limit,))

    def first_view(self, key: jax.Array) -> jax.Array:
        """See `Probe.first_view`."""
        del key
        return jax.nn.one_hot(0, self.limit, dtype=jnp.float32)

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        """See `Probe.outcome`."""
        del action
        # All zeros once the task has ended.
        view = jax.nn.one_hot(state.steps + 1, self.limit, dtype=jnp.float32)
        return Outcome(1.0, state.steps + 1 >= self.limit, False, view)

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """See `Probe.optimal_value`."""
        steps_left = self.limit - jnp.argmax(view, axis=-1)
        return (1.0 - gamma**steps_left) / (1.0 - gamma)


class Action(OneStepProbe):
    """Action 1 earns one and action 0 nothing: does the policy follow the advantage?"""

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        """See `OneStepProbe.reward`."""
        del view
        return action == 1


class Policy(OneStepProbe):
    """The action 1 where the agent sees 1, and 0 where it sees -1, earns one: does the policy use its input?"""

    def first_view(self, key: jax.Array) -> jax.Array:
        """See `Probe.first_view`."""
        return _sign(key)

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        """See `OneStepProbe.reward`."""
        return (action == 1) == (view[0] > 0)


class MultiDiscretePolicy(OneStepProbe):
    """Actions (1, 2) where the agent sees 1, and (0, 0) where it sees -1: each that is right earns a half."""

    action_space = MultiDiscrete((2, 3))

    def first_view(self, key: jax.Array) -> jax.Array:
        """See `Probe.first_view`."""
        return _sign(key)

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        """See `OneStepProbe.reward`."""
        right = jnp.where(view > 0, jnp.asarray((1, 2)), jnp.asarray((0, 0)))
        return jnp.mean(action == right, dtype=jnp.float32)


class ContinuousAction(OneStepProbe):
    """The reward falls with the squared distance of the action from 0.5: does a continuous policy find it?"""

    optimal_return = 0.0
    action_space = Box(-1.0, 1.0, (1,))

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        """See `OneStepProbe.reward`."""
        del view
        return -((action[0] - 0.5) ** 2)


class ContinuousPolicy(OneStepProbe):
    """The same with a target that the agent sees, between -0.8 and 0.8."""

    optimal_return = 0.0
    action_space = Box(-1.0, 1.0, (1,))

    def first_view(self, key: jax.Array) -> jax.Array:
        """See `Probe.first_view`."""
        return jax.random.uniform(key, (1,), jnp.float32, -0.8, 0.8)

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        """See `OneStepProbe.reward`."""
        return -((action[0] - view[0]) ** 2)


PROBES: dict[str, type[Probe]] = {
    "value": Value,
    "observed_value": ObservedValue,
    "discount": Discount,
    "time_limit": TimeLimited,
    "termination": Terminating,
    "action": Action,
    "policy": Policy,
    "multi_discrete": MultiDiscretePolicy,
    "continuous_action": ContinuousAction,
    "continuous_policy": ContinuousPolicy,
}


def scenarios() -> list[str]:
    """The names of the probes."""
    return list(PROBES)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build copies of a probe.

    Args:
        name: one of `scenarios()`.
        kwargs: arguments of its constructor by name.
        params: probes have none.

    Returns:
        The environments.

    Raises:
        ConfigError: if the name or an argument is unknown or refused, or a parameter is given.
    """
    check_scenario("probe", name, scenarios())
    check_names("env.params", params, (), name)
    return Vectorize(construct(PROBES[name], kwargs, name))


def _sign(key: jax.Array) -> jax.Array:
    return jax.random.rademacher(key, (1,), jnp.float32)


def _positive(limit: int) -> int:
    if limit < 1:
        raise ValueError(f"limit={limit} must be at least 1")
    return limit
