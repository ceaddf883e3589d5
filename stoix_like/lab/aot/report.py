"""Reports of what a run needs on devices that are not in the machine, as text."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from stoix_like.arch_config import OfflineConfig, SebulbaConfig
from stoix_like.architectures.axes import POPULATION_AXIS
from stoix_like.architectures.types import LearnerState
from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError
from stoix_like.lab.aot.kernels import Body, read_program
from stoix_like.lab.aot.targets import Target
from stoix_like.lab.aot.topology import set_up_for
from stoix_like.loggers.formats import columns
from stoix_like.run.host.devices import DETERMINISTIC_OPTIONS
from stoix_like.run.programs.compile import check_memory, size_keys
from stoix_like.run.programs.functions import input_shapes, run_programs
from stoix_like.run.set_up import memory_estimate
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.utils.replay import BufferConfig

LAUNCH = 1.5
"""Microseconds that a launch takes on a GPU: beyond the predicted kernels, on an H100, see `docs/benchmarks.md`."""
_MOST_EXPENSIVE = 5
# Bodies of loops, by the scope that the loop is traced in.
_BODIES = {
    "rollout": "step of the rollout",
    "returns": "step of the returns",
    "epoch": "epoch",
    "minibatch": "minibatch",
    "evaluate": "step of the evaluation",
    "branch": "branch of a condition, at most",
    "update": "loop",
    "": "loop",
}


class CompiledProgram(NamedTuple):
    """A program that was compiled for devices that are not in the machine."""

    compiled: Any  # jax's compiled program
    body: Body  # what it runs


class Report(NamedTuple):
    """Report of a run."""

    target: Target  # the devices
    setup: RunSetup  # the run, set up for them
    programs: Mapping[str, CompiledProgram]  # by name
    state: LearnerState  # shapes of the learner state

    @property
    def training(self) -> str:
        """The name of the program that updates."""
        return "learn" if "learn" in self.programs else "train"

    @property
    def update(self) -> Body:
        """One update: the body of the loop of `train`; all of `learn`."""
        body = self.programs[self.training].body
        # With diagnostics, the updates are a loop within one of two rounds.
        loops = (*body.loops, *body.all()) if self.training == "train" else ()
        return next((loop for loop in loops if loop.trips is None), body)

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates, or gradient steps of an update, of all members and devices."""
        return self.setup.plan.steps_per_update * self.setup.population.num_members

    @property
    def step(self) -> str:
        """Kind of steps that `steps_per_update` counts."""
        return "gradient step" if isinstance(self.setup.config.arch, OfflineConfig) else "environment step"

    def check(self) -> None:
        """Refuse a run that does not fit."""
        compiled = {name: program.compiled for name, program in self.programs.items()}
        try:
            check_memory(self.setup, compiled, self.state)
        except ConfigError as error:
            raise ConfigError(f"--for {self.target.name}: {error}") from error

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        target, setup, update = self.target, self.setup, self.update
        usable = f"{memory_estimate.gib(target.usable)} of {memory_estimate.gib(target.memory)} for a run"
        if target.usable == target.memory:
            usable = f"{memory_estimate.gib(target.memory)} for a run"
        yield f"{setup.mesh.size} × {target.title}, {usable}; all that follows is per device"
        yield from columns([("program", "arguments", "temporary", "output", "total", "of the memory"), *self._memory()])
        if self.setup.env.on_host:
            yield "evaluate calls environments on the host, and was not compiled"
        yield ""
        bodies = [*_with_names(update, "update", setup.config.system.rollout_length)]
        yield from columns([("loop body", "times", "kernels", "collectives", "host transfers"), *map(_row, bodies)])
        whose = " of the learner" if self.training == "learn" else ""
        waiting = sum(body.transfers for body in update.all())
        if any(body.trips is None for _, body in bodies[1:]):
            yield "loops marked ? end by a condition on data, and count once: launches, bytes and time are lower bounds"
        yield (
            f"{update.launches:,} launches per update{whose}, {update.launches / self.steps_per_update:.3g} per"
            f" {self.step}; {waiting or 'no'} host transfer{'' if waiting == 1 else 's'}"
        )
        yield (
            f"{update.products:.3g} floating-point operations of products of matrices, and"
            f" {memory_estimate.gib(update.bytes_accessed)} read and written per update"
        )

        yield from self._prediction()
        yield from self._room()

    def _prediction(self) -> Iterator[str]:
        """Yield the predicted time of an update and its most expensive kernels, if the compiler predicts any."""
        update = self.update
        if not update.cost:
            return
        yield ""
        if self.target.platform == "tpu":
            yield f"predicted: {update.cost:,.0f} cycles of kernels per update"
        else:
            launching = LAUNCH * update.launches
            total = update.cost + launching
            yield (
                f"predicted: {_milliseconds(total)} ms per update, {_milliseconds(update.cost)} of kernels and"
                f" {_milliseconds(launching)} of launches at {LAUNCH} µs;"
                f" {self.steps_per_update / total * 1e6:.3g} {self.step}s per second"
            )
        cost: defaultdict[str, float] = defaultdict(float)
        runs = Counter[str]()
        for times, kernel in update.repeated():
            cost[kernel.origin] += kernel.cost
            runs[kernel.origin] += times
        most = sorted(cost, key=lambda origin: -cost[origin])[:_MOST_EXPENSIVE]
        rows = [
            (f"{cost[origin] / update.cost:.1%}", f"{runs[origin]:,}", origin.removeprefix("update/"))
            for origin in most
        ]
        yield from columns([("of the kernels", "launches", "most expensive origins"), *rows])

    def _room(self) -> Iterator[str]:
        """Yield how many environments or members fit, as far as memory tells."""
        arch, members = self.setup.config.arch, self.setup.population.num_members
        if isinstance(arch, SebulbaConfig):
            return
        needed = memory_estimate.total(self.programs[self.training].compiled.memory_analysis())
        usable, per_device = self.target.usable, members / self.setup.mesh.shape[POPULATION_AXIS]
        # All members read the same data.
        data = _shard_bytes(input_shapes(self.setup))
        most = max(0, int((usable - data) / max(1.0, (needed - data) / per_device)))
        most *= self.setup.mesh.shape[POPULATION_AXIS]
        if isinstance(arch, OfflineConfig):
            yield f"memory for about {most:,} members (arch.population.size)"
            return
        # The replay buffer has a size of its own; whatever else there is grows with the environments.
        buffer = self.setup.config.system.find_part(BufferConfig)  # type: ignore[type-abstract]
        fixed = _shard_bytes(self.state.shared) + (_shard_bytes(self.state.shards.local) if buffer else 0)
        num_envs = _rounded(max(0.0, arch.total_num_envs * (usable - fixed) / max(1, needed - fixed)))
        yield (
            f"memory for about {num_envs:,} environments (arch.total_num_envs), or for {most:,} members"
            f" (arch.population.size) of {arch.total_num_envs:,}"
        )

    def _memory(self) -> Iterator[tuple[str, ...]]:
        for name, program in self.programs.items():
            analysis = program.compiled.memory_analysis()
            total = memory_estimate.total(analysis)
            parts = (analysis.argument_size_in_bytes, analysis.temp_size_in_bytes, analysis.output_size_in_bytes, total)
            yield name, *map(_bytes, parts), f"{total / self.target.usable:.1%}"


def compile_for(config: RunConfig, target: Target) -> Report:
    """Compile every program of a run for devices that are not in the machine."""
    programs, state = {}, None
    options: Any = DETERMINISTIC_OPTIONS if config.arch.deterministic else None
    with contextlib.closing(set_up_for(config, target)) as setup:
        if setup.steps_on_host and not isinstance(config.arch, SebulbaConfig):
            raise ConfigError(
                f"--for {target.name}: {config.environment_name} steps on the host, which its programs call, so they"
                " compile only where they run: use arch=sebulba, or environments that run on the accelerator"
            )
        for name, function, args in run_programs(setup):
            if name == "evaluate" and setup.env.on_host:
                continue
            try:
                compiled = function.lower(*args).compile(compiler_options=options)
            except jax.errors.JaxRuntimeError as error:
                raise _refusal(error, setup, target, name) from error
            programs[name] = CompiledProgram(compiled, read_program(compiled.as_text(), target.rates))
            state = args[0] if name in ("train", "learn") else state
    assert state is not None
    return Report(target, setup, programs, state)


def _refusal(error: Exception, setup: RunSetup, target: Target, name: str) -> Exception:
    """Return what to raise where the compiler refuses a program."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text:
        return error
    keys = ["arch.num_eval_episodes"] if name == "evaluate" else [*size_keys(setup.config)]
    if setup.population.num_members > 1:
        keys.insert(0, "arch.population.size")
    return ConfigError(
        f"--for {target.name}: {name} needs more than {memory_estimate.gib(target.usable)} per device: use a smaller"
        f" {' or '.join(keys)}"
    )


def _shard_bytes(tree: Any) -> int:
    """Return the bytes of arrays on one device, from their shapes and shardings."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.0f}" if microseconds >= 1e5 else f"{microseconds / 1e3:.3g}"


def _rounded(number: float) -> int:
    """Round down to two digits."""
    unit = 10 ** max(0, len(str(int(number))) - 2)
    return int(number) // unit * unit


def _with_names(body: Body, name: str, rollout_length: int, depth: int = 0) -> Iterator[tuple[str, Body]]:
    """Yield the bodies of a program with their names, indented by their depth."""
    yield "  " * depth + name, body
    for loop in body.loops:
        inner = _BODIES.get(loop.label, loop.label)
        # An accelerator may take several steps in each pass.
        if loop.label == "rollout" and loop.trips and rollout_length > loop.trips:
            inner = f"{rollout_length // loop.trips} steps of the rollout"
        yield from _with_names(loop, inner, rollout_length, depth + 1)


def _row(named: tuple[str, Body]) -> tuple[str, ...]:
    name, body = named
    times = "1" if name == "update" else "?" if body.trips is None else f"{body.trips:,}"
    return name, times, f"{body.kernels:,}", f"{body.collectives:,}", f"{body.transfers:,}"


def _bytes(number: int) -> str:
    return memory_estimate.gib(number) if number >= 2**20 else f"{number / 2**10:.3g} KiB"
