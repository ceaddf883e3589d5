"""Training of one shard: rollouts, updates, and the metric sums of an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from stoix_like.architectures.acting import Act, random_act, start_episodes
from stoix_like.architectures.axes import BATCH_AXIS, map_over_shards
from stoix_like.architectures.episodes import EPISODE_STATISTICS, add_episodes, no_episodes, of_games, reduce_episodes
from stoix_like.architectures.rollout import Rollout, rollout
from stoix_like.architectures.sums import FloatSum, add_float, sum_nothing
from stoix_like.architectures.types import (
    NO_INPUTS,
    EpisodeSums,
    Given,
    Hyperparams,
    Inputs,
    IntervalMetrics,
    LearnerState,
    MetricSums,
    ProgramSpec,
    RunningSums,
    Shard,
)
from stoix_like.base_types import Agent, Axes, Metrics, RolloutState, System, TimeStep, Trajectory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError
from stoix_like.systems.diagnostics import batch_of, diagnose
from stoix_like.utils.accelerate.packing import fori_loop, pack_params, unpack
from stoix_like.utils.jax_utils import replace_named, shapes_on

Collect = Callable[[Any, Any, jax.Array], tuple[Any, Rollout]]
"""`(shared, rollout_state, key) -> (rollout_state, rollout)`."""
Update = Callable[[Any, Shard], tuple[Any, Shard, Metrics]]
"""`(shared, shard) -> (shared, shard, metrics)`."""
Build = Callable[[Hyperparams, Inputs], System]
"""`(hyperparams, inputs) -> system`."""


class ShardProgram(NamedTuple):
    """A system with its environments and mapped axes."""

    system: System
    env: VectorEnvironment  # environments with automatic reset
    axes: Axes  # the axes that a batch is spread over
    spec: ProgramSpec  # sizes
    inputs: Inputs = NO_INPUTS  # recorded data, and the parameters of a teacher

    def init_shard(self, key: jax.Array, shard_key: jax.Array, given: Given, update: Update) -> LearnerState:
        """Initialise one shard, and run the warm-up."""
        if self.spec.offline:
            return self.init_learner(key, shard_key, update)
        reset_key, warmup_key, shard_key = jax.random.split(shard_key, 3)
        state = start_episodes(self.env, self.system, jax.random.split(reset_key, self.spec.num_envs))
        # The shared state must not depend on the observations of this shard.
        agent = self._init_agent(key, jax.tree.map(jnp.zeros_like, state.timestep))
        agent = agent._replace(shared=replace_named(agent.shared, given))
        if self.spec.warmup_steps:
            keys = jax.random.split(warmup_key, self.spec.warmup_steps // self.spec.rollout_length)
            (agent, state), _ = jax.lax.scan(self._warm_up, (agent, state), keys)
        return self._first_state(agent, state, shard_key, update)

    def init_learner(self, key: jax.Array, shard_key: jax.Array, update: Update) -> LearnerState:
        """Initialise one shard with rollouts, or data, from elsewhere; its environments are never called."""
        reset_key, shard_key = jax.random.split(shard_key)
        keys = jax.random.split(reset_key, self.spec.num_envs)
        shapes = jax.eval_shape(lambda: start_episodes(self.env, self.system, keys))
        agent = self._init_agent(key, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.timestep))
        state = self._first_state(agent, shapes, shard_key, update)
        return state._replace(shards=state.shards._replace(rollout_state=()))

    def check_averages(self, num_shards: int, agent: Agent, rollout_state: RolloutState, key: jax.Array) -> None:
        """Refuse a system that does not average its update over shards, by a trace for shards of one device."""
        _, played = self._rollout(agent.shared, rollout_state, key)
        shard = Shard(agent.local, (), key, self._no_episodes(rollout_state.timestep))
        shards, rollouts = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_shards), (shard, played))

        def update(shared: Any, shard: Shard, played: Rollout) -> tuple[Any, Shard, Metrics]:
            return self._update(shared, shard, lambda *_: ((), played))

        mapped = map_over_shards(update, self.axes, (None, 0, 0), (None, 0, None), num_shards)
        mapped(agent.shared, shards, rollouts)

    def _init_agent(self, key: jax.Array, timestep: TimeStep) -> Agent:
        # A count may be a Python number, as in `TrainState.create` of flax, or weakly typed: `train` would trace again.
        agent: Agent = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), self.system.init(key, timestep))
        return agent

    def _no_episodes(self, timestep: TimeStep) -> EpisodeSums:
        # Of Sebulba, time steps are shapes.
        games = jax.eval_shape(partial(of_games, num_agents=self.env.num_agents), timestep.episode)
        return no_episodes(games.measures)

    def _first_state(self, agent: Agent, rollout_state: Any, key: jax.Array, update: Update) -> LearnerState:
        shard = Shard(agent.local, rollout_state, key, self._no_episodes(rollout_state.timestep))
        # The types that `train` traces the update for: there, constants are arguments, which belong to the mesh.
        on_mesh = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
        _, _, metrics = jax.eval_shape(update, *shapes_on(on_mesh, (agent.shared, shard)))
        sums = MetricSums(
            metrics={name: sum_nothing(metric.shape) for name, metric in metrics.items()},
            healthy_updates=jnp.zeros((), jnp.int32),
            bad_metrics=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), metrics),
        )
        return LearnerState(agent.shared, shard, jnp.ones((), bool), sums)

    def train_shard(
        self, state: LearnerState, num_updates: jax.Array, new_interval: jax.Array, update: Update
    ) -> tuple[LearnerState, IntervalMetrics]:
        """Train one shard."""
        state = self._start_interval(state, new_interval)
        state = state._replace(shared=pack_params(state.shared))
        every, blocks, apart = self.spec.every_updates, (), BATCH_AXIS in self.axes.names
        if every is not None:
            blocks = jax.tree.map(partial(_repeat, count=self.spec.max_blocks), _running_sums(state))

        def step(number: jax.Array, carry: Any) -> Any:
            *parts, blocks, trajectory = carry
            state = LearnerState(*parts)
            if self.spec.diagnostics:
                state, trajectory = self._update_and_trajectory(state)
            else:
                state = self._healthy_update(state, update)
            if every is not None:
                blocks = jax.tree.map(partial(_store, number // every), blocks, _running_sums(state))
            return *state, blocks, trajectory

        if not self.spec.diagnostics:
            *parts, blocks, _ = unpack(fori_loop(0, num_updates, step, (*state, blocks, ()), apart))
            state = LearnerState(*parts)
            return state, self._interval_metrics(state, blocks)

        def part(number: jax.Array, carry: Any) -> Any:
            start, stop = jnp.where(number, num_updates - 1, 0), jnp.where(number, num_updates, num_updates - 1)
            _, shared, *others = carry
            return shared, *fori_loop(start, stop, step, (shared, *others), apart)

        # All but the last update, then that one, in one compiled loop: where a call ends, which depends on the time,
        # changes no result.
        # With an axis of shards, scalars are packed by entry of the carry: shared ones apart from per-shard ones.
        carry = state.shared, *state, blocks, self._no_trajectory(state)
        before, *parts, blocks, trajectory = unpack(fori_loop(0, 2, part, carry, apart))
        state = LearnerState(*parts)
        agent = Agent(state.shared, state.shards.local)
        observation = batch_of(self.system, agent, trajectory, state.shards.key)
        diagnostics = diagnose(self.system, self.axes, before, agent.shared, observation)
        return state, self._interval_metrics(state, blocks)._replace(diagnostics=diagnostics)

    def _update_and_trajectory(self, state: LearnerState) -> tuple[LearnerState, Trajectory]:
        """Update once; also return the rollout that the update learns from."""
        played: list[Trajectory] = []

        def collect(*args: Any) -> Any:
            rollout_state, (trajectory, episodes) = self._rollout(*args)
            played.append(trajectory)
            return rollout_state, Rollout(trajectory, episodes)

        return self._healthy_update(state, partial(self._update, collect=collect)), played[0]

    def _no_trajectory(self, state: LearnerState) -> Any:
        """Return a trajectory of zeros."""
        shard = state.shards
        _, played = jax.eval_shape(lambda: self._rollout(unpack(state.shared), shard.rollout_state, shard.key))
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), played.trajectory)

    def learn_shard(
        self, state: LearnerState, rollout: Rollout, new_interval: jax.Array
    ) -> tuple[LearnerState, IntervalMetrics]:
        """Update one shard once, on a rollout that comes from elsewhere. `rollout`: the rollout `[T, N, ...]`."""
        state = self._start_interval(state, new_interval)
        state = unpack(self._healthy_update(state, partial(self._update, collect=lambda *_: ((), rollout))))
        sums = () if self.spec.every_updates is None else _running_sums(state)
        return state, self._interval_metrics(state, jax.tree.map(partial(_repeat, count=1), sums))

    def rollouts_shard(self, state: LearnerState, number: jax.Array) -> jax.Array:
        """Play rollouts without learning from them, to measure their time."""

        def play(_: jax.Array, carry: tuple[RolloutState, jax.Array, jax.Array]) -> Any:
            rollout_state, key, total = carry
            key, rollout_key = jax.random.split(key)
            rollout_state, played = self._rollout(state.shared, rollout_state, rollout_key)
            leaves = jax.tree.leaves(played)
            numbers = [leaf for leaf in leaves if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
            return rollout_state, key, total + sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in numbers)

        first = (state.shards.rollout_state, state.shards.key, jnp.zeros(()))
        return self.axes.mean(jax.lax.fori_loop(0, number, play, first)[2])

    @staticmethod
    def _start_interval(state: LearnerState, new_interval: jax.Array) -> LearnerState:
        """Reset the sums of the interval if a new one starts."""

        def reset(sums: Any, zeros: Any) -> Any:
            return jax.tree.map(partial(jnp.where, new_interval), zeros, sums)

        episodes = state.shards.episodes
        none = no_episodes(episodes.measures)
        return state._replace(
            sums=reset(state.sums, jax.tree.map(jnp.zeros_like, state.sums)),
            shards=state.shards._replace(episodes=reset(episodes, none)),
        )

    def _interval_metrics(self, state: LearnerState, blocks: RunningSums | tuple[()] = ()) -> IntervalMetrics:
        totals, healthy_updates, bad_metrics = state.sums
        # 0 / 0 = NaN without a healthy update.
        metrics = {name: metric.total / healthy_updates for name, metric in totals.items()}
        episodes = reduce_episodes(state.shards.episodes, self.axes)
        if blocks:
            blocks = blocks._replace(episodes=reduce_episodes(blocks.episodes, self.axes))
        return IntervalMetrics(metrics, episodes, healthy_updates, bad_metrics, blocks)

    def _warm_up(self, carry: tuple[Agent, RolloutState], key: jax.Array) -> tuple[tuple[Agent, RolloutState], None]:
        agent, state = carry
        state, (trajectory, _) = self._rollout(agent.shared, state, key, random_act(self.system.act, self.env))
        return (self.system.observe(agent, trajectory), state), None

    def _rollout(
        self, shared: Any, state: RolloutState, key: jax.Array, act: Act | None = None
    ) -> tuple[RolloutState, Rollout]:
        if self.spec.offline:
            # The first step stands for the shapes of a rollout.
            return state, Rollout(self.inputs.data.trajectory(1), ())  # type: ignore[arg-type]
        length, most = self.spec.rollout_length, self.spec.most_truncations
        return rollout(self.env, act or self.system.act, shared, state, key, length, most_truncations=most)

    def roll_out_and_update(self, shared: Any, shard: Shard) -> tuple[Any, Shard, Metrics]:
        """Roll out, observe and update once; an `Update`."""
        return self._update(shared, shard, self._rollout)

    def _update(self, shared: Any, shard: Shard, collect: Collect) -> tuple[Any, Shard, Metrics]:
        """Collect a rollout, observe and update once."""
        key, rollout_key, update_key = jax.random.split(shard.key, 3)
        with jax.named_scope("rollout"):
            state, (trajectory, episodes) = collect(shared, shard.rollout_state, rollout_key)
        with jax.named_scope("update"):
            agent = Agent(shared, shard.local)
            if not self.spec.offline:
                agent = self.system.observe(agent, trajectory)
            agent, metrics = self.system.update(agent, trajectory, update_key)
        sums = shard.episodes
        _check_metrics(metrics, sums.measures)
        if not self.spec.offline:
            sums = add_episodes(sums, of_games(episodes, self.env.num_agents))
        return agent.shared, Shard(agent.local, state, key, sums), self.axes.mean(metrics)

    def _healthy_update(self, state: LearnerState, update: Update) -> LearnerState:
        """Update once, and check that all metrics and parameters are finite; `shared` stays as it is packed."""
        shared, shard, metrics = update(unpack(state.shared), state.shards)
        shared, names = pack_params(shared), list(metrics)
        # All metrics at once: an operation on each of them would be a kernel of its own.
        vector = jnp.stack([metrics[name] for name in names]).astype(jnp.float32)
        bad = ~jnp.isfinite(vector)
        healthy = state.healthy
        if not self.spec.on_nan_ignore:
            healthy &= ~jnp.any(bad) & _all_finite(shared)
        if self.spec.num_members > 1 and not self.spec.on_nan_ignore:
            # A diverged member keeps its last finite state while the other members continue.
            shared = jax.tree.map(partial(jnp.where, healthy), shared, state.shared)
        failed_now = state.healthy & ~healthy
        before = state.sums
        totals = FloatSum(*(jnp.stack(parts) for parts in zip(*(before.metrics[name] for name in names), strict=True)))
        totals = add_float(totals, jnp.where(healthy, vector, 0.0))
        seen = jnp.stack([before.bad_metrics[name] for name in names]) | (failed_now & bad)
        sums = MetricSums(
            metrics={name: FloatSum(*entry) for name, *entry in zip(names, *totals, strict=True)},
            healthy_updates=before.healthy_updates + healthy,
            bad_metrics=dict(zip(names, seen, strict=True)),
        )
        return LearnerState(shared, shard, healthy, sums)


def make_update(
    build: Build, env: VectorEnvironment, axes: Axes, spec: ProgramSpec
) -> Callable[[Hyperparams, Inputs], Update]:
    """Return the update of a shard, which is traced once, although every program traces all of its functions again."""

    def update(hyperparams: Hyperparams, inputs: Inputs, shared: Any, shard: Shard) -> tuple[Any, Shard, Metrics]:
        return ShardProgram(build(hyperparams, inputs), env, axes, spec, inputs).roll_out_and_update(shared, shard)

    # jax keeps the trace of a jitted function; inlined, its equations belong to the program around it.
    traced_once = jax.jit(update, inline=True)
    return lambda hyperparams, inputs: partial(traced_once, hyperparams, inputs)


def _check_metrics(metrics: Metrics, measures: Iterable[str]) -> None:
    """Refuse metrics of an update that cannot be averaged, or that statistics of episodes would overwrite."""
    if not metrics:
        raise ConfigError("the system's update returns no metrics: return at least one, such as its loss")
    for name, value in metrics.items():
        if name in measures:
            raise ConfigError(
                f"train/{name} is a metric of the system and a measure of the environment: rename the one that is yours"
            )
        if name in EPISODE_STATISTICS:
            raise ConfigError(f"metric {name}: train/{name} is a statistic of finished episodes: use another name")
        if not jax.tree_util.all_leaves([value]):
            raise ConfigError(f"metric {name} is a {type(value).__name__}: return scalars, each under its own name")
        if jnp.ndim(value):
            raise ConfigError(f"metric {name} is {value.dtype}{list(value.shape)}: return its mean")


def _running_sums(state: LearnerState) -> RunningSums:
    return RunningSums(state.sums.metrics, state.sums.healthy_updates, state.shards.episodes)


def _repeat(leaf: jax.Array, count: int) -> jax.Array:
    return jnp.broadcast_to(leaf, (count, *leaf.shape))


def _store(number: jax.Array, stored: jax.Array, leaf: jax.Array) -> jax.Array:
    """Overwrite the entry of the current block: what its last update stores remains."""
    return jax.lax.dynamic_update_index_in_dim(stored, leaf, number, 0)


def _all_finite(tree: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    # A sum is finite only if all of its terms are. Parameters and their moments have the same shapes.
    by_shape: dict[Any, jax.Array] = {}
    for leaf in floats:
        kind = leaf.shape, leaf.dtype
        by_shape[kind] = by_shape[kind] + leaf if kind in by_shape else leaf
    return jnp.isfinite(sum((jnp.sum(total) for total in by_shape.values()), start=jnp.zeros(())))
