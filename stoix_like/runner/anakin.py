"""The compiled training program: rollouts and updates of every member and shard, on every device.

Axes from the outside in: population (vmapped members, and a mesh axis that they may be spread over) → device (mesh
axis) → batch (vmapped shards of one device) → environments. `shared` has no batch axis: it is returned with
`out_axes=None`, so that a system which forgets to average over several shards is refused when the program is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from stoix_like.base_types import Actor, Agent, Axes, EpisodeMetrics, Metrics, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.runner.devices import BATCH_AXIS, DEVICE_AXIS, POPULATION_AXIS
from stoix_like.runner.rollout import random_act, rollout

Hyperparams = dict[str, Any]


class Layout(NamedTuple):
    """How a system is laid out.

    Attributes:
        population: members; with more than one, every array of the program begins with this axis.
        num_envs: environments of one shard, N.
        rollout_length: steps per environment between two updates, T.
        warmup_steps: random steps per environment before the first update, a multiple of `rollout_length`.
        on_nan_ignore: whether an update that goes bad is an update like any other.
    """

    population: int
    num_envs: int
    rollout_length: int
    warmup_steps: int = 0
    on_nan_ignore: bool = False


class Shard(NamedTuple):
    """What belongs to one shard: `[num_shards, ...]` over the whole run.

    Attributes:
        local: the agent's own, such as its replay buffer.
        actor: environment states, last time step, recurrent state.
        key: all that is random from here on.
        episodes: `EpisodeSums` of the window so far.
    """

    local: Any
    actor: Any
    key: Any
    episodes: Any


class LearnerState(NamedTuple):
    """Everything that determines the future of training.

    Attributes:
        shared: the agent's shared state: one copy, replicated over the devices.
        shards: `Shard`, its leading axis split over the devices.
        healthy: bool, False once a metric or a parameter was not finite; such a member learns no more.
        tally: `Tally` of the window so far.
    """

    shared: Any
    shards: Any
    healthy: Any
    tally: Any


class Tally(NamedTuple):
    """What a window of updates adds up on its way, so that it may be trained in several calls.

    Attributes:
        metrics: the system's own, summed over healthy updates.
        healthy_updates: updates before something went bad.
        bad_metrics: by name, whether this metric was not finite in the update that went bad.
    """

    metrics: Metrics
    healthy_updates: jax.Array
    bad_metrics: Metrics


class EpisodeSums(NamedTuple):
    """Finished episodes, reduced to scalars before they leave the device."""

    number: jax.Array
    return_sum: jax.Array
    return_min: jax.Array
    return_max: jax.Array
    length_sum: jax.Array


class Window(NamedTuple):
    """What a window of updates reports.

    Attributes:
        metrics: the system's own, averaged over the window's healthy updates and all shards.
        episodes: of the episodes that finished in the window.
        healthy_updates: updates of this window before something went bad.
        bad_metrics: by name, whether this metric was not finite in the update that went bad.
    """

    metrics: Metrics
    episodes: EpisodeSums
    healthy_updates: jax.Array
    bad_metrics: Metrics


class Program(NamedTuple):
    """The two functions of a training run, to be compiled. With a population, each argument but the last has its axis.

    Attributes:
        init: `(hyperparams, key, shard_keys [num_shards]) -> LearnerState`, warm-up included.
        train: `(LearnerState, hyperparams, num_updates [], begin []) -> (LearnerState, Window)`; `begin` starts a new
            window, without it the last one goes on. Donates its state.
    """

    init: Any
    train: Any


def make_axes(mesh: Mesh) -> Axes:
    """The axes that a batch is spread over; an axis of one device is left out, it would only cost a collective."""
    return Axes((DEVICE_AXIS, BATCH_AXIS) if mesh.shape[DEVICE_AXIS] > 1 else (BATCH_AXIS,))


def partition_specs(population: int) -> tuple[PartitionSpec, PartitionSpec]:
    """How arrays lie on the mesh: those with one copy per member, and those with one entry per shard as well."""
    if population == 1:
        return PartitionSpec(), PartitionSpec(DEVICE_AXIS)
    return PartitionSpec(POPULATION_AXIS), PartitionSpec(POPULATION_AXIS, DEVICE_AXIS)


def make_program(build: Callable[[Hyperparams], System], env: VectorEnvironment, mesh: Mesh, layout: Layout) -> Program:
    """Lay a system out over the mesh.

    Args:
        build: makes the system from the hyperparameters that vary between members, which are traced.
        env: environments with automatic reset.
        mesh: the devices.
        layout: sizes.

    Returns:
        The program, not yet compiled.
    """
    axes = make_axes(mesh)
    shards_of_state: Any = LearnerState(None, 0, None, None)

    def init(hyperparams: Hyperparams, key: jax.Array, shard_keys: jax.Array) -> LearnerState:
        init_shard = partial(_init_shard, build(hyperparams), env, axes, layout)
        return _over_shards(init_shard, (None, 0), shards_of_state, batched=False)(key, shard_keys)

    def train(
        state: LearnerState, hyperparams: Hyperparams, num_updates: jax.Array, begin: jax.Array
    ) -> tuple[LearnerState, Window]:
        train_shard = partial(_train_shard, build(hyperparams), env, axes, layout)
        # The replays of several members would be copied, not written in place, where the axis is not there inside.
        batched = layout.population > 1 and bool(jax.tree.leaves(state.shards.local))
        mapped = _over_shards(train_shard, (shards_of_state, None, None), (shards_of_state, None), batched)
        return mapped(state, num_updates, begin)

    if layout.population > 1:
        init, train = _one_by_one(init, mesh), jax.vmap(train, in_axes=(0, 0, None, None))
    one, each = partition_specs(layout.population)
    everywhere = PartitionSpec()
    state_specs: Any = LearnerState(one, each, one, one)
    # Replication cannot be checked through a vmapped axis name (jax 0.10 to 0.12 refuse it).
    over_devices = partial(jax.shard_map, mesh=mesh, check_vma=False)
    return Program(
        init=jax.jit(over_devices(init, in_specs=(one, one, each), out_specs=state_specs)),
        train=jax.jit(
            over_devices(train, in_specs=(state_specs, one, everywhere, everywhere), out_specs=(state_specs, one)),
            donate_argnums=0,
        ),
    )


def _over_shards(function: Callable[..., Any], in_axes: Any, out_axes: Any, batched: bool) -> Callable[..., Any]:
    """Map over the shards of one device; a lone one has its axis at the border only, unless `batched`.

    With a batch axis of one inside, the products that make weight gradients come out transposed, which costs a CPU
    6 % of a PPO update.
    """

    def mapped(*args: Any) -> Any:
        per_shard: list[jax.Array] = []
        _where_mapped(per_shard.append, in_axes, args)
        if batched or len(per_shard[0]) > 1:
            return jax.vmap(function, in_axes, out_axes, axis_name=BATCH_AXIS)(*args)
        lone = jax.vmap(function, in_axes=None, out_axes=None, axis_size=1, axis_name=BATCH_AXIS)
        return _where_mapped(
            lambda leaf: leaf[None], out_axes, lone(*_where_mapped(lambda leaf: leaf[0], in_axes, args))
        )

    return mapped


def _where_mapped(function: Callable[[jax.Array], Any], axes: Any, tree: Any) -> Any:
    """Apply a function to the leaves below the entries of `axes`, a prefix of the tree, that are not None."""

    def apply(axis: int | None, subtree: Any) -> Any:
        return subtree if axis is None else jax.tree.map(function, subtree)

    return jax.tree.map(apply, axes, tree, is_leaf=lambda axis: axis is None)


def _one_by_one(init: Callable[..., LearnerState], mesh: Mesh) -> Callable[..., LearnerState]:
    """Map over the members: one after the other on CPUs, where batched QR decompositions may deadlock.

    Orthogonal initialisers use them; two devices of one CPU that run several at once wait for each other (jax 0.10.2).
    """
    if mesh.devices.flat[0].platform != "cpu":
        return jax.vmap(init)
    return lambda *members: jax.lax.map(lambda member: init(*member), members)


def _init_shard(
    system: System, env: VectorEnvironment, axes: Axes, layout: Layout, key: jax.Array, shard_key: jax.Array
) -> LearnerState:
    reset_key, warmup_key, shard_key = jax.random.split(shard_key, 3)
    env_state, timestep = env.reset(jax.random.split(reset_key, layout.num_envs))
    actor = Actor(env_state, timestep, system.init_carry(layout.num_envs))
    # An example of zeros: what is shared must not depend on this shard's own first observations.
    agent = system.init(key, jax.tree.map(jnp.zeros_like, timestep))

    def warm_up(carry: tuple[Agent, Actor], key: jax.Array) -> tuple[tuple[Agent, Actor], None]:
        agent, actor = carry
        act = random_act(system.act, env)
        actor, trajectory, _ = rollout(env, act, agent.shared, actor, key, layout.rollout_length)
        return (system.observe(agent, trajectory), actor), None

    if layout.warmup_steps:
        keys = jax.random.split(warmup_key, layout.warmup_steps // layout.rollout_length)
        (agent, actor), _ = jax.lax.scan(warm_up, (agent, actor), keys)
    shard = Shard(agent.local, actor, shard_key, no_episodes())
    _, _, metrics = jax.eval_shape(partial(_update, system, env, axes, layout), agent.shared, shard)
    tally = Tally(
        metrics=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), metrics),
        healthy_updates=jnp.zeros((), jnp.int32),
        bad_metrics=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), metrics),
    )
    return LearnerState(agent.shared, shard, jnp.ones((), bool), tally)


def _update(
    system: System, env: VectorEnvironment, axes: Axes, layout: Layout, shared: Any, shard: Shard
) -> tuple[Any, Shard, Metrics]:
    """One update of one shard: act, observe, learn."""
    key, rollout_key, update_key = jax.random.split(shard.key, 3)
    actor, trajectory, episodes = rollout(env, system.act, shared, shard.actor, rollout_key, layout.rollout_length)
    agent = system.observe(Agent(shared, shard.local), trajectory)
    agent, metrics = system.update(agent, trajectory, update_key)
    sums = add_episodes(shard.episodes, sum_episodes(episodes))
    return agent.shared, Shard(agent.local, actor, key, sums), axes.mean(metrics)


def _train_shard(
    system: System,
    env: VectorEnvironment,
    axes: Axes,
    layout: Layout,
    state: LearnerState,
    num_updates: jax.Array,
    begin: jax.Array,
) -> tuple[LearnerState, Window]:
    def body(_: Any, state: LearnerState) -> LearnerState:
        shared, shard, metrics = _update(system, env, axes, layout, state.shared, state.shards)
        bad = jax.tree.map(lambda metric: ~jnp.isfinite(metric), metrics)
        healthy = state.healthy
        if not layout.on_nan_ignore:
            healthy &= ~jnp.any(jnp.stack(jax.tree.leaves(bad))) & _all_finite(shared)
        if layout.population > 1 and not layout.on_nan_ignore:
            # The others go on: a member that went bad keeps the last state that was good.
            shared = jax.tree.map(partial(jnp.where, healthy), shared, state.shared)
        failed_now = state.healthy & ~healthy
        before = state.tally
        tally = Tally(
            metrics=jax.tree.map(lambda total, metric: total + jnp.where(healthy, metric, 0), before.metrics, metrics),
            healthy_updates=before.healthy_updates + healthy,
            bad_metrics=jax.tree.map(lambda seen, new: seen | (failed_now & new), before.bad_metrics, bad),
        )
        return LearnerState(shared, shard, healthy, tally)

    def restart(sums: Any, nothing: Any) -> Any:
        return jax.tree.map(partial(jnp.where, begin), nothing, sums)

    state = state._replace(
        tally=restart(state.tally, jax.tree.map(jnp.zeros_like, state.tally)),
        shards=state.shards._replace(episodes=restart(state.shards.episodes, no_episodes())),
    )
    # The number of updates is an argument, so that windows of different lengths share one program.
    state = jax.lax.fori_loop(0, num_updates, body, state)
    totals, healthy_updates, bad_metrics = state.tally
    # Without a healthy update this is 0 / 0: there is nothing to report.
    metrics = jax.tree.map(lambda total: total / healthy_updates, totals)
    return state, Window(metrics, _reduce_episodes(state.shards.episodes, axes), healthy_updates, bad_metrics)


def _all_finite(tree: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    # A sum is finite where all of its terms are.
    return jnp.isfinite(sum((jnp.sum(leaf) for leaf in floats), start=jnp.zeros(())))


def sum_episodes(episodes: EpisodeMetrics) -> EpisodeSums:
    """Reduce the episode metrics `[T, N]` of a rollout to those of the episodes that finished in it."""
    finished = episodes.finished
    returns = episodes.episode_return
    return EpisodeSums(
        number=jnp.sum(finished, dtype=jnp.int32),
        return_sum=jnp.sum(jnp.where(finished, returns, 0.0)),
        return_min=jnp.min(jnp.where(finished, returns, jnp.inf)),
        return_max=jnp.max(jnp.where(finished, returns, -jnp.inf)),
        length_sum=jnp.sum(jnp.where(finished, episodes.episode_length, 0).astype(jnp.float32)),
    )


def no_episodes() -> EpisodeSums:
    """The sums over nothing."""
    zero, infinity = jnp.zeros(()), jnp.full((), jnp.inf, jnp.float32)
    return EpisodeSums(jnp.zeros((), jnp.int32), zero, infinity, -infinity, zero)


def add_episodes(a: EpisodeSums, b: EpisodeSums) -> EpisodeSums:
    """Join two sets of finished episodes."""
    return EpisodeSums(
        number=a.number + b.number,
        return_sum=a.return_sum + b.return_sum,
        return_min=jnp.minimum(a.return_min, b.return_min),
        return_max=jnp.maximum(a.return_max, b.return_max),
        length_sum=a.length_sum + b.length_sum,
    )


def _reduce_episodes(sums: EpisodeSums, axes: Axes) -> EpisodeSums:
    number, return_sum, length_sum = axes.sum((sums.number, sums.return_sum, sums.length_sum))
    return EpisodeSums(
        number=number,
        return_sum=return_sum,
        return_min=jax.lax.pmin(sums.return_min, axes.names),
        return_max=jax.lax.pmax(sums.return_max, axes.names),
        length_sum=length_sum,
    )
