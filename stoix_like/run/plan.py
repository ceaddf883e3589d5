"""The arithmetic of a run, settled before anything compiles."""

from __future__ import annotations

from typing import NamedTuple

from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError, multiples_near


class Plan(NamedTuple):
    """Sizes of a run, all in Python integers.

    Attributes:
        num_shards: devices times update batches.
        envs_per_shard: N.
        steps_per_update: environment steps over all shards between two updates.
        warmup_steps: environment steps over all shards before the first update.
        num_updates: updates that the budget pays for.
        evaluations: updates after which the run is evaluated, the last of them `num_updates`.
        notes: what was rounded, to be said aloud.
    """

    num_shards: int
    envs_per_shard: int
    steps_per_update: int
    warmup_steps: int
    num_updates: int
    evaluations: tuple[int, ...]
    notes: tuple[str, ...]


def make_plan(run: RunConfig, num_devices: int) -> Plan:
    """Divide the budget of a run into updates and evaluation windows.

    Args:
        run: the typed configuration.
        num_devices: devices the run will use.

    Returns:
        The plan; its budget never exceeds `arch.total_timesteps`.

    Raises:
        ConfigError: sizes that do not divide, or a budget too small for one update.
    """
    arch, system = run.arch, run.system
    num_shards = num_devices * arch.update_batch_size
    if arch.total_num_envs % num_shards:
        raise ConfigError(
            f"arch.total_num_envs={arch.total_num_envs} does not divide over {num_devices} device(s) x"
            f" arch.update_batch_size={arch.update_batch_size}: use {multiples_near(arch.total_num_envs, num_shards)}"
        )
    if system.warmup_steps % system.rollout_length:
        raise ConfigError(
            f"system.warmup_steps={system.warmup_steps} is no multiple of system.rollout_length={system.rollout_length}"
        )
    envs_per_shard = arch.total_num_envs // num_shards
    system.check(envs_per_shard, num_shards)
    steps_per_update = arch.total_num_envs * system.rollout_length
    warmup_steps = arch.total_num_envs * system.warmup_steps
    num_updates = (arch.total_timesteps - warmup_steps) // steps_per_update
    if num_updates < 1:
        raise ConfigError(
            f"arch.total_timesteps={arch.total_timesteps} is too small for one update, which takes"
            f" {steps_per_update} steps (arch.total_num_envs {arch.total_num_envs} x system.rollout_length"
            f" {system.rollout_length}) after {warmup_steps} of warm-up: use at least {warmup_steps + steps_per_update}"
        )
    num_windows = min(arch.num_evaluation, num_updates)
    if num_updates // num_windows >= 2**31 - 1:
        raise ConfigError(
            f"arch.num_evaluation={arch.num_evaluation} leaves {num_updates // num_windows:,} updates between two"
            " evaluations, more than one call can count: use more evaluations"
        )
    spent = warmup_steps + num_updates * steps_per_update
    return Plan(
        num_shards=num_shards,
        envs_per_shard=envs_per_shard,
        steps_per_update=steps_per_update,
        warmup_steps=warmup_steps,
        num_updates=num_updates,
        evaluations=tuple(index * num_updates // num_windows for index in range(1, num_windows + 1)),
        notes=_notes(run, spent, num_updates, steps_per_update, num_windows),
    )


def spread_members(run: RunConfig, population: int, num_devices: int) -> tuple[bool, tuple[str, ...]]:
    """Decide how a population lies on several devices.

    Args:
        run: the typed configuration.
        population: members.
        num_devices: devices of the run.

    Returns:
        Whether each device trains members of its own, and what to say aloud.

    Raises:
        ConfigError: the members do not divide over the devices.
    """
    axis = run.arch.population.axis
    if population == 1 or num_devices == 1:
        return False, ()
    divides = population % num_devices == 0
    if axis == "device" and not divides:
        raise ConfigError(
            f"arch.population.axis=device: {population} members do not divide over {num_devices} devices: use"
            f" {multiples_near(population, num_devices)}"
        )
    spread = divides if axis == "auto" else axis == "device"
    if axis != "auto":
        return spread, ()
    layout = "device: each trains members of its own" if spread else "vmap: each trains its share of every member"
    return spread, (f"{population} members on {num_devices} devices, arch.population.axis={layout}",)


def _notes(run: RunConfig, spent: int, num_updates: int, steps_per_update: int, num_windows: int) -> tuple[str, ...]:
    notes = []
    budget, evaluations = run.arch.total_timesteps, run.arch.num_evaluation
    if spent < budget:
        notes.append(
            f"the budget of {budget:,} steps is rounded down to {spent:,}: {num_updates:,} updates of"
            f" {steps_per_update:,} steps"
        )
    if num_windows < evaluations:
        notes.append(f"{num_windows} evaluations instead of {evaluations}: there is no more than one per update")
    return tuple(notes)
