"""Sebulba: compiled programs of actors, which step environments on the host, and of the learner.

An actor calls the host between two programs, so that its device is free in the meantime. Rollouts of all actors
together are the batch of one update: every actor's environments are split evenly over all shards.

The system is Anakin's: actors call its `act`, the learner its `observe` and `update`. `envs.split_steps` splits a
step into the part before the call to the host and the part after it: one program finishes a step, writes it into the
rollout and chooses the next action. Actors keep their environments, so per-environment state such as discounted returns
stays correct.

Queues connect the two sides (`run.host.actors`). A policy in an actor's first queue asks for one rollout, which the
actor puts into its second queue; the first policy asks for `arch.pipeline_queue_size + 1` of them, and every later one
for one. Neither side can run ahead of the other, and rollout `k` is always acted by the policy after `k -
arch.pipeline_queue_size` updates: results do not depend on the timing of the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.axes import DEVICE_AXIS, make_axes, map_over_shards
from stoix_like.architectures.rollout import Rollout, make_transition, rollout
from stoix_like.architectures.types import Hyperparams, Inputs, IntervalMetrics, LearnerState, ProgramSpec
from stoix_like.architectures.update import Build, ShardProgram, make_update
from stoix_like.base_types import EpisodeMetrics, RolloutState, System, Trajectory, Transition
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.host_batches import HostStep
from stoix_like.envs.split_steps import SplitSteps
from stoix_like.utils.jax_utils import shapes_on


class Choice(NamedTuple):
    """Actions without a known outcome."""

    carry: Any  # the carry `[N, ...]` after them
    action: jax.Array  # `[N, ...]`
    extras: Any  # of `System.act`
    env_keys: jax.Array  # `[N]` keys of the step


class RecordedSteps(NamedTuple):
    """The part of a rollout so far: arrays `[T, N, ...]`, filled up to `steps`, and its key."""

    transitions: Transition
    episodes: EpisodeMetrics
    steps: jax.Array
    key: jax.Array


class ActorProgram(NamedTuple):
    """The compiled functions of an actor, on its device."""

    start: Any  # `(view, keys [N]) -> RolloutState`, with the observations of `DirectBatch.reset`
    begin: Any  # `(shared, RolloutState, key) -> (RecordedSteps, Choice, action of the host)`
    advance: Any
    # `(RecordedSteps, RolloutState, Choice, HostStep) -> (RecordedSteps, RolloutState)`, the rest of the last step.
    finish: Any


class LearnerProgram(NamedTuple):
    """The two jitted functions of the learner."""

    init: Any  # `(hyperparams, key, shard_keys [num_shards], inputs) -> LearnerState`
    learn: Any


def make_learner(
    build: Build, env: VectorEnvironment, mesh: Mesh, spec: ProgramSpec, num_actors: int
) -> LearnerProgram:
    """Build the programs of the learner."""
    axes = make_axes(mesh, spec.lone_shards)
    shards_of_state: Any = LearnerState(None, 0, None, None)

    def init(hyperparams: Hyperparams, key: jax.Array, shard_keys: jax.Array, inputs: Inputs) -> LearnerState:
        program = ShardProgram(build(hyperparams, inputs), env, axes, spec)
        init_learner = partial(program.init_learner, update=make_update(build, env, axes, spec)(hyperparams, inputs))
        mapped = map_over_shards(init_learner, axes, (None, 0), shards_of_state, num_shards=len(shard_keys))
        return mapped(key, shard_keys)

    def learn(
        state: LearnerState,
        hyperparams: Hyperparams,
        rollouts: tuple[Rollout, ...],
        new_interval: jax.Array,
        inputs: Inputs,
    ) -> tuple[LearnerState, IntervalMetrics]:
        program, num_shards = ShardProgram(build(hyperparams, inputs), env, axes, spec), len(state.shards.key)
        in_axes, out_axes = (shards_of_state, 0, None), (shards_of_state, None)
        mapped = map_over_shards(program.learn_shard, axes, in_axes, out_axes, num_shards)
        return mapped(state, _join(rollouts, num_shards), new_interval)

    everywhere, each = PartitionSpec(), PartitionSpec(DEVICE_AXIS)
    state_specs: Any = LearnerState(everywhere, each, everywhere, everywhere)
    over_devices = partial(jax.shard_map, mesh=mesh, check_vma=False)
    given = state_specs, everywhere, (_rollout_specs(),) * num_actors, everywhere, everywhere
    return LearnerProgram(
        init=jax.jit(over_devices(init, in_specs=(everywhere, everywhere, each, everywhere), out_specs=state_specs)),
        learn=jax.jit(over_devices(learn, in_specs=given, out_specs=(state_specs, everywhere)), donate_argnums=0),
    )


def rollout_shardings(mesh: Mesh) -> Rollout:
    """Return the shardings of a rollout on the devices of the learner, a prefix of its tree."""
    return jax.tree.map(partial(NamedSharding, mesh), _rollout_specs())


def rollout_shapes(
    system: System, env: VectorEnvironment, shared: Any, num_envs: int, length: int, mesh: Mesh
) -> Rollout:
    """Return the shapes of one actor's rollout on the devices of the learner."""

    def play(shared: Any, key: jax.Array) -> Rollout:
        state = start_episodes(env, system, jax.random.split(key, num_envs))
        return rollout(env, system.act, shared, state, key, length, hoist_randomness=False)[1]

    return jax.tree.map(shapes_on, rollout_shardings(mesh), jax.eval_shape(play, shared, jax.random.key(0)))


def actor_programs(
    system: System, steps: SplitSteps, shared: Any, num_envs: int, length: int, device: jax.Device
) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Build the functions of an actor."""

    def start(view: Any, keys: jax.Array) -> RolloutState:
        env_state, timestep = steps.start(keys, view)
        return RolloutState(env_state, timestep, system.init_carry(num_envs))

    def choose(shared: Any, state: RolloutState, key: jax.Array) -> tuple[Choice, jax.Array]:
        act_key, env_key = jax.random.split(key)
        carry, action, extras = system.act(shared, state, act_key)
        env_keys = jax.random.split(env_key, num_envs)
        return Choice(carry, action, extras, env_keys), steps.host_action(env_keys, state.env_state, action)

    def follow(state: RolloutState, choice: Choice, outcome: HostStep) -> tuple[RolloutState, Transition]:
        env_state, timestep = steps.finish(choice.env_keys, state.env_state, choice.action, outcome)
        transition = make_transition(state.timestep, choice.action, choice.extras, timestep)
        return RolloutState(env_state, timestep, choice.carry), transition

    def begin(shared: Any, state: RolloutState, key: jax.Array) -> tuple[RecordedSteps, Choice, jax.Array]:
        choice, host_action = choose(shared, state, jax.random.fold_in(key, 0))
        outcome = steps.outcome_spec(num_envs)
        after, transition = jax.eval_shape(follow, state, choice, outcome)
        transitions, episodes = jax.tree.map(
            lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), (transition, after.timestep.episode)
        )
        return RecordedSteps(transitions, episodes, jnp.zeros((), jnp.int32), key), choice, host_action

    def finish(
        recording: RecordedSteps, state: RolloutState, choice: Choice, outcome: HostStep
    ) -> tuple[RecordedSteps, RolloutState]:
        after, transition = follow(state, choice, outcome)
        write = partial(jax.lax.dynamic_update_index_in_dim, index=recording.steps, axis=0)
        transitions = jax.tree.map(write, recording.transitions, transition)
        episodes = jax.tree.map(write, recording.episodes, after.timestep.episode)
        return RecordedSteps(transitions, episodes, recording.steps + 1, recording.key), after

    def advance(
        shared: Any, recording: RecordedSteps, state: RolloutState, choice: Choice, outcome: HostStep
    ) -> tuple[RecordedSteps, RolloutState, Choice, jax.Array]:
        recording, state = finish(recording, state, choice, outcome)
        choice, host_action = choose(shared, state, jax.random.fold_in(recording.key, recording.steps))
        return recording, state, choice, host_action

    def placed(function: Callable[..., Any], *args: Any, donated: int | None = None) -> tuple[Any, tuple[Any, ...]]:
        on_device = shapes_on(SingleDeviceSharding(device), args)
        return jax.jit(function, donate_argnums=() if donated is None else donated), on_device

    outcome = steps.outcome_spec(num_envs)
    key = jax.eval_shape(jax.random.key, 0)
    keys = jax.eval_shape(lambda key: jax.random.split(key, num_envs), key)
    state = jax.eval_shape(start, outcome.observation, keys)
    recording, choice, _ = jax.eval_shape(begin, shared, state, key)
    return {
        "start": placed(start, outcome.observation, keys),
        "begin": placed(begin, shared, state, key),
        "advance": placed(advance, shared, recording, state, choice, outcome, donated=1),
        "finish": placed(finish, recording, state, choice, outcome, donated=0),
    }


def _rollout_specs() -> Rollout:
    """Return the partition specs of a rollout: its environments are split over the devices."""
    per_step, per_env = PartitionSpec(None, DEVICE_AXIS), PartitionSpec(DEVICE_AXIS)
    return Rollout(Trajectory(per_step, per_env), per_step)  # type: ignore[arg-type]


def _join(rollouts: tuple[Rollout, ...], num_shards: int) -> Rollout:
    """Join the rollouts of all actors and split their environments over the shards of this device.

    `rollouts`: one per actor, arrays `[T, n, ...]` and carries `[n, ...]`.
    Returns arrays `[S, T, N, ...]` and carries `[S, N, ...]`.
    """

    def join(axis: int, *parts: Any) -> Any:
        def join_leaves(*leaves: jax.Array) -> jax.Array:
            return jnp.concatenate([jnp.stack(jnp.split(leaf, num_shards, axis)) for leaf in leaves], axis + 1)

        return jax.tree.map(join_leaves, *parts)

    axes_of_envs: Any = Rollout(Trajectory(1, 0), 1)  # type: ignore[arg-type]
    return jax.tree.map(join, axes_of_envs, *rollouts)
