"""The compiled programs of a run, and the keys that it starts with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures import anakin, sebulba
from stoix_like.architectures.evaluator import make_evaluator
from stoix_like.architectures.types import Hyperparams, LearnerState, ProgramSpec
from stoix_like.base_types import System
from stoix_like.config import AnakinConfig, SebulbaConfig
from stoix_like.envs.split_steps import SplitSteps
from stoix_like.loggers.formats import columns
from stoix_like.run import memory
from stoix_like.run.actors import Actor, Pipeline
from stoix_like.run.blocks import max_blocks
from stoix_like.run.devices import placing, set_compile_cache
from stoix_like.run.population import Population
from stoix_like.run.setup import RunSetup
from stoix_like.signals import stop_if_received

SystemBuild = Callable[[Hyperparams], System]


class Compiler:
    """Compiles programs: Python traces one after the other, while threads compile those that were traced before.

    Attributes:
        seconds: by program, the seconds that tracing, lowering and compiling it took; a cached program is only read.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = {}
        self._threads = ThreadPoolExecutor(thread_name_prefix="compile")

    def __call__(self, name: str, program: Any, *args: Any) -> Any:
        """Compile a jitted function.

        Args:
            name: name of the program.
            program: the function.
            args: its arguments, or their shapes.

        Returns:
            The compiled program.
        """
        return self.start(name, program, *args)()

    def start(self, name: str, program: Any, *args: Any) -> Callable[[], Any]:
        """Trace a jitted function, and start to compile it; see `__call__`.

        Returns:
            A function that waits for the compiled program.
        """
        start = time.perf_counter()
        traced = program.trace(*args)
        after_trace = time.perf_counter()
        lowered = traced.lower()
        seconds = {"trace": after_trace - start, "lower": time.perf_counter() - after_trace}
        self.seconds[name] = seconds

        def compile_lowered() -> Any:
            start = time.perf_counter()
            compiled = lowered.compile()
            seconds["compile"] = time.perf_counter() - start
            return compiled

        return self._threads.submit(compile_lowered).result

    def close(self) -> None:
        """Compile nothing more that has not started."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class CompiledRun(NamedTuple):
    """The compiled programs of a run.

    Attributes:
        init: see `architectures.types.Program`.
        train: see `architectures.types.Program`.
        running: `(num_updates) -> context`, within which a run trains the updates that are left.
        host_metrics: returns the metrics of the host's side of training since the start of the interval.
        rollouts: see `architectures.types.Program`; None unless the run is profiled, and for environments on the host,
            which would not return to their states.
        evaluate: `(shared, hyperparams, key, number []) -> Episodes`; every `number` has its own start states, see
            `architectures.evaluator.make_evaluator`.
        select: `(candidate, best, better [P]) -> best`, each member's better parameters.
        state: shapes and layouts of the learner state.
        keys: the keys that the run starts with.
        seconds: time spent compiling.
        program_seconds: see `Compiler.seconds`.
    """

    init: Callable[..., Any]
    train: Callable[..., Any]
    running: Callable[[int], contextlib.AbstractContextManager[None]]
    host_metrics: Callable[[], dict[str, float]]
    rollouts: Callable[..., Any] | None
    evaluate: Callable[..., Any]
    select: Callable[..., Any]
    state: LearnerState
    keys: RunKeys
    seconds: float
    program_seconds: dict[str, dict[str, float]]


class Training(NamedTuple):
    """The part of `CompiledRun` that depends on the architecture, with the names of its fields."""

    init: Callable[..., Any]
    train: Callable[..., Any]
    state: LearnerState
    running: Callable[[int], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
    host_metrics: Callable[[], dict[str, float]] = dict
    rollouts: Callable[..., Any] | None = None


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
    seeds = np.asarray(setup.population.seeds, np.uint32)
    return _derive_keys(jax.device_put(seeds if len(seeds) > 1 else seeds[0]), setup.plan.num_shards)


@partial(jax.jit, static_argnums=1)  # outside of a program, jax compiles every operation by itself
def _derive_keys(seeds: jax.Array, num_shards: int) -> RunKeys:
    def derive(seed: jax.Array) -> RunKeys:
        train_key, eval_key = jax.random.split(jax.random.key(seed))
        agent_key, shards_key = jax.random.split(train_key)
        return RunKeys(agent_key, jax.random.split(shards_key, num_shards), eval_key)

    return jax.vmap(derive)(seeds) if seeds.ndim else derive(seeds)


def traced_hyperparams(population: Population) -> Hyperparams:
    """Return the hyperparameters that the programs take as arguments.

    Args:
        population: the members.

    Returns:
        `[P]` by name; empty for a lone member, whose hyperparameters are constants of the program.
    """
    return population.arrays() if population.num_members > 1 else {}


def compile_run(setup: RunSetup) -> CompiledRun:
    """Compile everything a run needs, ahead of time, so that compiling and running are timed separately.

    Args:
        setup: the run.

    Returns:
        The programs.

    Raises:
        ConfigError: the run does not fit into the memory of its devices.
        KeyboardInterrupt, SystemExit: a signal was received.
    """
    with contextlib.closing(Compiler()) as compiler:
        return _compile_run(setup, compiler)


def _compile_run(setup: RunSetup, compiler: Compiler) -> CompiledRun:
    start = time.perf_counter()
    config, plan, mesh, num_members = setup.config, setup.plan, setup.mesh, setup.population.num_members
    set_compile_cache(config.arch.compile_cache)
    keys, hyperparams = make_keys(setup), traced_hyperparams(setup.population)

    def build(traced: Hyperparams) -> System:
        return setup.build_system((setup.population.of(0) if num_members == 1 else {}) | traced)

    spec = ProgramSpec(
        num_members=num_members,
        num_envs=plan.envs_per_shard,
        rollout_length=config.system.rollout_length,
        warmup_steps=config.system.warmup_steps,
        on_nan_ignore=config.arch.on_nan == "ignore",
        hoist_randomness=not isinstance(config.arch, AnakinConfig) or config.arch.hoist_randomness,
        every_updates=config.logger.every_updates,
        max_blocks=max_blocks(num_members),
        lone_shards=setup.lone_shards,
    )
    compile_training = _compile_sebulba if isinstance(config.arch, SebulbaConfig) else _compile_anakin
    state, finish = compile_training(setup, build, spec, keys, hyperparams, compiler)
    evaluator = make_evaluator(
        build, setup.eval_env, mesh, config.arch.num_eval_episodes, config.arch.max_eval_steps, num_members
    )

    def evaluate(shared: Any, hyperparams: Hyperparams, key: jax.Array, number: jax.Array) -> Any:
        fold_in = jax.vmap(jax.random.fold_in, (0, None)) if key.ndim else jax.random.fold_in
        return evaluator(shared, hyperparams, fold_in(key, number))

    compiled_evaluation = compiler.start(
        "evaluate", jax.jit(evaluate), state.shared, hyperparams, keys.evaluation, np.uint32(0)
    )
    better = np.zeros(() if num_members == 1 else (num_members,), bool)
    select = compiler("select", jax.jit(_select), state.shared, state.shared, better)
    training = finish()
    stop_if_received(setup.processes)
    evaluation, resident = compiled_evaluation(), memory.bytes_per_device(state.shards, mesh)
    memory.check(evaluation, mesh, num_members, ("arch.num_eval_episodes",), resident)
    return CompiledRun(
        **training._asdict(),
        evaluate=placing(evaluation),
        select=placing(select),
        keys=keys,
        seconds=time.perf_counter() - start,
        program_seconds=compiler.seconds,
    )


def _compile_anakin(
    setup: RunSetup,
    build: SystemBuild,
    spec: ProgramSpec,
    keys: RunKeys,
    hyperparams: Hyperparams,
    compiler: Compiler,
) -> tuple[LearnerState, Callable[[], Training]]:
    """Return the shapes of the learner state, and a function that waits for the programs of training."""
    program = anakin.make_program(build, setup.env, setup.mesh, spec)
    init, state = _compile_init(compiler, program.init, (hyperparams, keys.agent, keys.shards))
    compiled_train = compiler.start("train", program.train, state, hyperparams, np.int32(1), np.bool_(True))
    rollouts = None
    if setup.config.arch.profile and not setup.env.on_host:
        rollouts = compiler("rollouts", program.rollouts, state, hyperparams, np.int32(1))

    def finish() -> Training:
        train = compiled_train()
        _check_memory(setup, train)
        return Training(init, placing(train), state, rollouts=rollouts)

    return state, finish


def _compile_sebulba(
    setup: RunSetup,
    build: SystemBuild,
    spec: ProgramSpec,
    keys: RunKeys,
    hyperparams: Hyperparams,
    compiler: Compiler,
) -> tuple[LearnerState, Callable[[], Training]]:
    """See `_compile_anakin`."""
    arch, plan, mesh, length = setup.config.arch, setup.plan, setup.mesh, spec.rollout_length
    assert isinstance(arch, SebulbaConfig)
    system, steps = build({}), SplitSteps(setup.env)
    num_envs = arch.total_num_envs // arch.num_actors
    program = sebulba.make_learner(build, setup.env, mesh, spec, arch.num_actors)
    init, state = _compile_init(compiler, program.init, (hyperparams, keys.agent, keys.shards))
    rollout = sebulba.rollout_shapes(system, setup.env, state.shared, num_envs, length, mesh)
    rollouts = (rollout,) * arch.num_actors
    compiled_learn = compiler.start("learn", program.learn, state, hyperparams, rollouts, np.bool_(True))
    actors = {
        device: sebulba.compile_actor(system, steps, state.shared, num_envs, length, device)
        for device in dict.fromkeys(setup.actor_devices)
    }
    copy_shared = compiler("copy", jax.jit(partial(jax.tree.map, jnp.copy)), state.shared)
    shardings = sebulba.rollout_shardings(mesh)

    def make_actors() -> list[Actor]:
        return [
            Actor(steps.host, actors[device], device, num_envs, length, shardings) for device in setup.actor_devices
        ]

    def finish() -> Training:
        learn = compiled_learn()
        _check_memory(setup, learn)
        lag, every = arch.pipeline_queue_size, spec.every_updates
        pipeline = Pipeline(make_actors, placing(learn), copy_shared, lag, plan.steps_per_update, every)
        return Training(init, pipeline.train, state, pipeline.running, pipeline.metrics)

    return state, finish


def _compile_init(compiler: Compiler, init: Any, args: tuple[Any, ...]) -> tuple[Callable[..., Any], LearnerState]:
    """Compile the initialisation; return it with the shapes and layouts of its result."""
    compiled = compiler("init", init, *args)
    # Shapes alone have no sharding, and a compiled program only takes arrays with the sharding it expects.
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(init, *args),
        compiled.output_shardings,
    )
    return compiled, state


def _check_memory(setup: RunSetup, program: Any) -> None:
    replay = ("system.total_buffer_size",) if hasattr(setup.config.system, "total_buffer_size") else ()
    sizes = (*replay, "arch.total_num_envs", "system.rollout_length")
    memory.check(program, setup.mesh, setup.population.num_members, sizes)


def _select(candidate: Any, best: Any, better: jax.Array) -> Any:
    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)

    return jax.tree.map(pick, candidate, best)


def describe(programs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what each program took to compile, as a table.

    Args:
        programs: `Compiler.seconds`.

    Returns:
        Lines of text.
    """
    rows: list[tuple[str, ...]] = [("program", "trace", "lower", "compile", "all")]
    for name, seconds in programs.items():
        rows.append((name, *(f"{value:.1f} s" for value in (*seconds.values(), sum(seconds.values())))))
    return columns(rows)
