"""The types shared by environments, systems and architectures.

Shape letters used throughout: T time, N environments of one shard, B minibatch, A actions,
P population. A shard is one update batch on one device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, Part, between
from stoix_like.utils.collectives import mean_over, sum_over

if TYPE_CHECKING:
    from stoix_like.envs.spaces import ObservationSpace, Space

PyTree = Any
"""Nested containers of arrays."""
Metrics = dict[str, jax.Array]
"""Scalars by name."""
Loss = tuple[jax.Array, Metrics]
"""A loss, and metrics by name."""
Acted = tuple[PyTree, jax.Array, PyTree]
"""Result of `System.act`: the carry, the actions, and the extras, which the update needs to know."""
GoalReward = Callable[[Any, Any], tuple[jax.Array, jax.Array]]
"""`(achieved goal, desired goal) -> (reward, terminated)`, see `envs.environment.EnvFacts.goal_reward`."""
ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""The entries of `Observation.agent_view` that it compares."""
PartT = TypeVar("PartT", bound=Part)


class Observation(NamedTuple):
    """The agent's observation of an environment."""

    agent_view: PyTree  # `[..., *view]`, features or pixels, or a dictionary of such arrays
    # `[..., A]` bool, True where an action is legal; None if the environment has no mask.
    action_mask: jax.Array | None = None
    # `[...]` int32, steps since the episode started; None unless `env.step_count` is set.
    step_count: jax.Array | None = None


class ObservationGlobalState(NamedTuple):
    """An `Observation` with the global state of the environment, for centralised critics."""

    agent_view: PyTree
    action_mask: jax.Array | None
    global_state: jax.Array
    step_count: jax.Array | None


class EpisodeMetrics(NamedTuple):
    """Undiscounted statistics of the episode that a time step belongs to.

    Attributes:
        episode_return: `[N]` float32, sum of the unscaled rewards so far.
        episode_length: `[N]` int32, steps so far.
        finished: `[N]` bool, whether this step was the last of an episode that is reported, see `Stagger`.
        measures: further measures of the episode so far by name, `[N]` float32, such as whether it is won; none in most
            suites. In the rows of agents, `agent_return` is each agent's, and `episode_return` the team's.
    """

    episode_return: jax.Array
    episode_length: jax.Array
    finished: jax.Array
    measures: dict[str, jax.Array] = {}  # noqa: RUF012 (never changed)


class TimeStep(NamedTuple):
    """The outcome of one environment step."""

    observation: Observation  # the observation to act on; after an automatic reset, the first of the next episode
    reward: jax.Array  # `[N]` float32
    terminated: jax.Array  # `[N]` bool, whether the episode terminated: the bootstrap value is zero
    # `[N]` bool, whether the episode was truncated, for example by a time limit: the bootstrap value is the value of
    # `next_observation`. Never True together with `terminated`.
    truncated: jax.Array
    next_observation: Observation  # the true successor, never an observation returned by a reset
    episode: EpisodeMetrics  # `EpisodeMetrics` of the episode that this step belongs to

    @property
    def starts_episode(self) -> jax.Array:
        """True where `observation` is the first of its episode: `[N]` bool."""
        return self.terminated | self.truncated | (self.episode.episode_length == 0)


class Transition(NamedTuple):
    """One step of a rollout."""

    observation: Observation  # the observation that the policy acted on
    action: jax.Array  # the action taken
    reward: jax.Array  # `[N]` float32
    terminated: jax.Array  # `[N]` bool, see `TimeStep`
    truncated: jax.Array  # `[N]` bool, see `TimeStep`
    # The true successor, see `TimeStep`; of a whole rollout, `[S, N, ...]` for
    # `utils.accelerate.successors.successor_values` where the system needs only values.
    next_observation: Observation
    # `[N]` bool, whether `observation` is the first of its episode, where a recurrent state is reset.
    is_first: jax.Array
    extras: PyTree  # the extras returned by the system's `act`, such as log-probabilities


class Trajectory(NamedTuple):
    """Transitions `[T, N, ...]`, and the recurrent state `[N, ...]` before the first one."""

    transitions: Transition
    first_carry: PyTree


class RolloutState(NamedTuple):
    """The state of a rollout in one shard."""

    env_state: PyTree  # the state of the environments
    timestep: TimeStep  # the last time step `[N, ...]`
    carry: PyTree  # the recurrent state `[N, ...]`, see `System.init_carry`


class Agent(NamedTuple):
    """The state of the agent."""

    shared: PyTree  # parameters, optimiser states, statistics, counters: one copy, identical on every shard
    local: PyTree  # per-shard state, such as a replay buffer; `()` where there is none


class LastAction(NamedTuple):
    """A carry that holds the last action, because the observation does not tell it."""

    state: PyTree  # the recurrent state before the next step
    action: jax.Array  # `[N, ...]`, the action taken; in the warm-up, the random one


class Distribution(Protocol):
    """Output of a policy head for a batch, a distribution over actions; see `networks.distributions`."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch."""

    def sample(self, *, seed: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw actions `[*sample_shape, *batch, ...]`."""

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Compute the log-probabilities of actions, in nats."""

    def entropy(self, *, seed: jax.Array) -> jax.Array:
        """Compute the entropies `[*batch]`, in nats; the key is for estimates."""

    def mode(self) -> jax.Array:
        """Return the most likely actions `[*batch, ...]`."""

    def kl_divergence(self, other_dist: Any) -> jax.Array:
        """Compute the divergences `[*batch]` from another policy of the same kind, in nats."""


class NetworkOutputs(NamedTuple):
    """Outputs of the networks of a system for observations `[B, ...]`, each the first of its episode."""

    policy: Any  # the distribution over actions, without exploration that is no part of it; None without a policy
    # `[B]`, values of the policy, or `[B, A]` of all actions, in the units that the critic learns; the means of
    # distributions. None without a critic.
    value: jax.Array | None


class System(NamedTuple):
    """An algorithm as six functions, and optional ones that show what it learned."""

    init: Callable[[jax.Array, TimeStep], Agent]  # `(key, timestep) -> Agent`; `timestep` `[N, ...]` is an example
    # `(shared, RolloutState, key) -> (carry, action, extras)`, with exploration.
    act: Callable[[PyTree, RolloutState, jax.Array], Acted]
    # `(Agent, Trajectory) -> Agent`, adds the rollout to the replay buffer or to observation statistics.
    observe: Callable[[Agent, Trajectory], Agent]
    # `(Agent, Trajectory, key) -> (Agent, metrics)`, trains the agent; `metrics` are scalars by name.
    update: Callable[[Agent, Trajectory, jax.Array], tuple[Agent, Metrics]]
    eval_act: Callable[[PyTree, RolloutState, jax.Array], Acted]  # like `act`, for evaluation
    # `(num_envs) -> carry`, the carry at the start of an episode: a recurrent state, the keys of correlated noise, or
    # `()`.
    init_carry: Callable[[int], PyTree]
    # `(shared, Observation) -> NetworkOutputs`, for pictures of policy and critic; None without any.
    inspect: Callable[[PyTree, Observation], NetworkOutputs] | None = None
    # `(shared, RolloutState, key) -> SearchOutput`, what the search of `eval_act` finds; None without one.
    search: Callable[[PyTree, RolloutState, jax.Array], SearchOutput] | None = None
    # `(Agent, Trajectory, key) -> Observation`, a batch `[B, ...]` that `update` learns from, or None.
    observations: Callable[[Agent, Trajectory, jax.Array], Observation] | None = None
    # `(shared, Observation [T, B, ...], action [T, B, ...], context, key) -> Dream`: what a learned model makes of the
    # first `context` observations of episodes, and predicts of the others from the actions alone. `action[t]` led to
    # observation t; `action[0]` has no effect. None without a model that draws observations.
    dream: Callable[[PyTree, Observation, jax.Array, int, jax.Array], Dream] | None = None


class Model(NamedTuple):
    """The environments of a run as a model to plan with: without automatic reset, with the rewards of training."""

    # `(env_state) -> state`, the state to plan from, of a `RolloutState` of training or of evaluation.
    state_of: Callable[[PyTree], PyTree]
    # `(keys [N], state, action [N, ...]) -> (state, TimeStep)`; undefined after the end of an episode.
    step: Callable[[jax.Array, PyTree, jax.Array], tuple[PyTree, TimeStep]]


class SearchOutput(NamedTuple):
    """Result of a search over the actions of N environments."""

    action: jax.Array  # `[N, ...]`, the actions chosen
    candidates: jax.Array | None  # `[N, K, ...]`, the actions considered; None for all discrete ones, K = A
    prior: jax.Array  # `[N, K]`, their probabilities before the search
    weights: jax.Array  # `[N, K]`, their probabilities after it, the target of the policy
    visits: jax.Array  # `[N, K]`, the simulations, or particles, that started with each of them
    action_values: jax.Array  # `[N, K]`, their values; NaN without a visit
    prior_value: jax.Array  # `[N]`, the values of the states before the search
    value: jax.Array  # `[N]`, the values of the states after it


class Dream(NamedTuple):
    """Predictions of a learned model along T steps of B episodes, from their first observations and all actions."""

    view: PyTree  # like `Observation.agent_view`, `[T, B, ...]` floats in its units (uint8 images: 0 … 255)
    reward: jax.Array  # `[T, B]`, of the steps that lead to the observations
    continues: jax.Array  # `[T, B]`, probabilities that the episodes have not terminated there


class Axes(NamedTuple):
    """The mapped axes that a batch is spread over."""

    names: tuple[str, ...] = ()  # axis names, empty outside a mapped program

    def mean(self, tree: PyTree) -> PyTree:
        """Average every leaf over all shards."""
        return mean_over(tree, self.names)

    def sum(self, tree: PyTree) -> PyTree:
        """Sum every leaf over all shards."""
        return sum_over(tree, self.names)


class SystemSpec(NamedTuple):
    """Spaces, networks and sizes that a system is built from."""

    observation_space: ObservationSpace  # the space of `Observation.agent_view`
    action_space: Space  # the space of one action
    networks: SimpleNamespace  # the modules of the network configuration, such as `networks.actor_network.pre_torso`
    axes: Axes  # the axes to average gradients, losses and statistics over
    num_updates: int  # number of updates in the whole run, for schedules
    num_envs: int  # environments per shard, N; of several agents, their rows
    num_shards: int  # shards in the whole run
    evaluation_greedy: bool  # whether evaluation uses the mode of the policy
    # 2 in games where the agent plays both seats, see `VectorEnvironment.num_players`; otherwise 1.
    num_players: int = 1
    # The environments as a model, for systems with `SystemConfig.needs_model`; None for others.
    model: Model | None = None
    num_agents: int = 1  # agents of each environment, in adjacent rows; see `VectorEnvironment.num_agents`
    team_reward: bool = False  # whether the rewards of the rows of an environment are equal
    goal_reward: GoalReward | None = None  # see `EnvFacts.goal_reward`
    share_networks: bool = True  # whether all agents have the same networks, or each its own
    rollout_length: int = 1  # steps per environment of each rollout, T
    warmup_rollouts: int = 0  # random rollouts before the first update
    data: Any = None  # recorded data, see `utils.replay.data`; None without any
    teacher: Any = None  # the policy of another run, see `systems.parts.teacher`; None without one


@dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """Hyperparameters common to all systems; the `Config` of each system extends this class."""

    # Names of hyperparameters with a second one, `final_*`: the value at the end of the run, or None.
    annealed: ClassVar[tuple[str, ...]] = ()
    has_mode: ClassVar[bool] = True  # whether the policy has a mode; without one, evaluations sample too
    # Hyperparameters with which a greedy `eval_act` takes the mode of the policy.
    mode_hyperparams: ClassVar[Mapping[str, float]] = {}
    # Hyperparameters with which `eval_act` acts only on observations, without a search.
    policy_hyperparams: ClassVar[Mapping[str, float]] = {}
    needs_model: ClassVar[bool] = False  # whether the system plans with the environments as a model
    needs_goals: ClassVar[bool] = False  # whether the system reads what observations achieved and desired
    # Whether the system reads the true successor of every step, and not only its value.
    needs_successors: ClassVar[bool] = True
    # Whether the replay buffer holds rewards that `reward_scale` has not multiplied.
    stores_raw_rewards: ClassVar[bool] = False
    # Whether the system learns games for two in which it moves for both players.
    plays_both_seats: ClassVar[bool] = False
    networks_per_agent: ClassVar[bool] = False  # whether the system can give each agent of a game networks of its own
    rollout_length: Annotated[int, between(1, INT32_MAX)]  # steps per environment between two updates, T
    warmup_steps: Annotated[int, between(0, INT32_MAX)] = 0  # random steps per environment before the first update

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the hyperparameters, see `schema.Part`."""
        return tuple(value for field in fields(self) if isinstance(value := getattr(self, field.name), Part))

    def find_part(self, kind: type[PartT]) -> PartT | None:
        """Return the part of a kind, if the system has one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    @property
    def has_replay(self) -> bool:
        """True if `Agent.local` holds a replay buffer, which `checkpoint.replay=false` leaves out of checkpoints."""
        return any(part.is_replay for part in self.parts)

    @property
    def reads_successors(self) -> bool:
        """True if `needs_successors` is set, or a part reads successors."""
        return self.needs_successors or any(part.reads_successors for part in self.parts)

    def policy_space(self, space: Any) -> Any:
        """Return the space of the policy's actions, which a part may enlarge, from the environment's."""
        return functools.reduce(lambda space, part: part.policy_space(space), self.parts, space)

    def adapt(self, system: System, space: Any) -> System:
        """Return a system whose actions, of the space of the policy, are the environment's."""
        return functools.reduce(lambda system, part: part.adapt(system, space), self.parts, system)

    @property
    def ignores_lag(self) -> bool:
        """True if losses treat rollouts as the current policy's, although Sebulba's policy may be older."""
        return not self.has_replay

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update: set by a part, or one, on the whole rollout."""
        return next((part.gradient_steps for part in self.parts if part.gradient_steps is not None), 1)

    @property
    def max_steps_per_env(self) -> int | None:
        """The largest number of steps per environment that the system can count, warm-up included; None: any number."""
        limits = [part.max_steps_per_env for part in self.parts if part.max_steps_per_env is not None]
        return min(limits, default=None)

    @property
    def final_values(self) -> dict[str, float | jax.Array]:
        """The values at the end of the run, of the hyperparameters that change."""
        return {name: value for name in self.annealed if (value := getattr(self, f"final_{name}")) is not None}

    def init_updates(self) -> PyTree:
        """Return the count of updates that `at` needs, `()` if nothing changes."""
        return jnp.zeros((), jnp.int32) if self.final_values else ()

    def at(self, updates: PyTree, num_updates: int) -> Self:
        """Return the hyperparameters after a number of updates: `x + (final_x - x) min(1, updates / num_updates)`."""
        if not (finals := self.final_values):
            return self
        fraction = jnp.minimum(1.0, updates / num_updates)
        starts = ((name, getattr(self, name), final) for name, final in finals.items())
        return replace(self, **{name: start + fraction * (final - start) for name, start, final in starts})

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        """Compute the values of all schedules, to report how another budget moves them.

        Args:
            updates: number of updates so far.
            num_updates: number of updates in the whole run.

        Returns:
            The values by description; empty if nothing changes over the run.
        """
        now = self.at(updates, num_updates)
        values = {name: float(getattr(now, name)) for name in self.final_values}
        for part in self.parts:
            values |= part.schedules(updates, num_updates)
        return values

    def notes(self, action_space: Any) -> tuple[str, ...]:
        """Return notes for the user about hyperparameters that do not suit the environment.

        Args:
            action_space: of the environment.
        """
        return tuple(note for part in self.parts for note in part.notes())

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that the sizes are compatible.

        Args:
            num_envs: environments per shard.
            num_shards: shards in the whole run.

        Raises:
            ConfigError: if sizes are incompatible; the message names the keys, their values and what would work.
        """
        if self.warmup_steps and not self.has_replay:
            raise ConfigError(
                f"system.warmup_steps={self.warmup_steps}: this system declares no replay buffer: use 0; one with a"
                " buffer of its own in Agent.local sets has_replay = True in its Config"
            )
        # The parts that a variant adds come last, and know more.
        for part in reversed(self.parts):
            part.check(self, num_envs, num_shards)


class ActorCriticParams(NamedTuple):
    """Parameters of an actor and a critic."""

    actor_params: PyTree
    critic_params: PyTree


class ActorCriticOptStates(NamedTuple):
    """Optimiser states of an actor and a critic."""

    actor_opt_state: PyTree
    critic_opt_state: PyTree


class ActorCriticHiddenStates(NamedTuple):
    """Recurrent states of an actor and a critic."""

    policy_hidden_state: PyTree
    critic_hidden_state: PyTree


class OnlineAndTarget(NamedTuple):
    """Online parameters and slowly updated target parameters."""

    online: PyTree
    target: PyTree
