"""Sizes and budget of a run, computed before anything compiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from stoix_like.arch_config import OfflineConfig, SebulbaConfig
from stoix_like.base_types import SystemConfig
from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError, multiples_near
from stoix_like.schema import INT32_MAX, flat_hints, get_value
from stoix_like.systems.parts.optimiser import Gradients
from stoix_like.utils.replay import BufferConfig, ReplayConfig


class Plan(NamedTuple):
    """Sizes of a run, as Python integers."""

    num_shards: int  # devices × update batches
    envs_per_shard: int  # environments of each shard, N
    steps_per_update: int  # environment steps between two updates, over all shards
    warmup_steps: int  # environment steps before the first update, over all shards
    num_updates: int  # number of updates within the budget
    evaluations: tuple[int, ...]  # numbers of updates after which the run is evaluated; the last one is `num_updates`
    notes: tuple[str, ...]  # rounding and other notes for the user
    num_agents: int = 1  # agents of each environment; each is a row of the batch

    @property
    def rows_per_shard(self) -> int:
        """Agents of all environments of each shard."""
        return self.envs_per_shard * self.num_agents

    def check(self, system: SystemConfig) -> None:
        """Let a system check its hyperparameters against these sizes."""
        # Rows of agents in a replay buffer, and games in a rollout: some minibatches keep a game's rows together.
        num_envs = self.rows_per_shard if system.has_replay else self.envs_per_shard
        # A system's own method need not call its base, which checks its parts.
        SystemConfig.check(system, num_envs, self.num_shards)
        system.check(num_envs, self.num_shards)


def make_plan(config: RunConfig, num_devices: int, num_agents: int = 1) -> Plan:
    """Divide the budget of a run into updates and intervals between evaluations."""
    arch, system = config.arch, config.system
    if system.needs_model and num_agents > 1:
        raise ConfigError(
            f"system={config.system_name} plans the actions of one agent, and {config.environment_name} has"
            f" {num_agents} that act at the same time: use a system without a search, such as system=ppo/ff_ppo"
        )
    num_shards = num_devices * arch.update_batch_size
    if isinstance(arch, OfflineConfig):
        arch = replace(arch, total_num_envs=num_shards)
    every = ", all of arch.num_devices=null," if getattr(arch, "num_devices", 1) is None and num_devices > 1 else ""
    if arch.total_num_envs % num_shards:
        raise ConfigError(
            f"arch.total_num_envs={arch.total_num_envs} must be a multiple of the number of shards ({num_devices}"
            f" device(s){every} × arch.update_batch_size={arch.update_batch_size}): use"
            f" {multiples_near(arch.total_num_envs, num_shards)}"
        )
    if system.warmup_steps % system.rollout_length:
        raise ConfigError(
            f"system.warmup_steps={system.warmup_steps} must be a multiple of"
            f" system.rollout_length={system.rollout_length}: use"
            f" {multiples_near(system.warmup_steps, system.rollout_length)}"
        )
    if isinstance(arch, SebulbaConfig) and system.warmup_steps:
        raise ConfigError(
            f"system.warmup_steps={system.warmup_steps}: arch=sebulba has no warm-up: use 0 or arch=anakin"
        )
    envs_per_shard, num_updates = arch.total_num_envs // num_shards, config.num_updates
    steps_per_update, warmup_steps = config.steps_per_update, arch.total_num_envs * system.warmup_steps
    plan = Plan(num_shards, envs_per_shard, steps_per_update, warmup_steps, num_updates, (), (), num_agents)
    plan.check(system)
    if num_updates < 1 and isinstance(arch, OfflineConfig):
        raise ConfigError(
            f"arch.total_timesteps={arch.total_timesteps} gradient steps are too few for one update of"
            f" {steps_per_update} (system.epochs): use at least {steps_per_update}"
        )
    if num_updates < 1:
        raise ConfigError(
            f"arch.total_timesteps={arch.total_timesteps} is too small for one update of {steps_per_update} steps"
            f" (arch.total_num_envs={arch.total_num_envs} × system.rollout_length={system.rollout_length}) after"
            f" {warmup_steps} warm-up steps (arch.total_num_envs={arch.total_num_envs} ×"
            f" system.warmup_steps={system.warmup_steps}): use at least"
            f" {warmup_steps + steps_per_update}"
        )
    _check_counters(config, plan.rows_per_shard, num_updates)
    num_evaluations = min(arch.num_evaluation, num_updates)
    evaluations = tuple(index * num_updates // num_evaluations for index in range(1, num_evaluations + 1))
    plan = plan._replace(evaluations=evaluations)
    return plan._replace(notes=tuple(_notes(config, plan)))


def _check_counters(config: RunConfig, envs_per_shard: int, num_updates: int) -> None:
    """Refuse sizes and budgets that the 32-bit integers of the compiled program cannot count."""
    arch, system = config.arch, config.system
    if envs_per_shard * system.rollout_length > INT32_MAX:
        raise ConfigError(
            f"system.rollout_length={system.rollout_length}: a rollout of {envs_per_shard:,} envs per shard has"
            f" {envs_per_shard * system.rollout_length:,} steps, more than a 32-bit index can reach: use at most"
            f" {INT32_MAX // envs_per_shard}, or fewer arch.total_num_envs"
        )
    allowed, size = INT32_MAX, f"{system.rollout_length} steps per environment"
    if isinstance(arch, OfflineConfig):
        size = f"{config.steps_per_update} {arch.step_unit}"
    elif system.max_steps_per_env is not None:
        allowed = min(allowed, (system.max_steps_per_env - system.warmup_steps) // system.rollout_length)
    if num_updates > allowed:
        largest = arch.total_num_envs * system.warmup_steps + allowed * config.steps_per_update
        raise ConfigError(
            f"arch.total_timesteps={arch.total_timesteps}: {num_updates:,} updates of {size} are more than"
            f" 32-bit counters can count: use at most {largest}"
        )
    gradients, steps = system.find_part(Gradients), num_updates * system.gradient_steps
    if gradients is not None and gradients.decay_learning_rates and steps > INT32_MAX:
        raise ConfigError(
            f"system.decay_learning_rates={gradients.decay_learning_rates}: {steps:,} gradient steps are more than"
            " 32-bit counters can count: use false, or fewer of them (system.epochs)"
        )


def spread_members(population: int, num_devices: int) -> tuple[bool, tuple[str, ...]]:
    """Decide whether to shard the members of a population over devices: if they divide evenly."""
    if population == 1 or num_devices == 1:
        return False, ()
    spread = population % num_devices == 0
    what = "members" if spread else "the environments of each member"
    return spread, (f"{population} members on {num_devices} devices: {what} are sharded",)


def _notes(config: RunConfig, plan: Plan) -> Iterator[str]:
    arch, system = config.arch, config.system
    if plan.num_agents > 1:
        yield f"games of {plan.num_agents} agents: steps count games, and returns are those of the team"
    spent = plan.warmup_steps + plan.num_updates * plan.steps_per_update
    if spent < arch.total_timesteps:
        yield (
            f"arch.total_timesteps={arch.total_timesteps:,} rounded down to {spent:,}: {plan.num_updates:,} updates of"
            f" {plan.steps_per_update:,} steps"
        )
    if (most := len(plan.evaluations)) < arch.num_evaluation:
        yield f"arch.num_evaluation={arch.num_evaluation} reduced to {most}: at most one per update"
    yield from _replay_notes(system, plan)
    yield from _period_notes(system, plan.num_updates)
    if isinstance(arch, SebulbaConfig) and (lag := arch.pipeline_queue_size) and system.ignores_lag:
        remedy = "system.vtrace=true does" if hasattr(system, "vtrace") else "use arch.pipeline_queue_size=0"
        yield (
            f"arch.pipeline_queue_size={lag}: rollouts come from a policy that is {lag} update(s) old, and no loss of"
            f" system={config.system_name} corrects for it: {remedy}"
        )


def _replay_notes(system: SystemConfig, plan: Plan) -> Iterator[str]:
    buffer = system.find_part(BufferConfig)  # type: ignore[type-abstract]
    if buffer is None:
        return
    if buffer.only_data:
        if getattr(buffer, "prioritised", False):
            yield "system.prioritised=true has no effect: batches of only recorded data are drawn uniformly"
        return
    if isinstance(buffer, ReplayConfig):
        yield (
            f"{buffer.epochs / plan.steps_per_update:.3g} gradient steps per environment step:"
            f" system.epochs={buffer.epochs} after every {plan.steps_per_update:,} steps"
        )
    sizes = plan.rows_per_shard, plan.num_shards, system.rollout_length
    if (size := buffer.buffer_size(*sizes)) < (given := buffer.total_buffer_size):
        unit = buffer.buffer_unit(*sizes)
        yield f"system.total_buffer_size={given:,} rounded down to {size:,}: a multiple of {unit:,}"


def _period_notes(system: SystemConfig, num_updates: int) -> Iterator[str]:
    """Name periods of gradient steps that the run does not last."""
    steps = num_updates * system.gradient_steps
    # The last reset precedes the last update, and a copy after the last gradient step is of no use.
    periods = {
        "target_update_period": (steps - 1, "target networks are not updated before the last one"),
        "reset_every": (steps - system.gradient_steps, "nothing is reset"),
        "policy_frequency": (steps, "the policy is not updated"),
    }
    for name, (most, what) in periods.items():
        period = get_value(system, name) if name in flat_hints(type(system)) else None
        if period is not None and period > most:
            yield f"system.{name}={period:,} of {steps:,} gradient steps in all: {what}"
