"""Anakin: a compiled training program with environments, rollouts and updates on the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from stoix_like.architectures.axes import make_axes, map_over_shards, partition_specs
from stoix_like.architectures.types import (
    NO_INPUTS,
    Given,
    Hyperparams,
    Inputs,
    IntervalMetrics,
    LearnerState,
    Program,
    ProgramSpec,
)
from stoix_like.architectures.update import Build, ShardProgram, make_update
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.utils.accelerate.platform import map_init


def make_program(build: Build, env: VectorEnvironment, mesh: Mesh, spec: ProgramSpec) -> Program:
    """Build the training program of a system."""
    axes = make_axes(mesh, spec.lone_shards)
    update_with = make_update(build, env, axes, spec)
    shards_of_state: Any = LearnerState(None, 0, None, None)

    def init(
        warm_up: bool, hyperparams: Hyperparams, key: jax.Array, shard_keys: jax.Array, given: Given, inputs: Inputs
    ) -> LearnerState:
        sizes = spec if warm_up else spec._replace(warmup_steps=0)
        program = ShardProgram(build(hyperparams, inputs), env, axes, sizes, inputs)
        init_shard = partial(program.init_shard, update=update_with(hyperparams, inputs))
        mapped = map_over_shards(init_shard, axes, (None, 0, None), shards_of_state, num_shards=len(shard_keys))
        return mapped(key, shard_keys, given)

    def train(
        state: LearnerState, hyperparams: Hyperparams, num_updates: jax.Array, new_interval: jax.Array, inputs: Inputs
    ) -> tuple[LearnerState, IntervalMetrics]:
        program = ShardProgram(build(hyperparams, inputs), env, axes, spec, inputs)
        train_shard = partial(program.train_shard, update=update_with(hyperparams, inputs))
        in_axes, out_axes = (shards_of_state, None, None), (shards_of_state, None)
        # Without the axis, XLA copies the replay buffers of a population instead of updating them in place.
        keep = spec.num_members > 1 and bool(jax.tree.leaves(state.shards.local))
        mapped = map_over_shards(train_shard, axes, in_axes, out_axes, len(state.shards.key), keep)
        return mapped(state, num_updates, new_interval)

    def rollouts(state: LearnerState, hyperparams: Hyperparams, number: jax.Array) -> jax.Array:
        program = ShardProgram(build(hyperparams, NO_INPUTS), env, axes, spec)
        mapped = map_over_shards(program.rollouts_shard, axes, (shards_of_state, None), None, len(state.shards.key))
        return mapped(state, number)

    if spec.num_members > 1:
        train = jax.vmap(train, in_axes=(0, 0, None, None, None))
        rollouts = jax.vmap(rollouts, in_axes=(0, 0, None))
    one, each = partition_specs(spec.num_members)
    everywhere = PartitionSpec()
    state_specs: Any = LearnerState(one, each, one, one)
    over_devices = partial(jax.shard_map, mesh=mesh, check_vma=False)

    def init_with(
        hyperparams: Hyperparams,
        key: jax.Array,
        shard_keys: jax.Array,
        inputs: Inputs,
        given: Given | None = None,
        warm_up: bool = True,
    ) -> LearnerState:
        def init_members(
            hyperparams: Hyperparams, key: jax.Array, shard_keys: jax.Array, given: Given, inputs: Inputs
        ) -> LearnerState:
            # Members share their inputs.
            init_member = partial(init, warm_up, inputs=inputs)
            function = map_init(init_member) if spec.num_members > 1 else init_member
            return function(hyperparams, key, shard_keys, given)

        mapped_init = over_devices(init_members, in_specs=(one, one, each, one, everywhere), out_specs=state_specs)
        state: LearnerState = mapped_init(hyperparams, key, shard_keys, given or {}, inputs)
        return state

    given_to_train = state_specs, one, everywhere, everywhere, everywhere
    train_on_devices = over_devices(train, in_specs=given_to_train, out_specs=(state_specs, one))
    rollouts_on_devices = over_devices(rollouts, in_specs=(state_specs, one, everywhere), out_specs=one)
    return Program(
        init=jax.jit(init_with, static_argnums=5),
        train=jax.jit(train_on_devices, donate_argnums=0),
        rollouts=jax.jit(rollouts_on_devices),
    )
