"""The jitted programs of a run, with the shapes of their arguments, and the keys that it starts with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from stoix_like.arch_config import OfflineConfig, SebulbaConfig
from stoix_like.architectures import anakin, sebulba
from stoix_like.architectures.axes import partition_specs
from stoix_like.architectures.evaluator import make_evaluator
from stoix_like.architectures.types import NO_INPUTS, Hyperparams, Inputs, LearnerState, ProgramSpec
from stoix_like.assembly import inputs_of
from stoix_like.base_types import System
from stoix_like.envs.split_steps import SplitSteps
from stoix_like.run.population.members import Population
from stoix_like.run.records.blocks import max_blocks
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.utils.jax_utils import fold_in_each, select_members, shapes_on


class RunProgram(NamedTuple):
    """A jitted function of a run."""

    # `init`, `train`, `rollouts`, `evaluate` or `select`; with actors on the host `learn`, `copy` and `actor 0 …`.
    name: str
    function: Any  # jitted, but neither traced nor compiled
    args: tuple[Any, ...]  # its arguments, or their shapes; of arrays that stay on the devices, with their shardings


class RunKeys(NamedTuple):
    """The keys that a run starts with: for the agent, for each shard `[num_shards]`, and for evaluation."""

    agent: jax.Array
    shards: jax.Array
    evaluation: jax.Array


def make_keys(setup: RunSetup) -> RunKeys:
    """Derive the keys of a run from its seeds; a member of a population has the keys of a lone run with its seed."""
    seeds = np.asarray(setup.population.seeds, np.uint32)
    return _derive_keys(jax.device_put(seeds if len(seeds) > 1 else seeds[0]), setup.plan.num_shards)


def with_new_starts(keys: RunKeys, updates: int) -> RunKeys:
    """Return keys with other start states, for a run that restarts its episodes when it resumes."""
    shards = jax.vmap(lambda key: jax.random.fold_in(key, updates))(keys.shards.reshape(-1))
    return keys._replace(shards=shards.reshape(keys.shards.shape))


@partial(jax.jit, static_argnums=1)  # outside of a program, jax compiles every operation by itself
def _derive_keys(seeds: jax.Array, num_shards: int) -> RunKeys:
    def derive(seed: jax.Array) -> RunKeys:
        train_key, eval_key = jax.random.split(jax.random.key(seed))
        agent_key, shards_key = jax.random.split(train_key)
        return RunKeys(agent_key, jax.random.split(shards_key, num_shards), eval_key)

    return jax.vmap(derive)(seeds) if seeds.ndim else derive(seeds)


def traced_hyperparams(population: Population) -> Hyperparams:
    """Return the hyperparameters that programs take, `[P]` by name; a lone member has constants."""
    return population.arrays() if population.num_members > 1 else {}


def input_shapes(setup: RunSetup) -> Inputs:
    """Return the shapes of the inputs, which every device has."""
    return shapes_on(NamedSharding(setup.mesh, PartitionSpec()), inputs_of(setup.spec))


def run_programs(setup: RunSetup) -> Iterator[RunProgram]:
    """Build the programs of a run, for the devices of its setup."""
    config, plan, mesh, num_members = setup.config, setup.plan, setup.mesh, setup.population.num_members
    keys, hyperparams = jax.eval_shape(partial(make_keys, setup)), traced_hyperparams(setup.population)
    inputs = input_shapes(setup)

    def build(traced: Hyperparams, inputs: Inputs = NO_INPUTS) -> System:
        return setup.build_system((setup.population.of(0) if num_members == 1 else {}) | traced, inputs=inputs)

    spec = ProgramSpec(
        num_members=num_members,
        num_envs=plan.rows_per_shard,
        rollout_length=config.system.rollout_length,
        warmup_steps=config.system.warmup_steps,
        on_nan_ignore=config.arch.on_nan == "ignore",
        every_updates=config.logger.every_updates,
        max_blocks=max_blocks(num_members),
        most_truncations=setup.most_truncations,
        lone_shards=setup.lone_shards,
        diagnostics=config.logger.diagnostics,
        offline=isinstance(config.arch, OfflineConfig),
    )
    program: Any
    if isinstance(config.arch, SebulbaConfig):
        program = sebulba.make_learner(build, setup.env, mesh, spec, config.arch.num_actors)
    else:
        program = anakin.make_program(build, setup.env, mesh, spec)
    init = RunProgram("init", program.init, (hyperparams, keys.agent, keys.shards, inputs))
    yield init
    state = _state_shapes(setup, jax.eval_shape(init.function, *init.args))
    if isinstance(config.arch, SebulbaConfig):
        yield from _of_sebulba(setup, config.arch, program, build({}), state, inputs)
    else:
        yield RunProgram("train", program.train, (state, hyperparams, np.int32(1), np.bool_(True), inputs))
        if config.arch.profile and not (setup.env.on_host or spec.offline):
            yield RunProgram("rollouts", program.rollouts, (state, hyperparams, np.int32(1)))
    episodes = config.arch.num_eval_episodes, config.arch.max_eval_steps
    evaluator = make_evaluator(build, setup.eval_env, mesh, *episodes, num_members)

    def evaluate(shared: Any, hyperparams: Hyperparams, key: jax.Array, number: jax.Array) -> Any:
        fold_in = fold_in_each if key.ndim else jax.random.fold_in
        return evaluator(shared, hyperparams, fold_in(key, number))

    # Runs share an executable of one text only if it takes the same of all arguments: optimiser states may differ.
    evaluation = jax.jit(evaluate, keep_unused=True)
    yield RunProgram("evaluate", evaluation, (state.shared, hyperparams, keys.evaluation, np.uint32(0)))
    better = np.zeros(() if num_members == 1 else (num_members,), bool)
    yield RunProgram("select", jax.jit(select_members), (state.shared, state.shared, better))


def _of_sebulba(
    setup: RunSetup,
    arch: SebulbaConfig,
    program: sebulba.LearnerProgram,
    system: System,
    state: LearnerState,
    inputs: Inputs,
) -> Iterator[RunProgram]:
    """Yield the programs of training of Sebulba, except for `init`."""
    length, mesh = setup.config.system.rollout_length, setup.mesh
    num_envs = arch.total_num_envs // arch.num_actors * setup.plan.num_agents
    rollout = sebulba.rollout_shapes(system, setup.env, state.shared, num_envs, length, mesh)
    rollouts = (rollout,) * arch.num_actors
    yield RunProgram("learn", program.learn, (state, {}, rollouts, np.bool_(True), inputs))
    steps = SplitSteps(setup.env)
    for index, device in enumerate(dict.fromkeys(setup.actor_devices)):
        functions = sebulba.actor_programs(system, steps, state.shared, num_envs, length, device)
        for name, (function, args) in functions.items():
            yield RunProgram(f"actor {index} {name}", function, args)
    yield RunProgram("copy", jax.jit(partial(jax.tree.map, jnp.copy)), (state.shared,))


def _state_shapes(setup: RunSetup, shapes: LearnerState) -> LearnerState:
    """Return the shapes of the learner state with their shardings: a compiled program takes no others."""
    one, each = (NamedSharding(setup.mesh, spec) for spec in partition_specs(setup.population.num_members))
    return LearnerState(*map(shapes_on, (one, each, one, one), shapes))
