"""Memory checks before allocation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn, get_origin

import jax
from jax.sharding import Mesh

from stoix_like.architectures.axes import DEVICE_AXIS, POPULATION_AXIS
from stoix_like.base_types import Agent, RolloutState
from stoix_like.config import RunConfig
from stoix_like.envs.spaces import ObservationSpace
from stoix_like.errors import ConfigError
from stoix_like.run.host.devices import memory_of
from stoix_like.run.host.plan import Plan
from stoix_like.schema import flat_hints
from stoix_like.utils.replay import BufferConfig, ReplayConfig


class Shapes(NamedTuple):
    """Shapes of the arrays of one shard."""

    agent: Agent  # `Agent` after its initialisation
    one_env: RolloutState  # `RolloutState` of a single environment to train in
    # The same of all environments of a shard, but at least two, to tell what grows with their number.
    several_envs: RolloutState
    episode: RolloutState  # `RolloutState` of a single environment to evaluate in
    step_of_one_env: Any  # observation, successor, action and extras of one step


class _Part(NamedTuple):
    """Arrays of one member on one device."""

    name: str  # what they are
    size: int  # their size, in bytes
    key: str  # the key that determines the size
    value: int = 0  # its value; 0 if it has none
    unit: int = 1  # divisor of the values that the key can have


def check(program: Any, mesh: Mesh, num_members: int, sizes: Sequence[str], resident: int, available: int) -> None:
    """Refuse a program that needs more memory than its devices have.

    `resident`: bytes per device that other arrays occupy while the program runs.
    `available`: memory of each device in bytes.
    """
    analysis = program.memory_analysis()
    if analysis is None:
        return
    needed = total(analysis) + resident
    if needed <= available:
        return
    remedy = f"use a smaller {' or '.join(sizes)}"
    if num_members == 1:
        raise ConfigError(f"the run needs {gib(needed)} per device, but only {gib(available)} is available: {remedy}")
    per_device = num_members // mesh.shape[POPULATION_AXIS]
    share = needed / per_device
    largest = int(available // share) * mesh.shape[POPULATION_AXIS]
    raise ConfigError(
        f"arch.population.size={num_members} needs {gib(needed)} per device ({per_device} member(s) ×"
        f" {gib(share)}), but only {gib(available)} is available: "
        + (f"use at most {largest}" if largest else f"no member fits; {remedy}")
    )


def total(analysis: Any) -> int:
    """Return the memory that a program needs."""
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )


def check_estimate(
    config: RunConfig, plan: Plan, mesh: Mesh, num_members: int, space: ObservationSpace, shapes: Shapes, available: int
) -> tuple[str, ...]:
    """Report the size of the replay buffer, and refuse a run if only its arrays need more memory than its devices have.

    The estimate leaves out temporary arrays, so that it refuses no run that fits; `check` is exact, but must compile.
    """
    members = num_members // mesh.shape[POPULATION_AXIS]
    parts = _parts(config, plan, mesh, shapes)
    # An evaluation takes place between rollouts.
    share = max(sum(part.size for part in parts if part.name != other) for other in ("rollout", "evaluation"))
    if members > 1 and share <= available < members * share:
        raise ConfigError(
            f"arch.population.size={num_members} needs at least {gib(members * share)} per device ({members} member(s)"
            f" × {gib(share)}), but only {gib(available)} is available: use at most"
            f" {available // share * mesh.shape[POPULATION_AXIS]}"
        )
    if members * share > available:
        _refuse(config, plan, space, parts, members, share, available)
    replay = next(part.size for part in parts if part.name == "replay buffer")
    if not replay:
        return ()
    batches = config.arch.update_batch_size
    return (
        f"replay buffer: {members} member(s) × {batches} update batch(es) × {gib(replay // batches)} ="
        f" {gib(members * replay)} per device",
    )


def _parts(config: RunConfig, plan: Plan, mesh: Mesh, shapes: Shapes) -> tuple[_Part, ...]:
    """Return the arrays of one member on one device."""
    batches, num_envs, num_steps = config.arch.update_batch_size, plan.envs_per_shard, config.system.rollout_length
    shards = plan.num_shards
    episodes = -(-config.arch.num_eval_episodes // mesh.shape[DEVICE_AXIS])
    per_env = (_bytes(shapes.several_envs) - _bytes(shapes.one_env)) // max(num_envs - 1, 1)
    start_states = _bytes(shapes.one_env) - per_env
    buffer = config.system.find_part(BufferConfig)  # type: ignore[type-abstract]
    unit = 1 if buffer is None else buffer.buffer_unit(plan.rows_per_shard, shards, num_steps)
    capacity = 0 if buffer is None else buffer.total_buffer_size
    step = _bytes(shapes.step_of_one_env)
    local, environments = batches * _bytes(shapes.agent.local), batches * num_envs * per_env
    if buffer is None:  # Other local state has a row for each environment.
        local, environments = 0, environments + local
    return (
        _Part("network", _bytes(shapes.agent.shared), "network"),
        _Part("replay buffer", local, "system.total_buffer_size", capacity, unit),
        _Part("start states", batches * start_states, "env.pool_size", config.env.pool_size),
        _Part("environments", environments, "arch.total_num_envs", num_envs * shards, shards),
        _Part("rollout", batches * num_envs * num_steps * step, "system.rollout_length", num_steps),
        _Part("evaluation", episodes * _bytes(shapes.episode), "arch.num_eval_episodes", config.arch.num_eval_episodes),
    )


def _refuse(
    config: RunConfig,
    plan: Plan,
    space: ObservationSpace,
    parts: Sequence[_Part],
    members: int,
    share: int,
    available: int,
) -> NoReturn:
    """Name the largest part of one member, and what would fit."""
    part = max(parts, key=lambda part: part.size)
    fitting = _fitting(config, plan, parts, part, available // members - share) if part.value else 0
    remedy = f"use at most {fitting}" if fitting > 0 else f"use a smaller {part.key}, or a larger machine"
    replay = config.system.find_part(ReplayConfig)
    is_fixed = get_origin(flat_hints(type(config.system)).get("store_next_observation")) is Literal
    is_fixed |= replay is not None and (replay.whole_windows or replay.relabel is not None)
    stores_twice = replay is not None and replay.store_next_observation and not is_fixed
    if part.name == "replay buffer" and stores_twice and getattr(space, "stacked", 1) == 1:
        remedy += ", or up to twice as many with system.store_next_observation=false"
    what = f"{part.key}={part.value} is too large" if part.value else f"the {part.key} is too large"
    raise ConfigError(
        f"{what}: the run needs at least {gib(members * share)} per device, {gib(members * part.size)} of it for the"
        f" {part.name} of {members} member(s) × {config.arch.update_batch_size} update batch(es), but only"
        f" {gib(available)} is available: {remedy}"
    )


def _fitting(config: RunConfig, plan: Plan, parts: Sequence[_Part], part: _Part, left: int) -> int:
    """Return the largest value of the key of a part with which a member fits; `left`: what it leaves, below 0 bytes."""
    size, left = {other.name: other.size for other in parts}, left + part.size
    fitting = part.value * left // part.size
    if part.name == "environments":  # A rollout grows with their number, and an evaluation does not.
        left += max(size["rollout"], size["evaluation"])
        fitting = min(
            part.value * left // (part.size + size["rollout"]), part.value * (left - size["evaluation"]) // part.size
        )
    replay = config.system.find_part(ReplayConfig)
    if fitting > 0 and replay is not None and replay.prioritised and part.name == "replay buffer":
        # The sum tree has a power of two of leaves, so that only such a capacity needs no more memory per step.
        fitting = plan.num_shards * 2 ** ((fitting // plan.num_shards).bit_length() - 1)
    return fitting // part.unit * part.unit


def _bytes(tree: Any) -> int:
    """Return the size of arrays, or of their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def bytes_per_device(tree: Any, mesh: Mesh) -> int:
    """Return the memory of arrays that are split over all devices of a mesh."""
    return _bytes(tree) // mesh.size


def available_memory(mesh: Mesh) -> int:
    """Return the memory of each device in bytes; the devices of a CPU divide its memory."""
    own = mesh.local_devices
    return memory_of(own[0]) // (len(own) if own[0].platform == "cpu" else 1)


def gib(num_bytes: float) -> str:
    """Format a number of bytes."""
    return f"{num_bytes / 2**30:.3g} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.3g} MiB"
