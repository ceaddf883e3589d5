"""Every part of a run, made and checked, before anything compiles."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from stoix_like.base_types import Actor, System, SystemSpec
from stoix_like.config import RunConfig
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError
from stoix_like.loggers import check_available
from stoix_like.networks.utils import build_networks, describe, fits
from stoix_like.runner import anakin, memory
from stoix_like.runner.devices import DEVICE_AXIS, find_devices, make_mesh
from stoix_like.runner.plan import Plan, make_plan, spread_members
from stoix_like.runner.population import Population, make_population


class Prepared(NamedTuple):
    """A run whose every part has been made, and nothing compiled."""

    run: RunConfig
    population: Population
    mesh: Mesh
    plan: Plan
    env: VectorEnvironment
    eval_env: VectorEnvironment
    networks: SimpleNamespace


def prepare(run: RunConfig) -> Prepared:
    """Make every part of a run, refusing what cannot work before anything compiles or is written.

    Args:
        run: the typed configuration.

    Returns:
        Mesh, plan, environments and network modules.

    Raises:
        ConfigError: naming the key, the value and what would do.
    """
    check_available(run.logger)
    population = make_population(run)
    devices = find_devices(run.arch.num_devices)
    spread, notes = spread_members(run, population.size, len(devices))
    mesh = make_mesh(devices, spread)
    plan = make_plan(run, mesh.shape[DEVICE_AXIS])
    _check_members(run, population, plan)
    env = factory.make(run.env)
    if not fits(run.system, env.action_space):
        raise ConfigError(
            f"system={run.system_name} does not fit the {describe(env.action_space)} of {environment_name(run)}:"
            " choose a system that takes them, such as ppo/ff_ppo"
        )
    prepared = Prepared(
        run=run,
        population=population,
        mesh=mesh,
        plan=plan._replace(notes=(*plan.notes, *notes)),
        env=env,
        eval_env=factory.make_eval(run.env),
        networks=build_networks(run.network, env.action_space, env.observation_space),
    )
    local = _check_networks(prepared)
    stored_twice = getattr(run.system, "store_next_observation", False)
    replay = memory.check_replay(local, mesh, population.size, run.arch.update_batch_size, stored_twice)
    return prepared._replace(plan=prepared.plan._replace(notes=(*prepared.plan.notes, *replay)))


def _check_members(run: RunConfig, population: Population, plan: Plan) -> None:
    """Let the system check the hyperparameters of every member together, as it checks those of the configuration."""
    for member in range(population.size if population.hyperparams else 0):
        try:
            hyperparams: dict[str, Any] = population.of(member)
            dataclasses.replace(run.system, **hyperparams).check(plan.envs_per_shard, plan.num_shards)
        except ConfigError as error:
            raise ConfigError(f"arch.population.hyperparams, member {member}: {error}") from error


def _check_networks(prepared: Prepared) -> Any:
    """Trace the agent's beginning and its first action, where networks that do not fit show; shapes of `local`."""
    env, size = prepared.env, prepared.plan.envs_per_shard

    def first_action(key: jax.Array) -> Any:
        system = make_system(prepared, {})
        env_state, timestep = env.reset(jax.random.split(key, size))
        agent = system.init(key, timestep)
        action = system.eval_act(agent.shared, Actor(env_state, timestep, system.init_carry(size)), key)
        return agent.local, action

    try:
        return jax.eval_shape(first_action, jax.random.key(0))[0]
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError) or os.environ.get("HYDRA_FULL_ERROR"):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"system={prepared.run.system_name} cannot be built with this network: {reason} (HYDRA_FULL_ERROR=1 shows"
            " where)"
        ) from error


def make_system(prepared: Prepared, hyperparams: dict[str, Any]) -> System:
    """Build the system of a prepared run.

    Args:
        prepared: the run.
        hyperparams: those in which a member differs from the configuration; they may be traced.

    Returns:
        The system.
    """
    run, plan, env = prepared.run, prepared.plan, prepared.env
    spec = SystemSpec(
        observation_space=env.observation_space,
        action_space=env.action_space,
        networks=prepared.networks,
        axes=anakin.make_axes(prepared.mesh),
        num_updates=plan.num_updates,
        num_envs=plan.envs_per_shard,
        num_shards=plan.num_shards,
        evaluation_greedy=run.arch.evaluation_greedy,
    )
    return run.build(dataclasses.replace(run.system, **hyperparams), spec)


def environment_name(run: RunConfig) -> str:
    """The environment as it is written: `gymnax/CartPole-v1`."""
    return f"{run.env.env_name}/{run.env.scenario.name}"
