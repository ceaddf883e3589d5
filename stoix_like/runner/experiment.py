"""A run from its configuration to its summary: the host's side of training."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import filelock
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from stoix_like.config import Build, default_run_dir, typed
from stoix_like.errors import ConfigError
from stoix_like.loggers import RunInfo, make_logger
from stoix_like.runner import checkpoint, report, saved
from stoix_like.runner.prepared import Prepared, environment_name, prepare
from stoix_like.runner.session import Session

T = TypeVar("T")
SUMMARY = "summary.json"


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
            raise ConfigError(
                f"hydra.run.dir={run_dir} already holds a run ({name}): choose another directory, or go on"
                f" with it: stoix-like resume {run_dir}"
            )


def run(prepared: Prepared, run_dir: Path) -> Result:
    """Train, evaluate and write a prepared run.

    Args:
        prepared: from `prepare`.
        run_dir: the directory to write to; made if needed. Where `arch.resume_from` names a run, it goes on there.

    Returns:
        What the run came to.

    Raises:
        ConfigError: the directory cannot be written or holds a run, or the run does not fit into memory.
        TrainingError: a metric or a parameter was no finite number any more.
    """
    if prepared.run.arch.resume_from is not None:
        return _go_on(prepared, Path(prepared.run.arch.resume_from).absolute())
    run_dir = run_dir.absolute()
    check_run_dir(run_dir)
    with _written(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    with _locked(run_dir):
        # Only one process can make this file: two runs never share a directory.
        with _written(run_dir), (run_dir / saved.CONFIG).open("x") as file:
            OmegaConf.save(OmegaConf.create(prepared.run.resolved), file)
        return _train(prepared, run_dir, resuming=False)


def resume(run_dir: Path, overrides: Sequence[str] = (), trust: bool = False) -> Result:
    """Go on with a run that was stopped or killed, or that has a larger budget now, in its own directory.

    Args:
        run_dir: the directory of the run.
        overrides: of what may change: the budget, logging, checkpoints.
        trust: run what the files of the run name, wherever it comes from.

    Returns:
        What the run came to.

    Raises:
        ConfigError: there is no such run, another process is at it, or its configuration was changed.
        TrainingError: a metric or a parameter was no finite number any more.
    """
    run_dir = run_dir.absolute()
    return _go_on(prepare(typed(saved.read_config(run_dir, overrides, trust))), run_dir)


def _go_on(prepared: Prepared, run_dir: Path) -> Result:
    """Restore the newest whole checkpoint of a run, and spend what is left of the budget."""
    saved.check_is_run(run_dir)
    with _locked(run_dir):
        session = _newest_whole(run_dir, lambda step: checkpoint.read_session(run_dir, step))
        summary = _read_summary(run_dir)
        if session is not None:
            saved.check_unchanged(prepared, session)
            if session["progress"]["updates"] == prepared.plan.num_updates and summary:
                print(f"{run_dir} is complete; with a larger budget, arch.total_timesteps=…, it would go on")
                return _complete(prepared, run_dir, session["progress"], summary)
        else:
            saved.check_same_config(prepared, saved.plain_config(run_dir))
            if summary:
                raise ConfigError(f"{run_dir} is complete, and holds no checkpoint from which it could go on")
            print(f"{run_dir} holds no checkpoint yet: the run begins anew", file=sys.stderr)
        with _written(run_dir):
            (run_dir / SUMMARY).unlink(missing_ok=True)
            report.write_text(run_dir / saved.CONFIG, OmegaConf.to_yaml(OmegaConf.create(prepared.run.resolved)))
        return _train(prepared, run_dir, resuming=session is not None)


def _train(prepared: Prepared, run_dir: Path, resuming: bool) -> Result:
    """The run itself, in a directory that is its own."""
    keep = prepared.run.checkpoint.keep
    writer = checkpoint.Writer(run_dir, keep) if keep else None
    logger = make_logger(prepared.run.logger, run_dir)
    try:
        if resuming:
            session = Session(prepared, logger, writer)
            notes = _restore(session, run_dir)
            logger.start(_info(prepared, run_dir, notes, session.history))
        else:
            logger.start(_info(prepared, run_dir))
            session = Session(prepared, logger, writer)
        session.train()
        summary = session.summary()
        try:
            report.write_json(run_dir / SUMMARY, summary)
        except OSError as error:
            print(f"{run_dir / SUMMARY} cannot be written: {error}", file=sys.stderr)
        logger.finish(summary)
    finally:
        logger.close()
        if writer is not None:
            writer.close()
    return _complete(prepared, run_dir, dataclasses.asdict(session.progress), summary)


def _restore(session: Session, run_dir: Path) -> tuple[str, ...]:
    """Put a session where the newest whole checkpoint was written; what to say of it."""
    targets = session.targets()
    found = _newest_whole(run_dir, lambda step: checkpoint.read(run_dir, step, targets))
    assert found is not None
    session.restore(found)
    notes = [f"going on after {found.step:,} env steps"]
    if found.session["num_updates"] != session.prepared.plan.num_updates:
        notes.append("schedules and evaluations follow the new budget from here on")
    if not session.exact:
        notes.append("without its replay buffer: this is not exactly the run it was")
    return tuple(notes)


def _newest_whole(run_dir: Path, read: Callable[[int], T]) -> T | None:
    """What `read` makes of the newest checkpoint that is whole; those after it, which are not, are set aside.

    None where no checkpoint was ever written. Where there are some, and none is whole, nothing is touched.
    """
    damaged: list[tuple[int, checkpoint.DamagedError]] = []
    for step in reversed(checkpoint.steps(run_dir)):
        try:
            found = read(step)
        except checkpoint.DamagedError as error:
            damaged.append((step, error))
            continue
        for bad, reason in damaged:
            place = checkpoint.set_aside(run_dir, bad)
            print(f"the checkpoint after {bad:,} env steps is damaged: {reason}; moved to {place}", file=sys.stderr)
        return found
    if damaged:
        raise ConfigError(f"no checkpoint of {run_dir} is whole: {'; '.join(str(error) for _, error in damaged)}")
    return None


def _read_summary(run_dir: Path) -> dict[str, Any]:
    """The summary of a run that reached its end; nothing where there is none that can be read."""
    try:
        return json.loads((run_dir / SUMMARY).read_text())
    except (OSError, ValueError):
        return {}


@contextlib.contextmanager
def _written(run_dir: Path) -> Iterator[None]:
    """What cannot be written before the run begins is refused."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"hydra.run.dir={run_dir} cannot be written: {error}") from error


def _complete(prepared: Prepared, run_dir: Path, progress: dict[str, Any], summary: dict[str, Any]) -> Result:
    history = progress["history"]
    members = report.members(prepared.population, history[-1], summary, progress["failures"])
    return Result(report.score(history[-1]), run_dir, summary, history, members)


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes away; the lock goes with the process, however that ends."""
    lock = filelock.FileLock(run_dir / ".lock", timeout=0)
    with _written(run_dir):
        try:
            lock.acquire()
        except filelock.Timeout:  # an OSError, too
            raise ConfigError(f"{run_dir} is in use: another process is training there") from None
    try:
        yield
    finally:
        lock.release()


def _info(prepared: Prepared, run_dir: Path, notes: Sequence[str] = (), history: Sequence[Any] = ()) -> RunInfo:
    run, plan, devices = prepared.run, prepared.plan, prepared.mesh.devices
    return RunInfo(
        run_dir=run_dir,
        system=run.system_name,
        environment=environment_name(run),
        seed=run.arch.seed,
        num_updates=plan.num_updates,
        total_timesteps=plan.warmup_steps + plan.num_updates * plan.steps_per_update,
        num_evaluations=len(plan.evaluations) + 1,
        config=run.resolved,
        notes=(*plan.notes, *notes),
        devices=f"{devices.size} x {devices.flat[0].device_kind}",
        members=prepared.population.size,
        history=history,
    )
