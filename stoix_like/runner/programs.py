"""The compiled programs of a run, and the keys that it begins with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import System
from stoix_like.runner import anakin, memory
from stoix_like.runner.devices import set_compile_cache
from stoix_like.runner.evaluator import make_evaluator
from stoix_like.runner.population import Population
from stoix_like.runner.prepared import Prepared, make_system


class Compiled(NamedTuple):
    """The run's compiled programs, how its state lies on the devices, and how long compiling took in seconds."""

    init: Callable[..., Any]
    train: Callable[..., Any]
    evaluate: Callable[..., Any]
    select: Callable[..., Any]
    state: anakin.LearnerState
    seconds: float


class Keys(NamedTuple):
    """The keys that a run begins with: for the agent, for each shard `[num_shards]`, and for evaluation."""

    agent: jax.Array
    shards: jax.Array
    evaluation: jax.Array


def make_keys(prepared: Prepared) -> Keys:
    """The keys of a run; a member of a population begins with those of a run of its own seed.

    Args:
        prepared: the run.

    Returns:
        Its keys; with a population, each begins with its axis.
    """

    def split(key: jax.Array) -> Keys:
        train_key, eval_key = jax.random.split(key)
        agent_key, shards_key = jax.random.split(train_key)
        return Keys(agent_key, jax.random.split(shards_key, prepared.plan.num_shards), eval_key)

    seeds = prepared.population.seeds
    if len(seeds) == 1:
        return split(jax.random.key(seeds[0]))
    return jax.vmap(split)(jnp.stack([jax.random.key(seed) for seed in seeds]))


def fold_in(key: jax.Array, number: int) -> jax.Array:
    """A key for the `number`-th use.

    Args:
        key: one key, or one for each member.
        number: of the use.

    Returns:
        As many keys.
    """
    return jax.vmap(jax.random.fold_in, (0, None))(key, number) if key.ndim else jax.random.fold_in(key, number)


def traced_hyperparams(population: Population) -> dict[str, Any]:
    """What the programs are handed as hyperparameters.

    Args:
        population: the members.

    Returns:
        `[P]` by name; none for a lone member, which has its own as plain numbers in its configuration.
    """
    return population.arrays() if population.size > 1 else {}


def compile_programs(prepared: Prepared, keys: Keys, hyperparams: dict[str, Any]) -> Compiled:
    """Compile everything a run needs, ahead of time, so that compiling and running are timed apart.

    Args:
        prepared: the run.
        keys: what the run begins with.
        hyperparams: by name, `[P]`; empty without a population.

    Returns:
        The programs.

    Raises:
        ConfigError: the run does not fit into the memory of its devices.
    """
    start = time.perf_counter()
    run, plan, mesh, size = prepared.run, prepared.plan, prepared.mesh, prepared.population.size
    set_compile_cache(run.arch.compile_cache)
    constants = prepared.population.of(0) if size == 1 else {}

    def build(traced: dict[str, Any]) -> System:
        return make_system(prepared, constants | traced)

    layout = anakin.Layout(
        size, plan.envs_per_shard, run.system.rollout_length, run.system.warmup_steps, run.arch.on_nan == "ignore"
    )
    program = anakin.make_program(build, prepared.env, mesh, layout)
    evaluator = make_evaluator(
        build, prepared.eval_env, mesh, run.arch.num_eval_episodes, run.arch.max_eval_steps, size
    )
    init_args = (hyperparams, keys.agent, keys.shards)
    init = program.init.lower(*init_args).compile()
    # Shapes alone do not say where arrays lie, and a compiled program only takes those that lie as it expects.
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(program.init, *init_args),
        init.output_shardings,
    )
    train = program.train.lower(state, hyperparams, np.int32(1), np.bool_(True)).compile()
    replay = ("system.total_buffer_size",) if hasattr(run.system, "total_buffer_size") else ()
    memory.check(train, mesh, size, (*replay, "arch.total_num_envs", "system.rollout_length"))
    evaluate = evaluator.lower(state.shared, hyperparams, keys.evaluation).compile()
    select = jax.jit(_select).lower(np.zeros(() if size == 1 else (size,), bool), state.shared, state.shared).compile()
    return Compiled(init, train, evaluate, select, state, time.perf_counter() - start)


def _select(better: jax.Array, candidate: Any, best: Any) -> Any:
    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)

    return jax.tree.map(pick, candidate, best)
