"""The compiled training program: rollouts and updates of every shard, on every device.

Axes from the outside in: device (mesh axis) → batch (vmapped shards of one device) → environments. `shared` has no
batch axis: it is returned with `out_axes=None`, so that a system which forgets to average over the shards is refused
when the program is traced. A population is one more vmap around `_train_shards` and `_init_shards`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from stoix_like.base_types import Actor, Agent, Axes, EpisodeMetrics, Metrics, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.runner.devices import BATCH_AXIS, DEVICE_AXIS
from stoix_like.runner.rollout import random_act, rollout


class Shard(NamedTuple):
    """What belongs to one shard: `[num_shards, ...]` over the whole run."""

    local: Any
    actor: Actor
    key: jax.Array


class LearnerState(NamedTuple):
    """Everything that determines the future of training.

    Attributes:
        shared: the agent's shared state: one copy, replicated over the devices.
        shards: `Shard`, its leading axis split over the devices.
    """

    shared: Any
    shards: Any


class EpisodeSums(NamedTuple):
    """Finished episodes, reduced to scalars before they leave the device."""

    number: jax.Array
    return_sum: jax.Array
    return_min: jax.Array
    return_max: jax.Array
    length_sum: jax.Array


class Program(NamedTuple):
    """The two functions of a training run, to be compiled.

    Attributes:
        init: `(key, shard_keys [num_shards]) -> LearnerState`, warm-up included.
        train: `(LearnerState, num_updates []) -> (LearnerState, metrics, EpisodeSums)`; donates its state.
    """

    init: Any
    train: Any


def make_axes(mesh: Mesh) -> Axes:
    """The axes that a batch is spread over; an axis of one device is left out, it would only cost a collective."""
    return Axes((DEVICE_AXIS, BATCH_AXIS) if mesh.size > 1 else (BATCH_AXIS,))


def make_program(
    system: System, env: VectorEnvironment, mesh: Mesh, num_envs: int, rollout_length: int, warmup_steps: int
) -> Program:
    """Lay a system out over the mesh.

    Args:
        system: the algorithm.
        env: environments with automatic reset.
        mesh: the devices.
        num_envs: environments of one shard, N.
        rollout_length: steps per environment between updates, T.
        warmup_steps: random steps per environment before the first update, a multiple of `rollout_length`.

    Returns:
        The program, not yet compiled.
    """
    axes = make_axes(mesh)
    replicated, split = PartitionSpec(), PartitionSpec(DEVICE_AXIS)
    over_shards = partial(jax.vmap, axis_name=BATCH_AXIS)
    # Replication cannot be checked through a vmapped axis name (jax 0.10 to 0.12 refuse it).
    over_devices = partial(jax.shard_map, mesh=mesh, check_vma=False)

    init_shards = over_shards(
        partial(_init_shard, system, env, num_envs, rollout_length, warmup_steps),
        in_axes=(None, 0),
        out_axes=(None, 0),
    )
    train_shards = over_shards(
        partial(_train_shard, system, env, axes, rollout_length),
        in_axes=(LearnerState(None, 0), None),
        out_axes=(LearnerState(None, 0), None, None),
    )
    state_specs: Any = LearnerState(replicated, split)
    return Program(
        init=jax.jit(over_devices(init_shards, in_specs=(replicated, split), out_specs=tuple(state_specs))),
        train=jax.jit(
            over_devices(
                train_shards, in_specs=(state_specs, replicated), out_specs=(state_specs, replicated, replicated)
            ),
            donate_argnums=0,
        ),
    )


def _init_shard(
    system: System,
    env: VectorEnvironment,
    num_envs: int,
    rollout_length: int,
    warmup_steps: int,
    key: jax.Array,
    shard_key: jax.Array,
) -> tuple[Any, Shard]:
    reset_key, warmup_key, shard_key = jax.random.split(shard_key, 3)
    env_state, timestep = env.reset(jax.random.split(reset_key, num_envs))
    actor = Actor(env_state, timestep, system.init_carry(num_envs))
    # An example of zeros: what is shared must not depend on this shard's own first observations.
    agent = system.init(key, jax.tree.map(jnp.zeros_like, timestep))

    def warm_up(carry: tuple[Agent, Actor], key: jax.Array) -> tuple[tuple[Agent, Actor], None]:
        agent, actor = carry
        act = random_act(system.act, env)
        actor, trajectory, _ = rollout(env, act, agent.shared, actor, key, rollout_length)
        return (system.observe(agent, trajectory), actor), None

    if warmup_steps:
        keys = jax.random.split(warmup_key, warmup_steps // rollout_length)
        (agent, actor), _ = jax.lax.scan(warm_up, (agent, actor), keys)
    return agent.shared, Shard(agent.local, actor, shard_key)


def _train_shard(
    system: System,
    env: VectorEnvironment,
    axes: Axes,
    rollout_length: int,
    state: LearnerState,
    num_updates: jax.Array,
) -> tuple[LearnerState, Metrics, EpisodeSums]:
    Window = tuple[LearnerState, Metrics, EpisodeSums]  # noqa: N806

    def update(state: LearnerState) -> Window:
        shared, (local, actor, key) = state
        key, rollout_key, update_key = jax.random.split(key, 3)
        actor, trajectory, episodes = rollout(env, system.act, shared, actor, rollout_key, rollout_length)
        agent = system.observe(Agent(shared, local), trajectory)
        agent, metrics = system.update(agent, trajectory, update_key)
        return LearnerState(agent.shared, Shard(agent.local, actor, key)), metrics, sum_episodes(episodes)

    def body(_: Any, window: Window) -> Window:
        state, metric_sums, episode_sums = window
        state, metrics, episodes = update(state)
        return state, jax.tree.map(jnp.add, metric_sums, metrics), add_episodes(episode_sums, episodes)

    _, metrics, episodes = jax.eval_shape(update, state)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), metrics)
    # The number of updates is an argument, so that windows of different lengths share one program.
    state, metrics, episodes = jax.lax.fori_loop(0, num_updates, body, (state, zeros, no_episodes()))
    metrics = axes.mean(jax.tree.map(lambda total: total / num_updates, metrics))
    return state, metrics, _reduce_episodes(episodes, axes)


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
    zero = jnp.zeros(())
    return EpisodeSums(jnp.zeros((), jnp.int32), zero, jnp.full((), jnp.inf), jnp.full((), -jnp.inf), zero)


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
