"""Jobs of Hydra's launchers: a job that fails does not keep the others from running."""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import jax
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.types import TaskFunction
from omegaconf import DictConfig

from stoix_like.composition import PRIMARY, hydra_session, with_search
from stoix_like.errors import ConfigError, ProcessLostError, TrainingError, first_line, reason
from stoix_like.run import experiment
from stoix_like.signals import received
from stoix_like.storage.files import write_text
from stoix_like.storage.run_files import FAILURE, holds_run

# What submitit raises for a job that lost its process, and the lines that say which job and why, besides the last:
# the job's own, or its log.
_OF_SUBMITIT = {"FailedJobError": slice(-4, -3), "UncompletedJobError": slice(2)}
# Errors of joblib and Ray start with what happened.
_LOST = {
    *_OF_SUBMITIT, "TerminatedWorkerError", "BrokenProcessPool", "WorkerCrashedError", "NodeDiedError",
    "OutOfMemoryError",
}  # fmt: skip


class Failed(float):
    """The score of a job that failed: NaN."""

    reason: str  # why, in a line

    def __new__(cls, reason: str) -> Failed:
        """Return NaN with a reason."""
        score = super().__new__(cls, math.nan)
        score.reason = reason
        return score


def train(config: DictConfig) -> float:
    """Train one job; return its score, `Failed` if training failed, the memory was exhausted, or files were lost."""
    try:
        return experiment.run_experiment(config)
    except (ProcessLostError, BrokenPipeError):
        raise  # No other job can start without that process, or print without a reader.
    except (TrainingError, jax.errors.JaxRuntimeError, MemoryError, OSError) as error:
        if not isinstance(error, TrainingError) and (received() is not None or jax.process_count() > 1):
            raise  # It may be due to a signal, and other processes of the run do not know of it.
        return _fail(error)


def train_in_multirun(config: DictConfig) -> float:
    """Train one job of a multirun; one that is refused, or stopped by its last time limit, fails like others."""
    try:
        return train(config)
    except Exception as error:
        if not isinstance(error, ConfigError) and not is_lost(error):
            raise
        return _fail(error)


def _fail(error: Exception) -> Failed:
    """Report why the current job failed; write it where there is no run yet, which does so itself."""
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    print(f"{run_dir}: {first_line(error)}", file=sys.stderr)
    if not holds_run(run_dir):
        with contextlib.suppress(OSError):
            write_text(run_dir / FAILURE, f"{type(error).__name__}: {error}\n")
    return Failed(reason(error))


def run(overrides: Sequence[str], config_dirs: Sequence[str | Path], task: TaskFunction) -> None:
    """Run one job, as `hydra.main` does for the arguments of the process."""
    with hydra_session():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.run(PRIMARY, task, with_search(overrides, config_dirs))


def run_all(overrides: Sequence[str], config_dirs: Sequence[str | Path], task: TaskFunction) -> list[JobReturn]:
    """Run the jobs of a multirun, as `hydra.main` does, which would drop what they return."""
    with hydra_session():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        given = [*with_search(overrides, config_dirs), "hydra.mode=MULTIRUN"]
        batches = hydra.multirun(PRIMARY, task, given)
    return [job for batch in batches or () for job in batch]


def check(jobs: Sequence[JobReturn]) -> None:
    """Report the jobs of a multirun that failed."""
    reasons = []
    for job in jobs:
        if isinstance(score := job.return_value, Failed):
            assert job.hydra_cfg is not None
            reasons.append(f"{job.hydra_cfg.hydra.runtime.output_dir} ({score.reason})")
    if reasons:
        raise TrainingError(f"{len(reasons)} of {len(jobs)} jobs failed: {'; '.join(reasons)}")


def is_lost(error: Exception) -> bool:
    """Return whether a launcher raises this error for a job whose process ended."""
    return type(error).__name__ in _LOST


def failure(error: Exception) -> TrainingError:
    """Return the error of a job in one line."""
    text = str(error) if is_lost(error) else "".join(traceback.format_exception_only(error))
    lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
    if (which := _OF_SUBMITIT.get(type(error).__name__)) is not None:
        said = " ".join(dict.fromkeys([*lines[which], lines[-1]]))
        return TrainingError(f"a job failed: {said}; other jobs may still be running")
    return TrainingError(f"a job failed: {lines[0 if is_lost(error) else -1]}")
