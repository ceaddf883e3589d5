"""The vocabulary shared by environments, systems and the runner.

Shape letters used throughout: T time, N environments of one shard, B minibatch, A actions,
P population. A shard is one update batch on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import jax

from stoix_like.schema import at_least

if TYPE_CHECKING:
    from stoix_like.envs.spaces import Space

PyTree = Any
"""Nested containers of arrays."""
Metrics = dict[str, jax.Array]
"""Scalars by name."""


class Observation(NamedTuple):
    """What an agent sees.

    Attributes:
        agent_view: `[..., *view]`, the features or pixels.
        action_mask: `[..., A]` bool, True where an action is legal; None where the environment has none.
        step_count: `[...]` int32, steps since the episode began; None where it is not asked for.
    """

    agent_view: jax.Array
    action_mask: jax.Array | None = None
    step_count: jax.Array | None = None


class ObservationGlobalState(NamedTuple):
    """An `Observation` together with the state of the whole environment, for centralised critics."""

    agent_view: jax.Array
    action_mask: jax.Array | None
    global_state: jax.Array
    step_count: jax.Array | None


class EpisodeMetrics(NamedTuple):
    """Undiscounted statistics of the episode that a time step belongs to.

    Attributes:
        episode_return: `[N]` float32, sum of the environment's own rewards so far.
        episode_length: `[N]` int32, steps so far.
        finished: `[N]` bool, whether this step was the last one of the episode.
    """

    episode_return: jax.Array
    episode_length: jax.Array
    finished: jax.Array


class TimeStep(NamedTuple):
    """The outcome of one environment step.

    Attributes:
        observation: act on this; after an automatic reset it is already the next episode's first.
        reward: `[N]` float32.
        terminated: `[N]` bool, the task ended: there is no value beyond this step.
        truncated: `[N]` bool, cut by a limit: the value beyond is bootstrapped. Never with `terminated`.
        next_observation: the true successor of the step, never an observation made by a reset.
        episode: `EpisodeMetrics` of the episode this step belongs to.
    """

    observation: Observation
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: Observation
    episode: EpisodeMetrics


class Transition(NamedTuple):
    """One step as an algorithm remembers it; `extras` is what its `act` asked to keep."""

    observation: Observation
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: Observation
    extras: PyTree


class Trajectory(NamedTuple):
    """`transitions` `[T, N, ...]` and the recurrent state `[N, ...]` that the first of them was acted from."""

    transitions: Transition
    first_carry: PyTree


class Actor(NamedTuple):
    """The acting side of a shard: environment states, the last time step, the recurrent state."""

    env_state: PyTree
    timestep: TimeStep
    carry: PyTree


class Agent(NamedTuple):
    """The learning side.

    Attributes:
        shared: parameters, optimiser state, statistics, counters: one copy, identical on every shard.
        local: what belongs to one shard alone, such as its replay buffer; `()` where there is nothing.
    """

    shared: PyTree
    local: PyTree


class System(NamedTuple):
    """An algorithm, as the runner sees it.

    Attributes:
        init: `(key, timestep) -> Agent`; `timestep` `[N, ...]` is an example.
        act: `(shared, Actor, key) -> (carry, action, extras)`, exploring.
        observe: `(Agent, Trajectory) -> Agent`, takes the trajectory in: replay, observation statistics.
        update: `(Agent, Trajectory, key) -> (Agent, metrics)`, learns; `metrics` are scalars by name.
        eval_act: like `act`, as the policy is evaluated.
        init_carry: `(num_envs) -> carry`, what is remembered from step to step at the start of an episode: a recurrent
            state, the keys of correlated noise, or `()`.
    """

    init: Callable[[jax.Array, TimeStep], Agent]
    act: Callable[[PyTree, Actor, jax.Array], tuple[PyTree, jax.Array, PyTree]]
    observe: Callable[[Agent, Trajectory], Agent]
    update: Callable[[Agent, Trajectory, jax.Array], tuple[Agent, Metrics]]
    eval_act: Callable[[PyTree, Actor, jax.Array], tuple[PyTree, jax.Array, PyTree]]
    init_carry: Callable[[int], PyTree]


class Axes(NamedTuple):
    """The mapped axes that a batch is spread over, so that no system needs to name them.

    Attributes:
        names: axis names, empty outside a mapped program.
    """

    names: tuple[str, ...] = ()

    def mean(self, tree: PyTree) -> PyTree:
        """Average every leaf over all shards."""
        return jax.lax.pmean(tree, self.names) if self.names else tree

    def sum(self, tree: PyTree) -> PyTree:
        """Sum every leaf over all shards."""
        return jax.lax.psum(tree, self.names) if self.names else tree


class SystemSpec(NamedTuple):
    """What a system is built from besides its hyperparameters.

    Attributes:
        observation_space: of `Observation.agent_view`.
        action_space: of one action.
        networks: the modules of the network configuration, `networks.actor_network.pre_torso`.
        axes: the axes to average gradients, losses and statistics over.
        num_updates: updates in the whole run, for schedules.
        num_envs: environments of one shard, N.
        num_shards: shards in the whole run.
        evaluation_greedy: whether evaluation acts by the mode of the policy.
    """

    observation_space: Space
    action_space: Space
    networks: SimpleNamespace
    axes: Axes
    num_updates: int
    num_envs: int
    num_shards: int
    evaluation_greedy: bool


@dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """The hyperparameters that the runner itself needs; every system's `Config` extends it.

    Attributes:
        rollout_length: environment steps per environment between two updates, T.
        warmup_steps: steps per environment with random actions before the first update.
    """

    rollout_length: Annotated[int, at_least(1)]
    warmup_steps: Annotated[int, at_least(0)] = 0

    def check(self, num_envs: int, num_shards: int) -> None:
        """Refuse sizes that do not fit together.

        Args:
            num_envs: environments of one shard.
            num_shards: shards in the whole run.

        Raises:
            ConfigError: naming the keys, their values and what would do.
        """


class ActorCriticParams(NamedTuple):
    """Parameters of an actor and of a critic."""

    actor_params: PyTree
    critic_params: PyTree


class ActorCriticOptStates(NamedTuple):
    """Optimiser states of an actor and of a critic."""

    actor_opt_state: PyTree
    critic_opt_state: PyTree


class ActorCriticHiddenStates(NamedTuple):
    """Recurrent states of an actor and of a critic."""

    policy_hidden_state: PyTree
    critic_hidden_state: PyTree


class OnlineAndTarget(NamedTuple):
    """Parameters that learn, and the slowly following copy that targets are computed with."""

    online: PyTree
    target: PyTree
