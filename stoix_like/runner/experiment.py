"""A run from its configuration to its summary: the host's side of training."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hydra.core.hydra_config import HydraConfig
from jax.sharding import Mesh
from omegaconf import DictConfig, OmegaConf

from stoix_like.base_types import Actor, System, SystemSpec
from stoix_like.config import Build, RunConfig, default_run_dir, typed
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError, TrainingError
from stoix_like.loggers import Logger, RunInfo, check_available, make_logger
from stoix_like.networks.utils import build_networks
from stoix_like.runner import anakin, memory, report
from stoix_like.runner.devices import DEVICE_AXIS, find_devices, make_mesh, set_compile_cache
from stoix_like.runner.evaluator import make_evaluator
from stoix_like.runner.plan import Plan, make_plan, spread_members
from stoix_like.runner.population import Population, make_population

ABSOLUTE_FACTOR = 10


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        eval_return: mean episode return of the last evaluation; of a population, the interquartile mean over members.
        run_dir: where the run was written.
        summary: what `summary.json` holds.
        history: one record per evaluation, the one at step 0 first; what `metrics.jsonl` holds.
        members: one record per member of the population, ready for a data frame.
    """

    eval_return: float
    run_dir: Path
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    members: list[dict[str, Any]]


class Prepared(NamedTuple):
    """A run whose every part has been made, and nothing compiled."""

    run: RunConfig
    population: Population
    mesh: Mesh
    plan: Plan
    env: VectorEnvironment
    eval_env: VectorEnvironment
    networks: SimpleNamespace


class Compiled(NamedTuple):
    """The run's compiled programs, and how long compiling took."""

    init: Callable[..., Any]
    train: Callable[..., Any]
    evaluate: Callable[..., Any]
    select: Callable[..., Any]
    seconds: float


class Best(NamedTuple):
    """The best parameters seen, by member: copies of what was evaluated, its return, and when it was."""

    shared: Any
    episode_return: np.ndarray
    env_steps: np.ndarray


def run_experiment(config: DictConfig, build: Build | None = None) -> float:
    """Train as the configuration says.

    Args:
        config: what hydra composed; it is not changed.
        build: the system's `build(config, spec)`; by default that of `system.module`.

    Returns:
        The mean episode return of the last evaluation, for sweepers to maximise; of a population, the interquartile
        mean of its members'.

    Raises:
        ConfigError: the configuration cannot be run.
        TrainingError: a metric or a parameter was no finite number any more.
    """
    under_hydra = HydraConfig.initialized()
    run_dir = Path(HydraConfig.get().runtime.output_dir) if under_hydra else default_run_dir(config)
    return run(prepare(typed(config, build)), run_dir).eval_return


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
    env = factory.make(run.env)
    prepared = Prepared(
        run=run,
        population=population,
        mesh=mesh,
        plan=plan._replace(notes=(*plan.notes, *notes)),
        env=env,
        eval_env=factory.make_eval(run.env),
        networks=build_networks(run.network, env.action_space, env.observation_space),
    )
    _check_networks(prepared)
    return prepared


def _check_networks(prepared: Prepared) -> None:
    """Trace the agent's beginning and its first action, where networks that do not fit show."""
    env, size = prepared.env, prepared.plan.envs_per_shard

    def first_action(key: jax.Array) -> Any:
        system = make_system(prepared, {})
        env_state, timestep = env.reset(jax.random.split(key, size))
        agent = system.init(key, timestep)
        return system.eval_act(agent.shared, Actor(env_state, timestep, system.init_carry(size)), key)

    try:
        jax.eval_shape(first_action, jax.random.key(0))
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError) or os.environ.get("HYDRA_FULL_ERROR"):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"system={prepared.run.system_name} cannot be built with this network: {reason} (HYDRA_FULL_ERROR=1 shows"
            " where)"
        ) from error


def check_run_dir(run_dir: Path) -> None:
    """Refuse a run directory that cannot be written, or that holds a run already.

    Args:
        run_dir: need not exist yet.

    Raises:
        ConfigError: naming the directory.
    """
    present = run_dir.absolute()
    while not present.exists() and present != present.parent:
        present = present.parent
    try:
        # Tried for real: permissions alone do not tell of read-only and special file systems.
        tempfile.TemporaryDirectory(dir=present).cleanup()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"hydra.run.dir={run_dir} cannot be written: {present}: {reason}") from error
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "multirun.yaml"):
        if (run_dir / name).exists():
            raise ConfigError(f"hydra.run.dir={run_dir} already holds a run ({name}): choose another directory")


def run(prepared: Prepared, run_dir: Path) -> Result:
    """Train, evaluate and write a prepared run.

    Args:
        prepared: from `prepare`.
        run_dir: the directory to write to; made if needed.

    Returns:
        What the run came to.

    Raises:
        ConfigError: the directory cannot be written or holds a run, or the run does not fit into memory.
        TrainingError: a metric or a parameter was no finite number any more.
    """
    config, run_dir = prepared.run, run_dir.absolute()
    check_run_dir(run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # Only one process can make this file: two runs never share a directory.
        with (run_dir / "config.yaml").open("x") as file:
            OmegaConf.save(OmegaConf.create(config.resolved), file)
    except OSError as error:
        raise ConfigError(f"hydra.run.dir={run_dir} cannot be written: {error}") from error
    logger = make_logger(config.logger, run_dir)
    try:
        logger.start(_info(prepared, run_dir))
        session = Session(prepared, logger)
        session.train()
        summary = session.summary()
        report.write_json(run_dir / "summary.json", summary)
        logger.finish(summary)
    finally:
        logger.close()
    return Result(session.score, run_dir, summary, session.history, session.members())


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


class Session:
    """The host's loop around the compiled programs: windows of updates, an evaluation after each.

    Attributes:
        prepared: the run.
        history: one record per evaluation.
        state: the learner state after the last window.
    """

    def __init__(self, prepared: Prepared, logger: Logger) -> None:
        self.prepared = prepared
        self.history: list[dict[str, Any]] = []
        self._logger = logger
        self._started = time.perf_counter()
        self._logged = 0
        self._updates = 0
        self._train_seconds = 0.0
        self._best: Best | None = None
        self._absolute: dict[str, Any] = {}
        self._failures: dict[int, str] = {}

        keys = _keys(prepared)
        self._eval_key = keys.evaluation
        self._hyperparams = _hyperparams(prepared.population)
        self._compiled = compile_programs(prepared, keys, self._hyperparams)
        self.state = self._compiled.init(self._hyperparams, keys.agent, keys.shards)

    @property
    def env_steps(self) -> int:
        """Environment steps of each member so far, warm-up included."""
        plan = self.prepared.plan
        return plan.warmup_steps + self._updates * plan.steps_per_update

    @property
    def score(self) -> float:
        """The last evaluation in one number."""
        last = self.history[-1]
        return last["eval/episode_return_mean"] if self._alone else last["eval/episode_return_iqm"]

    @property
    def _alone(self) -> bool:
        return self.prepared.population.size == 1

    def train(self) -> None:
        """Spend the whole budget, then evaluate the best parameters once more."""
        self._record({"steps_per_second": None, **self._evaluate()})
        for window in self.prepared.plan.windows:
            trained = self._train_window(window)
            self._record({**trained, **self._evaluate()})
        self._log()
        if self.prepared.run.arch.absolute_metric:
            self._absolute = self._evaluate_best()

    def members(self) -> list[dict[str, Any]]:
        """One record per member: its seed, its hyperparameters, and what it came to."""
        population = self.prepared.population
        numbers = {name: value for name, value in self.history[-1].items() if name.startswith("eval/")} | self._absolute
        return [
            {
                "member": member,
                "seed": population.seeds[member],
                **population.of(member),
                **{
                    name: value[member] if isinstance(value, list) else value
                    for name, value in numbers.items()
                    if isinstance(value, list) or self._alone
                },
                "failure": self._failures.get(member),
            }
            for member in range(population.size)
        ]

    def summary(self) -> dict[str, Any]:
        """What the run came to, for `summary.json`."""
        run, devices = self.prepared.run, self.prepared.mesh.devices
        trained_steps = self._updates * self.prepared.plan.steps_per_update * self.prepared.population.size
        return {
            "system": run.system_name,
            "environment": _environment_name(run),
            "seed": run.arch.seed,
            "env_steps": self.env_steps,
            "updates": self._updates,
            **{name: value for name, value in self.history[-1].items() if name.startswith(("eval/", "population/"))},
            **self._absolute,
            **({} if self._alone else self._population_summary()),
            "compile_seconds": self._compiled.seconds,
            "steps_per_second": trained_steps / self._train_seconds,
            "wall_seconds": self._elapsed(),
            "notes": list(self.prepared.plan.notes),
            "versions": report.versions(),
            "devices": [f"{device.platform}:{device.device_kind}" for device in devices.flat],
        }

    def _population_summary(self) -> dict[str, Any]:
        members = self.members()
        return {
            "population/size": len(members),
            "population/varied": list(self.prepared.population.hyperparams),
            "population/best": members[self.history[-1]["population/best_member"]],
            "population/members": members,
        }

    def _train_window(self, num_updates: int) -> dict[str, Any]:
        start = time.perf_counter()
        self.state, window = self._compiled.train(self.state, self._hyperparams, np.int32(num_updates))
        # The device is busy with this window while the host logs the one before.
        self._log()
        window = jax.device_get(window)
        seconds = time.perf_counter() - start
        self._check_health(window, num_updates)
        self._updates += num_updates
        self._train_seconds += seconds
        steps = num_updates * self.prepared.plan.steps_per_update * self.prepared.population.size
        return {"steps_per_second": steps / seconds, **report.training(window)}

    def _check_health(self, window: anakin.Window, num_updates: int) -> None:
        """Report members that went bad in a window; a run without a population ends there."""
        if self.prepared.run.arch.on_nan == "ignore":
            return
        for member, healthy_updates in enumerate(np.atleast_1d(window.healthy_updates)):
            if healthy_updates == num_updates or member in self._failures:
                continue
            bad = [name for name, flags in window.bad_metrics.items() if np.atleast_1d(flags)[member]]
            what = f"train/{bad[0]} was not finite" if bad else "a parameter was NaN"
            failure = f"{what} in update {self._updates + int(healthy_updates) + 1}"
            if self._alone:
                raise TrainingError(f"training went bad: {failure}; arch.on_nan=ignore goes on regardless")
            self._failures[member] = failure
            print(f"member {member} went bad and is frozen: {failure}", file=sys.stderr)

    def _evaluate(self) -> dict[str, Any]:
        arch = self.prepared.run.arch
        episodes = self._play(self.state.shared, self._updates)
        record = report.evaluation("eval", episodes, arch.num_eval_episodes)
        scores = np.asarray(record["eval/episode_return_mean"])
        if arch.absolute_metric:
            self._keep_best(scores)
        return record if self._alone else {**record, **self._aggregate("eval", scores)}

    def _keep_best(self, scores: np.ndarray) -> None:
        """Keep copies of the members that were never better, since training donates its state."""
        steps = np.full(scores.shape, self.env_steps)
        best = self._best or Best(self.state.shared, np.full(scores.shape, -np.inf), steps)
        better = scores > best.episode_return
        if self._best is not None and not better.any():
            return
        self._best = Best(
            self._compiled.select(better, self.state.shared, best.shared),
            np.where(better, scores, best.episode_return),
            np.where(better, steps, best.env_steps),
        )

    def _evaluate_best(self) -> dict[str, Any]:
        assert self._best is not None
        count = self.prepared.run.arch.num_eval_episodes
        # Numbers that no evaluation of the run has folded in.
        first = self.prepared.plan.num_updates + 1
        batches = [self._play(self._best.shared, first + batch) for batch in range(ABSOLUTE_FACTOR)]
        trimmed = [jax.tree.map(lambda leaf: leaf[..., :count], batch) for batch in batches]
        episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1), *trimmed)
        record = report.evaluation("absolute", episodes, ABSOLUTE_FACTOR * count)
        record["absolute/env_steps"] = self._best.env_steps.tolist()
        if self._alone:
            return record
        return {**record, **self._aggregate("absolute", np.asarray(record["absolute/episode_return_mean"]))}

    def _play(self, shared: Any, number: int) -> Any:
        """Evaluate on start states of their own for every `number`."""
        key = _fold_in(self._eval_key, number)
        return jax.device_get(self._compiled.evaluate(shared, self._hyperparams, key))

    def _aggregate(self, prefix: str, scores: np.ndarray) -> dict[str, Any]:
        population = self.prepared.population
        statistics = report.aggregate(scores.tolist(), population.strata)
        named = {f"{prefix}/episode_return_{name}": value for name, value in statistics.items()}
        if prefix != "eval":
            return named
        return {
            **named,
            "population/best_member": int(np.argmax(scores)),
            "population/worst_member": int(np.argmin(scores)),
            "population/failed": sorted(self._failures),
            **{f"hyperparams/{name}": list(values) for name, values in population.hyperparams.items()},
        }

    def _record(self, numbers: dict[str, Any]) -> None:
        self.history.append(
            {
                "env_steps": self.env_steps,
                "updates": self._updates,
                "wall_seconds": self._elapsed(),
                **numbers,
            }
        )

    def _log(self) -> None:
        """Hand over what has been recorded since the last time."""
        for record in self.history[self._logged :]:
            self._logger.log(record)
        self._logged = len(self.history)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started


class Keys(NamedTuple):
    """The keys that a run begins with: for the agent, for each shard `[num_shards]`, and for evaluation."""

    agent: jax.Array
    shards: jax.Array
    evaluation: jax.Array


def _keys(prepared: Prepared) -> Keys:
    """A member of a population begins with the keys of a run of its own seed; a lone one has no population axis."""

    def split(key: jax.Array) -> Keys:
        train_key, eval_key = jax.random.split(key)
        agent_key, shards_key = jax.random.split(train_key)
        return Keys(agent_key, jax.random.split(shards_key, prepared.plan.num_shards), eval_key)

    seeds = prepared.population.seeds
    if len(seeds) == 1:
        return split(jax.random.key(seeds[0]))
    return jax.vmap(split)(jnp.stack([jax.random.key(seed) for seed in seeds]))


def _fold_in(key: jax.Array, number: int) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (0, None))(key, number) if key.ndim else jax.random.fold_in(key, number)


def _hyperparams(population: Population) -> dict[str, Any]:
    """Traced hyperparameters by member; a lone member has its own as plain numbers in its configuration."""
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

    layout = anakin.Layout(size, plan.envs_per_shard, run.system.rollout_length, run.system.warmup_steps)
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
    train = program.train.lower(state, hyperparams, np.int32(1)).compile()
    memory.check(train, mesh, size)
    evaluate = evaluator.lower(state.shared, hyperparams, keys.evaluation).compile()
    select = jax.jit(_select).lower(np.zeros(() if size == 1 else (size,), bool), state.shared, state.shared).compile()
    return Compiled(init, train, evaluate, select, time.perf_counter() - start)


def _select(better: jax.Array, candidate: Any, best: Any) -> Any:
    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)

    return jax.tree.map(pick, candidate, best)


def _info(prepared: Prepared, run_dir: Path) -> RunInfo:
    run, plan, devices = prepared.run, prepared.plan, prepared.mesh.devices
    return RunInfo(
        run_dir=run_dir,
        system=run.system_name,
        environment=_environment_name(run),
        seed=run.arch.seed,
        num_updates=plan.num_updates,
        total_timesteps=plan.warmup_steps + plan.num_updates * plan.steps_per_update,
        num_evaluations=len(plan.windows) + 1,
        config=run.resolved,
        notes=plan.notes,
        devices=f"{devices.size} x {devices.flat[0].device_kind}",
        members=prepared.population.size,
    )


def _environment_name(run: RunConfig) -> str:
    return f"{run.env.env_name}/{run.env.scenario.name}"
