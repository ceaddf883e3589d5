"""The compiled programs of a run, and the keys that it starts with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.anakin import make_program
from stoix_like.architectures.evaluator import make_evaluator
from stoix_like.architectures.types import Hyperparams, LearnerState, ProgramSpec
from stoix_like.base_types import System
from stoix_like.run import memory
from stoix_like.run.devices import set_compile_cache
from stoix_like.run.population import Population
from stoix_like.run.setup import RunSetup
from stoix_like.run.signals import stop_if_received


class CompiledRun(NamedTuple):
    """The compiled programs of a run.

    Attributes:
        init: see `architectures.types.Program`.
        train: see `architectures.types.Program`.
        evaluate: see `architectures.evaluator.make_evaluator`.
        select: `(better [P], candidate, best) -> best`, each member's better parameters.
        state: shapes and layouts of the learner state.
        seconds: time spent compiling.
    """

    init: Callable[..., Any]
    train: Callable[..., Any]
    evaluate: Callable[..., Any]
    select: Callable[..., Any]
    state: LearnerState
    seconds: float


class RunKeys(NamedTuple):
    """The keys that a run starts with: for the agent, for each shard `[num_shards]`, and for evaluation."""

    agent: jax.Array
    shards: jax.Array
    evaluation: jax.Array


def make_keys(setup: RunSetup) -> RunKeys:
    """Derive the keys of a run from its seeds; a member of a population has the keys of a lone run with its seed.

    Args:
        setup: the run.

    Returns:
        The keys; with a population, each has a leading population axis.
    """

    def split(key: jax.Array) -> RunKeys:
        train_key, eval_key = jax.random.split(key)
        agent_key, shards_key = jax.random.split(train_key)
        return RunKeys(agent_key, jax.random.split(shards_key, setup.plan.num_shards), eval_key)

    seeds = setup.population.seeds
    if len(seeds) == 1:
        return split(jax.random.key(seeds[0]))
    return jax.vmap(split)(jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)))


def fold_in(key: jax.Array, number: int) -> jax.Array:
    """Derive the key of the `number`-th use.

    Args:
        key: one key, or one per member.
        number: index of the use.

    Returns:
        The same number of keys.
    """
    return jax.vmap(jax.random.fold_in, (0, None))(key, number) if key.ndim else jax.random.fold_in(key, number)


def traced_hyperparams(population: Population) -> Hyperparams:
    """Return the hyperparameters that the programs take as arguments.

    Args:
        population: the members.

    Returns:
        `[P]` by name; empty for a lone member, whose hyperparameters are constants of the program.
    """
    return population.arrays() if population.num_members > 1 else {}


def compile_run(setup: RunSetup, keys: RunKeys, hyperparams: Hyperparams) -> CompiledRun:
    """Compile everything a run needs, ahead of time, so that compiling and running are timed separately.

    Args:
        setup: the run.
        keys: the keys that the run starts with.
        hyperparams: `[P]` by name; empty without a population.

    Returns:
        The programs.

    Raises:
        ConfigError: the run does not fit into the memory of its devices.
        KeyboardInterrupt, SystemExit: a signal was received.
    """
    start = time.perf_counter()
    config, plan, mesh, num_members = setup.config, setup.plan, setup.mesh, setup.population.num_members
    set_compile_cache(config.arch.compile_cache)

    def build(traced: Hyperparams) -> System:
        return setup.build_system((setup.population.of(0) if num_members == 1 else {}) | traced)

    spec = ProgramSpec(
        num_members=num_members,
        num_envs=plan.envs_per_shard,
        rollout_length=config.system.rollout_length,
        warmup_steps=config.system.warmup_steps,
        on_nan_ignore=config.arch.on_nan == "ignore",
        hoist_randomness=config.arch.hoist_randomness,
    )
    program = make_program(build, setup.env, mesh, spec)
    evaluator = make_evaluator(
        build, setup.eval_env, mesh, config.arch.num_eval_episodes, config.arch.max_eval_steps, num_members
    )
    init_args = (hyperparams, keys.agent, keys.shards)
    init = program.init.lower(*init_args).compile()
    # Shapes alone have no sharding, and a compiled program only takes arrays with the sharding it expects.
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(program.init, *init_args),
        init.output_shardings,
    )
    train = program.train.lower(state, hyperparams, np.int32(1), np.bool_(True)).compile()
    replay = ("system.total_buffer_size",) if hasattr(config.system, "total_buffer_size") else ()
    memory.check(train, mesh, num_members, (*replay, "arch.total_num_envs", "system.rollout_length"))
    stop_if_received()
    evaluate = evaluator.lower(state.shared, hyperparams, keys.evaluation).compile()
    memory.check(evaluate, mesh, num_members, ("arch.num_eval_episodes",), memory.bytes_per_device(state.shards, mesh))
    better = np.zeros(() if num_members == 1 else (num_members,), bool)
    select = jax.jit(_select).lower(better, state.shared, state.shared).compile()
    return CompiledRun(init, train, evaluate, select, state, time.perf_counter() - start)


def _select(better: jax.Array, candidate: Any, best: Any) -> Any:
    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)

    return jax.tree.map(pick, candidate, best)
