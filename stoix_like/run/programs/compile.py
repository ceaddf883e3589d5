"""The compiled programs of a run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from stoix_like.arch_config import OfflineConfig, SebulbaConfig
from stoix_like.architectures import sebulba
from stoix_like.architectures.axes import POPULATION_AXIS
from stoix_like.architectures.types import LearnerState
from stoix_like.assembly import inputs_of
from stoix_like.config import RunConfig
from stoix_like.envs.split_steps import SplitSteps
from stoix_like.loggers.formats import columns
from stoix_like.run.host.actors import Actor, Pipeline
from stoix_like.run.host.devices import placing
from stoix_like.run.programs.functions import RunKeys, input_shapes, make_keys, run_programs
from stoix_like.run.set_up import memory_estimate
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.signals import expendable, stop_if_received
from stoix_like.utils.replay import BufferConfig

# Seconds after which a run says which program it waits for.
_PATIENCE = 10.0


class Compiler:
    """Compiles programs: Python traces one after the other, while threads compile those that were traced before."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = {}
        self._threads = ThreadPoolExecutor(thread_name_prefix="compile")

    def start(self, name: str, program: Any, *args: Any) -> Callable[..., Any]:
        """Trace a jitted function, and start to compile it."""
        start = time.perf_counter()
        traced = program.trace(*args)
        after_trace = time.perf_counter()
        lowered = traced.lower()
        seconds = {"trace": after_trace - start, "lower": time.perf_counter() - after_trace}
        self.seconds[name] = seconds

        def timed() -> Any:
            start = time.perf_counter()
            compiled = lowered.compile()
            seconds["compile"] = time.perf_counter() - start
            return compiled

        return self._threads.submit(timed).result

    def close(self) -> None:
        """Compile nothing more that has not started."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class CompiledRun(NamedTuple):
    """The compiled programs of a run."""

    init: Callable[..., Any]
    # `(given, warm_up) -> (hyperparams, key, shard_keys) -> LearnerState`, which compiles when it is called.
    init_given: Callable[..., Any]
    train: Callable[..., Any]
    # `(num_updates) -> context`, within which a run trains the updates that are left.
    running: Callable[[int], contextlib.AbstractContextManager[None]]
    # Returns the metrics of the host's side of training since the start of the interval.
    host_metrics: Callable[[], dict[str, float]]
    rollouts: Callable[..., Any] | None
    # `(shared, hyperparams, key, number []) -> Episodes`; every `number` has its own start states.
    evaluate: Callable[..., Any]
    select: Callable[..., Any]  # `(candidate, best, better [P]) -> best`, each member's better parameters
    keys: RunKeys  # the keys that the run starts with
    state: LearnerState  # shapes and layouts of the learner state
    seconds: float  # time spent compiling
    program_seconds: dict[str, dict[str, float]]


def compile_run(setup: RunSetup) -> CompiledRun:
    """Compile everything a run needs, ahead of time, so that compiling and running are timed separately."""
    with contextlib.closing(Compiler()) as compiler, expendable(setup.processes):
        return _compile_run(setup, compiler)


def _compile_run(setup: RunSetup, compiler: Compiler) -> CompiledRun:
    start = time.perf_counter()
    compiled, keys, state = _compile(setup, compiler)
    stop_if_received(setup.processes)
    arch = setup.config.arch
    check_memory(setup, compiled, state)
    compiled = _with_inputs(setup, compiled)
    pipeline = _make_pipeline(setup, arch, compiled) if isinstance(arch, SebulbaConfig) else None
    return CompiledRun(
        init=compiled["init"],
        init_given=compiled["init_given"],
        train=pipeline.train if pipeline else compiled["train"],
        running=pipeline.running if pipeline else lambda _: contextlib.nullcontext(),
        host_metrics=pipeline.metrics if pipeline else dict,
        rollouts=compiled.get("rollouts"),
        evaluate=placing(compiled["evaluate"]),
        select=placing(compiled["select"]),
        keys=keys,
        state=state,
        seconds=time.perf_counter() - start,
        program_seconds=compiler.seconds,
    )


def _compile(setup: RunSetup, compiler: Compiler) -> tuple[dict[str, Any], RunKeys, LearnerState]:
    """Trace and compile the programs; return them with the keys of the run and the shapes of the learner state."""
    args, functions, waiting = {}, {}, {}
    for name, function, given in run_programs(setup):
        args[name], functions[name], waiting[name] = given, function, compiler.start(name, function, *given)
    # They have a program of their own, which compiles here while threads compile the others.
    keys = make_keys(setup)
    compiled: dict[str, Any] = {"init_given": functions["init"]}
    for number, (name, wait) in enumerate(waiting.items(), start=1):
        with contextlib.suppress(TimeoutError):
            compiled[name] = wait(_PATIENCE)
            continue
        if setup.config.logger.console.enabled:
            setup.processes.say(f"  compiling {number} of {len(waiting)}: {name}", sys.stdout)
        compiled[name] = wait()
    state: LearnerState = args["learn" if "learn" in compiled else "train"][0]
    return compiled, keys, state


def _with_inputs(setup: RunSetup, compiled: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the inputs to the devices, once, and return the programs, which take none any more."""
    shapes = input_shapes(setup)
    inputs = jax.tree.map(lambda leaf, shape: _replicate(leaf, shape.sharding), inputs_of(setup.spec), shapes)
    taking = {name: compiled[name] for name in ("init", "train", "learn") if name in compiled}
    taking = {name: program if name == "init" else placing(program) for name, program in taking.items()}
    return {
        **compiled,
        **{name: _last(program, inputs) for name, program in taking.items()},
        "init_given": lambda given, warm_up: _last(compiled["init_given"], inputs, given, warm_up),
    }


def _replicate(leaf: Any, sharding: Sharding) -> jax.Array:
    """Copy an array to all devices; each process copies its own to its devices, and sends nothing to others."""
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_replicate(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _last(program: Callable[..., Any], *last: Any) -> Callable[..., Any]:
    """Return a program with its last arguments."""
    return lambda *args: program(*args, *last)


def _make_pipeline(setup: RunSetup, arch: SebulbaConfig, compiled: Mapping[str, Any]) -> Pipeline:
    """Return actors and learner of Sebulba."""
    num_envs, length = arch.total_num_envs // arch.num_actors, setup.config.system.rollout_length
    env, shardings = SplitSteps(setup.env).host, sebulba.rollout_shardings(setup.mesh)
    actors = {
        device: sebulba.ActorProgram(*(compiled[f"actor {index} {name}"] for name in sebulba.ActorProgram._fields))
        for index, device in enumerate(dict.fromkeys(setup.actor_devices))
    }

    def make_actors() -> list[Actor]:
        return [Actor(env, actors[device], device, num_envs, length, shardings) for device in setup.actor_devices]

    sizes = arch.pipeline_queue_size, setup.plan.steps_per_update, setup.config.logger.every_updates
    return Pipeline(make_actors, compiled["learn"], compiled["copy"], *sizes)


def check_memory(setup: RunSetup, compiled: Mapping[str, Any], state: LearnerState) -> None:
    """Refuse a run whose training or evaluation needs more memory than its devices have."""
    mesh, num_members = setup.mesh, setup.population.num_members
    sizes = size_keys(setup.config)
    # All devices of a member hold its best parameters, too.
    copies = mesh.size // mesh.shape[POPULATION_AXIS] if setup.config.keeps_best else 0
    best = copies * memory_estimate.bytes_per_device(state.shared, mesh)
    for name in (name for name in ("learn", "train") if name in compiled):
        waiting = 0
        if isinstance(setup.config.arch, SebulbaConfig):  # rollouts that wait while it learns from others
            (_, _, rollouts, *_), _ = compiled[name].args_info
            waiting = setup.config.arch.pipeline_queue_size * memory_estimate.bytes_per_device(rollouts, mesh)
        keys = (*sizes, "arch.pipeline_queue_size") if waiting else sizes
        memory_estimate.check(compiled[name], mesh, num_members, keys, best + waiting, setup.device_memory)
    if "evaluate" in compiled:
        resident, episodes = best + memory_estimate.bytes_per_device(state.shards, mesh), ("arch.num_eval_episodes",)
        memory_estimate.check(compiled["evaluate"], mesh, num_members, episodes, resident, setup.device_memory)


def size_keys(config: RunConfig) -> tuple[str, ...]:
    """Return the keys that determine the memory of a member while it trains."""
    buffer = config.system.find_part(BufferConfig)  # type: ignore[type-abstract]
    replay = "system.total_batch_size" if buffer is not None and buffer.only_data else "system.total_buffer_size"
    rollouts = () if isinstance(config.arch, OfflineConfig) else ("arch.total_num_envs", "system.rollout_length")
    return rollouts if buffer is None else (replay, *rollouts)


def describe(programs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what each program took to compile, as a table."""
    rows: list[tuple[str, ...]] = [("program", "trace", "lower", "compile", "all")]
    for name, seconds in programs.items():
        rows.append((name, *(f"{value:.1f} s" for value in (*seconds.values(), sum(seconds.values())))))
    return columns(rows)
