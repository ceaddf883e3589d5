"""A run from its configuration to its summary: the host's side of training."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hydra.core.hydra_config import HydraConfig
from jax.sharding import Mesh
from omegaconf import DictConfig, OmegaConf

from stoix_like.base_types import System, SystemSpec
from stoix_like.config import Build, RunConfig, default_run_dir, typed
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError
from stoix_like.loggers import Logger, RunInfo, check_available, make_logger
from stoix_like.networks.utils import build_networks
from stoix_like.runner import anakin, report
from stoix_like.runner.devices import make_mesh, set_compile_cache
from stoix_like.runner.evaluator import make_evaluator
from stoix_like.runner.plan import Plan, make_plan

ABSOLUTE_FACTOR = 10


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        eval_return: mean episode return of the last evaluation.
        run_dir: where the run was written.
        summary: what `summary.json` holds.
        history: one record per evaluation, the one at step 0 first; what `metrics.jsonl` holds.
    """

    eval_return: float
    run_dir: Path
    summary: dict[str, Any]
    history: list[dict[str, Any]]


class Prepared(NamedTuple):
    """A run whose every part has been made, and nothing compiled."""

    run: RunConfig
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
    copy: Callable[..., Any]
    seconds: float


class Best(NamedTuple):
    """The best parameters seen: a copy of the shared state that was evaluated, its return, and when."""

    shared: Any
    episode_return: float
    env_steps: int


def run_experiment(config: DictConfig, build: Build | None = None) -> float:
    """Train as the configuration says.

    Args:
        config: what hydra composed; it is not changed.
        build: the system's `build(config, spec)`; by default that of `system.module`.

    Returns:
        The mean episode return of the last evaluation, for sweepers to maximise.

    Raises:
        ConfigError: the configuration cannot be run.
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
    mesh = make_mesh(run.arch.num_devices)
    plan = make_plan(run, mesh.size)
    env = factory.make(run.env)
    return Prepared(
        run=run,
        mesh=mesh,
        plan=plan,
        env=env,
        eval_env=factory.make_eval(run.env),
        networks=build_networks(run.network, env.action_space, env.observation_space),
    )


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
    for name in ("metrics.jsonl", "summary.json"):
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
        ConfigError: the directory cannot be written or holds a run.
    """
    config = prepared.run
    check_run_dir(run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(OmegaConf.create(config.resolved), run_dir / "config.yaml")
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
    return Result(session.history[-1]["eval/episode_return_mean"], run_dir, summary, session.history)


def make_system(prepared: Prepared) -> System:
    """Build the system of a prepared run."""
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
    return run.build(run.system, spec)


class Session:
    """The host's loop around the compiled programs: windows of updates, an evaluation after each.

    Attributes:
        history: one record per evaluation.
        state: the learner state after the last window.
    """

    def __init__(self, prepared: Prepared, logger: Logger) -> None:
        self.history: list[dict[str, Any]] = []
        self.prepared = prepared
        self._logger = logger
        self._started = time.perf_counter()
        self._logged = 0
        self._updates = 0
        self._train_seconds = 0.0
        self._best: Best | None = None
        self._absolute: dict[str, Any] = {}

        train_key, self._eval_key = jax.random.split(jax.random.key(prepared.run.arch.seed))
        init_key, shards_key = jax.random.split(train_key)
        init_args = (init_key, jax.random.split(shards_key, prepared.plan.num_shards))
        self._compiled = compile_programs(prepared, init_args, self._eval_key)
        self.state = anakin.LearnerState(*self._compiled.init(*init_args))

    @property
    def env_steps(self) -> int:
        """Environment steps so far, warm-up included."""
        plan = self.prepared.plan
        return plan.warmup_steps + self._updates * plan.steps_per_update

    def train(self) -> None:
        """Spend the whole budget, then evaluate the best parameters once more."""
        self._record({"steps_per_second": None, **self._evaluate()})
        for window in self.prepared.plan.windows:
            trained = self._train_window(window)
            self._record({**trained, **self._evaluate()})
        self._log()
        if self.prepared.run.arch.absolute_metric:
            self._absolute = self._evaluate_best()

    def summary(self) -> dict[str, Any]:
        """What the run came to, for `summary.json`."""
        run, devices = self.prepared.run, self.prepared.mesh.devices
        trained_steps = self._updates * self.prepared.plan.steps_per_update
        return {
            "system": run.system_name,
            "environment": _environment_name(run),
            "seed": run.arch.seed,
            "env_steps": self.env_steps,
            "updates": self._updates,
            **{name: value for name, value in self.history[-1].items() if name.startswith("eval/")},
            **self._absolute,
            "compile_seconds": self._compiled.seconds,
            "steps_per_second": trained_steps / self._train_seconds,
            "wall_seconds": self._elapsed(),
            "notes": list(self.prepared.plan.notes),
            "versions": report.versions(),
            "devices": [f"{device.platform}:{device.device_kind}" for device in devices.flat],
        }

    def _train_window(self, num_updates: int) -> dict[str, Any]:
        start = time.perf_counter()
        self.state, metrics, episodes = self._compiled.train(self.state, np.int32(num_updates))
        # The device is busy with this window while the host logs the one before.
        self._log()
        metrics, episodes = jax.device_get((metrics, episodes))
        seconds = time.perf_counter() - start
        self._updates += num_updates
        self._train_seconds += seconds
        steps = num_updates * self.prepared.plan.steps_per_update
        return {"steps_per_second": steps / seconds, **report.training(metrics, episodes)}

    def _evaluate(self) -> dict[str, Any]:
        arch = self.prepared.run.arch
        key = jax.random.fold_in(self._eval_key, self._updates)
        episodes = jax.device_get(self._compiled.evaluate(self.state.shared, key))
        record = report.evaluation("eval", episodes, arch.num_eval_episodes)
        score = record["eval/episode_return_mean"]
        if arch.absolute_metric and (self._best is None or score > self._best.episode_return):
            # A copy of what was evaluated, since training donates its state.
            self._best = Best(self._compiled.copy(self.state.shared), score, self.env_steps)
        return record

    def _evaluate_best(self) -> dict[str, Any]:
        assert self._best is not None
        count = self.prepared.run.arch.num_eval_episodes
        # A number that no evaluation of the run has folded in.
        key = jax.random.fold_in(self._eval_key, self.prepared.plan.num_updates + 1)
        batches = [self._compiled.evaluate(self._best.shared, key) for key in jax.random.split(key, ABSOLUTE_FACTOR)]
        trimmed = [jax.tree.map(lambda leaf: leaf[:count], batch) for batch in jax.device_get(batches)]
        episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *trimmed)
        record = report.evaluation("absolute", episodes, ABSOLUTE_FACTOR * count)
        return {**record, "absolute/env_steps": self._best.env_steps}

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


def compile_programs(prepared: Prepared, init_args: tuple[Any, ...], eval_key: jax.Array) -> Compiled:
    """Compile everything a run needs, ahead of time, so that compiling and running are timed apart.

    Args:
        prepared: the run.
        init_args: arguments of the program's `init`.
        eval_key: an example of an evaluation's key.

    Returns:
        The programs.
    """
    start = time.perf_counter()
    run, plan, mesh = prepared.run, prepared.plan, prepared.mesh
    set_compile_cache(run.arch.compile_cache)
    system = make_system(prepared)
    program = anakin.make_program(
        system, prepared.env, mesh, plan.envs_per_shard, run.system.rollout_length, run.system.warmup_steps
    )
    evaluator = make_evaluator(system, prepared.eval_env, mesh, run.arch.num_eval_episodes)
    init = program.init.lower(*init_args).compile()
    # Shapes alone do not say where arrays lie, and a compiled program only takes those that lie as it expects.
    state = anakin.LearnerState(
        *jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            jax.eval_shape(program.init, *init_args),
            init.output_shardings,
        )
    )
    train = program.train.lower(state, np.int32(1)).compile()
    evaluate = evaluator.lower(state.shared, eval_key).compile()
    copy = jax.jit(partial(jax.tree.map, jnp.copy)).lower(state.shared).compile()
    return Compiled(init, train, evaluate, copy, time.perf_counter() - start)


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
    )


def _environment_name(run: RunConfig) -> str:
    return f"{run.env.env_name}/{run.env.scenario.name}"
