"""Probe environments: minimal tasks with known optimal returns and values.

Each probe tests one part of an algorithm:

| probe | tested part | optimal return | optimal value |
|---|---|---|---|
| value | constant value | 1 | 1 |
| observed_value | value that depends on the observation | 0 on average | the view, -1 or 1 |
| discount | discounting over two steps | 1 | gamma, then 1 |
| time_limit | bootstrap value at a time limit | `limit` | 1 / (1 - gamma) |
| termination | no bootstrap value at termination | `limit` | (1 - gamma^steps_left) / (1 - gamma) |
| action | choice between two actions | 1 | 1 |
| policy | action that depends on the observation | 1 | 1 |
| multi_discrete | several such actions | 1 | 1 |
| continuous_action | constant continuous action | 0 | 0 |
| continuous_policy | continuous action that depends on the observation | 0 | 0 |
| mixed_actions | a choice and a continuous action that depend on the observation | 1 | 1 |
| repeat_first | action that depends on the first observation of the episode | 1 | gamma^steps_left |
| two_goals | continuous action that is random with two modes | 1 - 0.5^`limit` | |

Without memory, the return of repeat_first is at most one half on average, and so is the return of two_goals with one
mode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs.arguments import check_names, check_scenario, construct, count
from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize, restart, transition
from stoix_like.envs.spaces import ActionSpace, Box, Dict, Discrete, MultiDiscrete, ObservationSpace


class ProbeState(NamedTuple):
    """The agent's view `[D]` float32, and the steps since the episode started, int32."""

    view: jax.Array
    steps: jax.Array


class RepeatState(NamedTuple):
    """The cue of the first step or the hidden goal, -1 or 1, and the steps since the episode started, int32."""

    cue: jax.Array
    steps: jax.Array


class Outcome(NamedTuple):
    """The outcome of a step: reward, flags and the next view `[D]`."""

    reward: Any
    terminated: Any
    truncated: Any
    view: jax.Array


class Probe(Environment):
    """Base class of probes."""

    optimal_return: float = 1.0  # mean undiscounted return of the optimal policy
    observation_space: ObservationSpace = Box(-1.0, 1.0, (1,))
    action_space: ActionSpace = Discrete(2)

    @abstractmethod
    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """Compute the value of the optimal policy.

        `view`: `[..., D]` views.
        Returns `[...]` expected discounted returns.
        """

    @abstractmethod
    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        """Compute the outcome of an action."""

    def first_view(self, key: jax.Array) -> jax.Array:
        """Return the first view of an episode `[D]`; by default, one."""
        return jnp.ones((1,), jnp.float32)

    def reset(self, key: jax.Array) -> tuple[ProbeState, TimeStep]:
        view = self.first_view(key)
        return ProbeState(view, jnp.zeros((), jnp.int32)), restart(Observation(view))

    def step(self, key: jax.Array, state: ProbeState, action: jax.Array) -> tuple[ProbeState, TimeStep]:
        reward, terminated, truncated, view = self.outcome(state, action)
        return ProbeState(view, state.steps + 1), transition(Observation(view), reward, terminated, truncated)


class OneStepProbe(Probe):
    """Base class of probes with one step per episode; by default, the optimal reward is the same for all views."""

    @abstractmethod
    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array | float:
        """Compute the reward of `action` at `view` `[D]`."""

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        return Outcome(self.reward(state.view, action), True, False, state.view)

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        return jnp.full(view.shape[:-1], self.optimal_return)


class SignedProbe(OneStepProbe):
    """Base class of probes with one step per episode and the view -1 or 1."""

    def first_view(self, key: jax.Array) -> jax.Array:
        return _sign(key)


class Value(OneStepProbe):
    """Probe with a reward of one: can the critic learn a constant?"""

    def reward(self, view: jax.Array, action: jax.Array) -> float:
        return 1.0


class ObservedValue(SignedProbe):
    """Probe with the view as reward, -1 or 1: does the critic use the observation?"""

    optimal_return = 0.0

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        return view[0]

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        return view[..., 0]


class Discount(Probe):
    """Probe of two steps, with views -1 and 1, and a reward of one for the second: are rewards discounted?"""

    def first_view(self, key: jax.Array) -> jax.Array:
        return jnp.full((1,), -1.0, jnp.float32)

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        last = state.steps == 1
        return Outcome(last, last, False, jnp.ones_like(state.view))

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        return jnp.where(view[..., 0] > 0, 1.0, gamma)


class TimeLimited(Probe):
    """Probe with a reward of one per step and an unobserved time limit: is truncation bootstrapped?

    The optimal value is the value of the non-terminating task.
    """

    def __init__(self, limit: int = 5) -> None:
        self.limit = count(limit=limit)
        self.optimal_return = float(self.limit)

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        return Outcome(1.0, False, state.steps + 1 >= self.limit, state.view)

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        return jnp.full(view.shape[:-1], 1.0 / (1.0 - gamma))


class Terminating(Probe):
    """Counterpart of `TimeLimited` that terminates; the view is the number of steps taken, one-hot."""

    def __init__(self, limit: int = 5) -> None:
        self.limit = count(limit=limit)
        self.optimal_return = float(self.limit)
        self.observation_space = Box(0.0, 1.0, (self.limit,))

    def first_view(self, key: jax.Array) -> jax.Array:
        return jax.nn.one_hot(0, self.limit, dtype=jnp.float32)

    def outcome(self, state: ProbeState, action: jax.Array) -> Outcome:
        # All zeros after termination.
        view = jax.nn.one_hot(state.steps + 1, self.limit, dtype=jnp.float32)
        return Outcome(1.0, state.steps + 1 >= self.limit, False, view)

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        steps_left = self.limit - jnp.argmax(view, axis=-1)
        return (1.0 - gamma**steps_left) / (1.0 - gamma)


class Action(OneStepProbe):
    """Probe with a reward of one for action 1: does the policy follow the advantage?"""

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        return action == 1


class ProbePolicy(SignedProbe):
    """Probe with a reward of one for action 1 at view 1 and action 0 at view -1: does the policy use the view?"""

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        return (action == 1) == (view[0] > 0)


class MultiDiscretePolicy(SignedProbe):
    """Probe with a reward of one half per correct entry: the action is (1, 2) at view 1 and (0, 0) at view -1."""

    action_space = MultiDiscrete((2, 3))

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        right = jnp.where(view > 0, jnp.asarray((1, 2)), jnp.asarray((0, 0)))
        return jnp.mean(action == right, dtype=jnp.float32)


class MixedPolicy(SignedProbe):
    """Probe with a choice and a push: reward one for the choice that fits the view, less the squared error of the push.

    At view 1, the choice is 1 and the push 0.5; at view -1, they are 0 and -0.5.
    """

    action_space = Dict({"choice": Discrete(3), "push": Box(-1.0, 1.0, (1,))})

    def reward(self, view: jax.Array, action: Any) -> jax.Array:
        right = jnp.asarray(action["choice"] == (view[0] > 0), jnp.float32)
        return right - (action["push"][0] - 0.5 * view[0]) ** 2


class ContinuousAction(OneStepProbe):
    """Probe with reward `-(action - 0.5)^2`: does a continuous policy converge to a constant?"""

    optimal_return = 0.0
    action_space = Box(-1.0, 1.0, (1,))

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        return -((action[0] - 0.5) ** 2)


class ContinuousPolicy(OneStepProbe):
    """Probe with reward `-(action - view)^2` and views in [-0.8, 0.8]: does a continuous policy use the view?"""

    optimal_return = 0.0
    action_space = Box(-1.0, 1.0, (1,))

    def first_view(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (1,), jnp.float32, -0.8, 0.8)

    def reward(self, view: jax.Array, action: jax.Array) -> jax.Array:
        return -((action[0] - view[0]) ** 2)


class RepeatFirstProbe(Environment):
    """Probe with a reward of one for repeating, in the last step, the cue of the first: is it remembered?

    The view is the cue, -1 or 1 in the first step and 0 later, and the number of steps left divided by the delay. In
    the last step, action 1 is correct after cue 1, and action 0 after cue -1; a policy without memory guesses.
    """

    optimal_return = 1.0
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(2)

    def __init__(self, delay: int = 4) -> None:
        self.delay = count(delay=delay)

    def reset(self, key: jax.Array) -> tuple[RepeatState, TimeStep]:
        cue = _sign(key)[0]
        return RepeatState(cue, jnp.zeros((), jnp.int32)), restart(self._observation(cue, 0))

    def step(self, key: jax.Array, state: RepeatState, action: jax.Array) -> tuple[RepeatState, TimeStep]:
        last = state.steps == self.delay
        reward = last & ((action == 1) == (state.cue > 0))
        observation = self._observation(0.0, state.steps + 1)
        return RepeatState(state.cue, state.steps + 1), transition(observation, reward, last, False)

    def _observation(self, cue: Any, steps: Any) -> Observation:
        left = jnp.maximum(1.0 - steps / self.delay, 0.0)
        return Observation(jnp.stack([jnp.asarray(cue, jnp.float32), left.astype(jnp.float32)]))

    def optimal_value(self, view: jax.Array, gamma: float) -> jax.Array:
        """Compute the value of the optimal policy."""
        return gamma ** (view[..., 1] * self.delay)


class TwoGoals(Environment):
    """Probe with a reward of one for an action within 0.1 of a hidden goal, -0.5 or 0.5: has the policy two modes?

    It ends the episode, as do `limit` steps. The view is always one, so an attempt cannot depend on the last one: the
    best policy chooses a goal at random, and fails `limit` times with a probability of `0.5^limit`. The same goal every
    time is right in half of the episodes. With the default limit, no normal distribution does better, squashed or not:
    one that covers both goals has most of its mass where there is none.
    """

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self, limit: int = 4) -> None:
        self.limit = count(limit=limit)
        self.optimal_return = 1.0 - 0.5**self.limit

    def reset(self, key: jax.Array) -> tuple[RepeatState, TimeStep]:
        return RepeatState(_sign(key)[0], jnp.zeros((), jnp.int32)), restart(Observation(jnp.ones((1,))))

    def step(self, key: jax.Array, state: RepeatState, action: jax.Array) -> tuple[RepeatState, TimeStep]:
        found, steps = jnp.abs(action[0] - 0.5 * state.cue) <= 0.1, state.steps + 1
        terminated = found | (steps >= self.limit)
        return RepeatState(state.cue, steps), transition(Observation(jnp.ones((1,))), found, terminated, False)


MEMORY_PROBES: dict[str, type[Environment]] = {"repeat_first": RepeatFirstProbe, "two_goals": TwoGoals}
PROBES: dict[str, type[Probe]] = {
    "value": Value,
    "observed_value": ObservedValue,
    "discount": Discount,
    "time_limit": TimeLimited,
    "termination": Terminating,
    "action": Action,
    "policy": ProbePolicy,
    "multi_discrete": MultiDiscretePolicy,
    "mixed_actions": MixedPolicy,
    "continuous_action": ContinuousAction,
    "continuous_policy": ContinuousPolicy,
}


def scenarios() -> list[str]:
    """List the names of the probes."""
    return [*PROBES, *MEMORY_PROBES]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build copies of a probe."""
    check_scenario("probe", name, scenarios())
    check_names("env.params", params, (), name)
    return Vectorize(construct((PROBES | MEMORY_PROBES)[name], kwargs, name))


def _sign(key: jax.Array) -> jax.Array:
    return jax.random.rademacher(key, (1,), jnp.float32)
