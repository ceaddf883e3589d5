"""The types shared by environments, systems and architectures.

Shape letters used throughout: T time, N environments of one shard, B minibatch, A actions,
P population. A shard is one update batch on one device.
"""

from __future__ import annotations

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
PartT = TypeVar("PartT", bound=Part)


class Observation(NamedTuple):
    """The agent's observation of an environment.

    Attributes:
        agent_view: `[..., *view]`, features or pixels, or a dictionary of such arrays.
        action_mask: `[..., A]` bool, True where an action is legal; None if the environment has no mask.
        step_count: `[...]` int32, steps since the episode started; None unless `env.step_count` is set.
    """

    agent_view: PyTree
    action_mask: jax.Array | None = None
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
    """The outcome of one environment step.

    Attributes:
        observation: the observation to act on; after an automatic reset, the first of the next episode.
        reward: `[N]` float32.
        terminated: `[N]` bool, whether the episode terminated: the bootstrap value is zero.
        truncated: `[N]` bool, whether the episode was truncated, for example by a time limit: the bootstrap value is
            the value of `next_observation`. Never True together with `terminated`.
        next_observation: the true successor, never an observation returned by a reset.
        episode: `EpisodeMetrics` of the episode that this step belongs to.
    """

    observation: Observation
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: Observation
    episode: EpisodeMetrics

    @property
    def starts_episode(self) -> jax.Array:
        """True where `observation` is the first of its episode: `[N]` bool."""
        return self.terminated | self.truncated | (self.episode.episode_length == 0)


class Transition(NamedTuple):
    """One step of a rollout.

    Attributes:
        observation: the observation that the policy acted on.
        action: the action taken.
        reward: `[N]` float32.
        terminated: `[N]` bool, see `TimeStep`.
        truncated: `[N]` bool, see `TimeStep`.
        next_observation: the true successor, see `TimeStep`; of a whole rollout, `[S, N, ...]` for
            `utils.accelerate.successors.successor_values` where the system needs only values.
        is_first: `[N]` bool, whether `observation` is the first of its episode, where a recurrent state is reset.
        extras: the extras returned by the system's `act`, such as log-probabilities.
    """

    observation: Observation
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: Observation
    is_first: jax.Array
    extras: PyTree


class Trajectory(NamedTuple):
    """Transitions `[T, N, ...]`, and the recurrent state `[N, ...]` before the first one."""

    transitions: Transition
    first_carry: PyTree


class RolloutState(NamedTuple):
    """The state of a rollout in one shard.

    Attributes:
        env_state: the state of the environments.
        timestep: the last time step `[N, ...]`.
        carry: the recurrent state `[N, ...]`, see `System.init_carry`.
    """

    env_state: PyTree
    timestep: TimeStep
    carry: PyTree


class Agent(NamedTuple):
    """The state of the agent.

    Attributes:
        shared: parameters, optimiser states, statistics, counters: one copy, identical on every shard.
        local: per-shard state, such as a replay buffer; `()` where there is none.
    """

    shared: PyTree
    local: PyTree


class LastAction(NamedTuple):
    """A carry that holds the last action, because the observation does not tell it.

    Attributes:
        state: the recurrent state before the next step.
        action: `[N, ...]`, the action taken; in the warm-up, the random one.
    """

    state: PyTree
    action: jax.Array


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
    """Outputs of the networks of a system for observations `[B, ...]`, each the first of its episode.

    Attributes:
        policy: the distribution over actions, without exploration that is no part of it; None without a policy.
        value: `[B]`, values of the policy, or `[B, A]` of all actions, in the units that the critic learns; the
            means of distributions. None without a critic.
    """

    policy: Any
    value: jax.Array | None


class System(NamedTuple):
    """An algorithm as six functions, and optional ones that show what it learned.

    Attributes:
        init: `(key, timestep) -> Agent`; `timestep` `[N, ...]` is an example.
        act: `(shared, RolloutState, key) -> (carry, action, extras)`, with exploration.
        observe: `(Agent, Trajectory) -> Agent`, adds the rollout to the replay buffer or to observation statistics.
        update: `(Agent, Trajectory, key) -> (Agent, metrics)`, trains the agent; `metrics` are scalars by name.
        eval_act: like `act`, for evaluation.
        init_carry: `(num_envs) -> carry`, the carry at the start of an episode: a recurrent state, the keys of
            correlated noise, or `()`.
        inspect: `(shared, Observation) -> NetworkOutputs`, for pictures of policy and critic; None without any.
        search: `(shared, RolloutState, key) -> SearchOutput`, what the search of `eval_act` finds; None without one.
        observations: `(Agent, Trajectory, key) -> Observation`, a batch `[B, ...]` that `update` learns from, or None.
        dream: `(shared, Observation [T, B, ...], action [T, B, ...], context, key) -> Dream`: what a learned model
            makes of the first `context` observations of episodes, and predicts of the others from the actions alone.
            `action[t]` led to observation t; `action[0]` has no effect. None without a model that draws observations.
    """

    init: Callable[[jax.Array, TimeStep], Agent]
    act: Callable[[PyTree, RolloutState, jax.Array], Acted]
    observe: Callable[[Agent, Trajectory], Agent]
    update: Callable[[Agent, Trajectory, jax.Array], tuple[Agent, Metrics]]
    eval_act: Callable[[PyTree, RolloutState, jax.Array], Acted]
    init_carry: Callable[[int], PyTree]
    inspect: Callable[[PyTree, Observation], NetworkOutputs] | None = None
    search: Callable[[PyTree, RolloutState, jax.Array], SearchOutput] | None = None
    observations: Callable[[Agent, Trajectory, jax.Array], Observation] | None = None
    dream: Callable[[PyTree, Observation, jax.Array, int, jax.Array], Dream] | None = None


class Model(NamedTuple):
    """The environments of a run as a model to plan with: without automatic reset, with the rewards of training.

    Attributes:
        state_of: `(env_state) -> state`, the state to plan from, of a `RolloutState` of training or of evaluation.
        step: `(keys [N], state, action [N, ...]) -> (state, TimeStep)`; undefined after the end of an episode.
    """

    state_of: Callable[[PyTree], PyTree]
    step: Callable[[jax.Array, PyTree, jax.Array], tuple[PyTree, TimeStep]]


class SearchOutput(NamedTuple):
    """Result of a search over the actions of N environments.

    Attributes:
        action: `[N, ...]`, the actions chosen.
        candidates: `[N, K, ...]`, the actions considered; None for all discrete ones, K = A.
        prior: `[N, K]`, their probabilities before the search.
        weights: `[N, K]`, their probabilities after it, the target of the policy.
        visits: `[N, K]`, the simulations, or particles, that started with each of them.
        action_values: `[N, K]`, their values; NaN without a visit.
        prior_value: `[N]`, the values of the states before the search.
        value: `[N]`, the values of the states after it.
    """

    action: jax.Array
    candidates: jax.Array | None
    prior: jax.Array
    weights: jax.Array
    visits: jax.Array
    action_values: jax.Array
    prior_value: jax.Array
    value: jax.Array


class Dream(NamedTuple):
    """Predictions of a learned model along T steps of B episodes, from their first observations and all actions.

    Attributes:
        view: like `Observation.agent_view`, `[T, B, ...]` floats in its units (uint8 images: 0 … 255).
        reward: `[T, B]`, of the steps that lead to the observations.
        continues: `[T, B]`, probabilities that the episodes have not terminated there.
    """

    view: PyTree
    reward: jax.Array
    continues: jax.Array


class Axes(NamedTuple):
    """The mapped axes that a batch is spread over.

    Attributes:
        names: axis names, empty outside a mapped program.
    """

    names: tuple[str, ...] = ()

    def mean(self, tree: PyTree) -> PyTree:
        """Average every leaf over all shards."""
        return mean_over(tree, self.names)

    def sum(self, tree: PyTree) -> PyTree:
        """Sum every leaf over all shards."""
        return sum_over(tree, self.names)


class SystemSpec(NamedTuple):
    """Spaces, networks and sizes that a system is built from.

    Attributes:
        observation_space: the space of `Observation.agent_view`.
        action_space: the space of one action.
        networks: the modules of the network configuration, such as `networks.actor_network.pre_torso`.
        axes: the axes to average gradients, losses and statistics over.
        num_updates: number of updates in the whole run, for schedules.
        num_envs: environments per shard, N; of several agents, their rows.
        num_shards: shards in the whole run.
        evaluation_greedy: whether evaluation uses the mode of the policy.
        num_players: 2 in games where the agent plays both seats, see `VectorEnvironment.num_players`; otherwise 1.
        model: the environments as a model, for systems with `SystemConfig.needs_model`; None for others.
        num_agents: agents of each environment, in adjacent rows; see `VectorEnvironment.num_agents`.
        team_reward: whether the rewards of the rows of an environment are equal.
        share_networks: whether all agents have the same networks, or each its own.
        rollout_length: steps per environment of each rollout, T.
        warmup_rollouts: random rollouts before the first update.
        data: recorded data, see `utils.replay.data`; None without any.
        teacher: the policy of another run, see `systems.parts.teacher`; None without one.
    """

    observation_space: ObservationSpace
    action_space: Space
    networks: SimpleNamespace
    axes: Axes
    num_updates: int
    num_envs: int
    num_shards: int
    evaluation_greedy: bool
    num_players: int = 1
    model: Model | None = None
    num_agents: int = 1
    team_reward: bool = False
    share_networks: bool = True
    rollout_length: int = 1
    warmup_rollouts: int = 0
    data: Any = None
    teacher: Any = None


@dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """Hyperparameters common to all systems; the `Config` of each system extends this class.

    Attributes:
        annealed: names of hyperparameters with a second one, `final_*`: the value at the end of the run, or None.
        has_mode: whether the policy has a mode; without one, evaluations sample too.
        mode_hyperparams: hyperparameters with which a greedy `eval_act` takes the mode of the policy.
        policy_hyperparams: hyperparameters with which `eval_act` acts only on observations, without a search.
        needs_model: whether the system plans with the environments as a model.
        needs_successors: whether the system reads the true successor of every step, and not only its value.
        stores_raw_rewards: whether the replay buffer holds rewards that `reward_scale` has not multiplied.
        plays_both_seats: whether the system learns games for two in which it moves for both players.
        networks_per_agent: whether the system can give each agent of a game networks of its own.
        rollout_length: steps per environment between two updates, T.
        warmup_steps: random steps per environment before the first update.
    """

    annealed: ClassVar[tuple[str, ...]] = ()
    has_mode: ClassVar[bool] = True
    mode_hyperparams: ClassVar[Mapping[str, float]] = {}
    policy_hyperparams: ClassVar[Mapping[str, float]] = {}
    needs_model: ClassVar[bool] = False
    needs_successors: ClassVar[bool] = True
    stores_raw_rewards: ClassVar[bool] = False
    plays_both_seats: ClassVar[bool] = False
    networks_per_agent: ClassVar[bool] = False
    rollout_length: Annotated[int, between(1, INT32_MAX)]
    warmup_steps: Annotated[int, between(0, INT32_MAX)] = 0

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
        del action_space
        return ()

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
