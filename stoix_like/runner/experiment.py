"""A run from its configuration to its summary: the host's side of training."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
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
from stoix_like.loggers import Logger, RunInfo, check_available, make_logger, plain
from stoix_like.networks.utils import build_networks
from stoix_like.runner import anakin
from stoix_like.runner.devices import make_mesh, set_compile_cache
from stoix_like.runner.evaluator import Episodes, make_evaluator
from stoix_like.runner.plan import Plan, make_plan

ABSOLUTE_FACTOR = 10
VERSIONS = ("stoix_like", "jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "hydra-core")


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


class Progress(NamedTuple):
    """How far a run has come, counted on the host."""

    updates: int = 0
    env_steps: int = 0
    train_seconds: float = 0.0


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
        networks=build_networks(run.network, env.action_space),
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
    if not present.is_dir() or not os.access(present, os.W_OK | os.X_OK):
        raise ConfigError(f"hydra.run.dir={run_dir} cannot be written: {present} is no directory you can write to")
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
        history, summary = _train(prepared, logger)
        _write_json(run_dir / "summary.json", summary)
        logger.finish(summary)
    finally:
        logger.close()
    return Result(history[-1]["eval/episode_return_mean"], run_dir, summary, history)


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


def _train(prepared: Prepared, logger: Logger) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    started = time.perf_counter()
    run, plan = prepared.run, prepared.plan
    train_key, eval_key = jax.random.split(jax.random.key(run.arch.seed))
    init_key, shards_key = jax.random.split(train_key)
    init_args = (init_key, jax.random.split(shards_key, plan.num_shards))
    compiled = _compile(prepared, init_args, eval_key)

    state = anakin.LearnerState(*compiled.init(*init_args))
    progress = Progress(env_steps=plan.warmup_steps)
    history: list[dict[str, Any]] = []
    best_return, best, best_steps = -np.inf, state.shared, 0

    def evaluate(shared: Any) -> dict[str, Any]:
        nonlocal best_return, best, best_steps
        key = jax.random.fold_in(eval_key, progress.updates)
        record = _evaluation("eval", jax.device_get(compiled.evaluate(shared, key)), run.arch.num_eval_episodes)
        if run.arch.absolute_metric and record["eval/episode_return_mean"] > best_return:
            # A copy, since training donates its state.
            best_return, best, best_steps = record["eval/episode_return_mean"], compiled.copy(shared), progress.env_steps
        return record

    def record(metrics: dict[str, Any]) -> dict[str, Any]:
        wall = time.perf_counter() - started
        return {"env_steps": progress.env_steps, "updates": progress.updates, "wall_seconds": wall, **metrics}

    history.append(record({"steps_per_second": None, **evaluate(state.shared)}))
    for window in plan.windows:
        start = time.perf_counter()
        state, metrics, episodes = compiled.train(state, np.int32(window))
        # The device is busy with this window while the host logs the one before.
        logger.log(history[-1])
        metrics, episodes = jax.device_get((metrics, episodes))
        seconds = time.perf_counter() - start
        steps = window * plan.steps_per_update
        progress = Progress(
            progress.updates + window, progress.env_steps + steps, progress.train_seconds + seconds
        )
        train = {f"train/{name}": float(value) for name, value in metrics.items()}
        history.append(
            record({"steps_per_second": steps / seconds, **train, **_episodes(episodes), **evaluate(state.shared)})
        )
    logger.log(history[-1])

    absolute = {}
    if run.arch.absolute_metric:
        absolute = _absolute(compiled, best, jax.random.fold_in(eval_key, plan.num_updates + 1), run)
        absolute["absolute/env_steps"] = best_steps
    wall = time.perf_counter() - started
    return history, _summary(prepared, history[-1], absolute, progress, compiled.seconds, wall)


def _compile(prepared: Prepared, init_args: tuple[Any, ...], eval_key: jax.Array) -> Compiled:
    start = time.perf_counter()
    run, plan, mesh = prepared.run, prepared.plan, prepared.mesh
    set_compile_cache(run.arch.compile_cache)
    system = make_system(prepared)
    program = anakin.make_program(
        system, prepared.env, mesh, plan.envs_per_shard, run.system.rollout_length, run.system.warmup_steps
    )
    evaluator = make_evaluator(system, prepared.eval_env, mesh, run.arch.num_eval_episodes)
    init = program.init.lower(*init_args).compile()
    # Shapes alone say nothing of where arrays lie, and a compiled program takes only those that lie as it expects.
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


def _absolute(compiled: Compiled, best: Any, key: jax.Array, run: RunConfig) -> dict[str, Any]:
    batches = [compiled.evaluate(best, batch_key) for batch_key in jax.random.split(key, ABSOLUTE_FACTOR)]
    trimmed = [
        jax.tree.map(lambda leaf: leaf[: run.arch.num_eval_episodes], batch) for batch in jax.device_get(batches)
    ]
    episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *trimmed)
    return _evaluation("absolute", episodes, ABSOLUTE_FACTOR * run.arch.num_eval_episodes)


def _evaluation(prefix: str, episodes: Episodes, count: int) -> dict[str, Any]:
    """Statistics of the first `count` episodes; there may be more, as many on each device."""
    returns, lengths = np.float64(episodes.returns[:count]), episodes.lengths[:count]
    return {
        f"{prefix}/episode_return_mean": float(returns.mean()),
        f"{prefix}/episode_return_std": float(returns.std()),
        f"{prefix}/episode_return_min": float(returns.min()),
        f"{prefix}/episode_return_max": float(returns.max()),
        f"{prefix}/episode_length_mean": float(lengths.mean()),
    }


def _episodes(sums: anakin.EpisodeSums) -> dict[str, Any]:
    """Statistics of the episodes that finished while training; None where none did."""
    count = int(sums.count)
    values = {
        "episode_return_mean": sums.return_sum / max(count, 1),
        "episode_return_min": sums.return_min,
        "episode_return_max": sums.return_max,
        "episode_length_mean": sums.length_sum / max(count, 1),
    }
    return {"train/episodes": count} | {
        f"train/{name}": float(value) if count else None for name, value in values.items()
    }


def _summary(
    prepared: Prepared,
    last: dict[str, Any],
    absolute: dict[str, Any],
    progress: Progress,
    compile_seconds: float,
    wall_seconds: float,
) -> dict[str, Any]:
    run, plan = prepared.run, prepared.plan
    return {
        "system": run.system_name,
        "environment": _environment_name(run),
        "seed": run.arch.seed,
        "env_steps": progress.env_steps,
        "updates": progress.updates,
        **{name: value for name, value in last.items() if name.startswith("eval/")},
        **absolute,
        "compile_seconds": compile_seconds,
        "steps_per_second": (progress.env_steps - plan.warmup_steps) / progress.train_seconds,
        "wall_seconds": wall_seconds,
        "notes": list(plan.notes),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in VERSIONS},
        "devices": [f"{device.platform}:{device.device_kind}" for device in prepared.mesh.devices.flat],
    }


def _info(prepared: Prepared, run_dir: Path) -> RunInfo:
    run, plan, devices = prepared.run, prepared.plan, prepared.mesh.devices
    return RunInfo(
        run_dir=run_dir,
        system=run.system_name,
        environment=_environment_name(run),
        seed=run.arch.seed,
        num_updates=plan.num_updates,
        total_timesteps=run.arch.total_timesteps,
        num_evaluations=len(plan.windows) + 1,
        config=run.resolved,
        notes=plan.notes,
        devices=f"{devices.size} x {devices.flat[0].device_kind}",
    )


def _environment_name(run: RunConfig) -> str:
    return f"{run.env.env_name}/{run.env.scenario.name}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_json(path: Path, values: dict[str, Any]) -> None:
    """Write whole or not at all."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(plain(values), indent=2, allow_nan=False) + "\n")
    scratch.replace(path)
