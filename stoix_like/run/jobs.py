"""Jobs of Hydra's launchers: a job that fails does not keep the others from running."""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, configure_log
from hydra.types import TaskFunction
from omegaconf import DictConfig

from stoix_like.composition import PRIMARY, hydra_session
from stoix_like.errors import ProcessLostError, TrainingError
from stoix_like.run import experiment
from stoix_like.storage.run_dir import read_failure, read_summary

# What launchers raise for a job whose process ended, and the line that says why: submitit's ends with that of the job,
# those of joblib and Ray start with what happened.
_LOST = {
    "FailedJobError": -1,
    "UncompletedJobError": -1,
    "TerminatedWorkerError": 0,
    "BrokenProcessPool": 0,
    "WorkerCrashedError": 0,
    "NodeDiedError": 0,
    "OutOfMemoryError": 0,
}


def train(config: DictConfig) -> float:
    """Train one job; one that fails is reported in a line.

    Args:
        config: composed by Hydra.

    Returns:
        The score of `run_experiment`; NaN if training failed.

    Raises:
        ConfigError: the configuration cannot be run.
    """
    try:
        return experiment.run_experiment(config)
    except ProcessLostError:
        raise  # No other job can start without that process.
    except TrainingError as error:
        print(f"{HydraConfig.get().runtime.output_dir}: {error}", file=sys.stderr)
        return math.nan


def run_composed(config: DictConfig, task: TaskFunction) -> None:
    """Run one job as `hydra.main` does, which would compose the configuration twice: for its mode and for the job.

    Args:
        config: the composed configuration, with that of Hydra.
        task: the job; what it raises is raised here.
    """
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    with hydra_session():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.compose_config = lambda *_, **__: config  # type: ignore[method-assign]
        hydra.run(PRIMARY, task, overrides=[])


@contextlib.contextmanager
def recorded() -> Iterator[list[JobReturn]]:
    """Record what the jobs of a multirun return, which `hydra.main` drops.

    Yields:
        The jobs, once the multirun is over; none with a sweeper that returns none.
    """
    jobs: list[JobReturn] = []
    multirun = Hydra.multirun

    def recording(*args: Any, **kwargs: Any) -> Any:
        batches = multirun(*args, **kwargs)
        jobs.extend(job for batch in batches or () for job in batch)
        return batches

    Hydra.multirun = recording  # type: ignore[method-assign]
    try:
        yield jobs
    finally:
        Hydra.multirun = multirun  # type: ignore[method-assign]


def check(jobs: Sequence[JobReturn]) -> None:
    """Report the jobs of a multirun that failed.

    Args:
        jobs: what `train` returned, in Hydra's form.

    Raises:
        TrainingError: names the directory of each job that failed, and why.
    """
    unscored = [_run_dir(job) for job in jobs if math.isnan(job.return_value)]
    # A run may be complete without a score.
    failed = [run_dir for run_dir in unscored if not read_summary(run_dir)]
    if failed:
        reasons = [f"{run_dir} ({(read_failure(run_dir) or 'no reason').splitlines()[0]})" for run_dir in failed]
        raise TrainingError(f"{len(failed)} of {len(jobs)} jobs failed: {'; '.join(reasons)}")


def _run_dir(job: JobReturn) -> Path:
    assert job.hydra_cfg is not None
    return Path(job.hydra_cfg.hydra.runtime.output_dir)


def is_lost(error: Exception) -> bool:
    """Return whether a launcher raises this error for a job whose process ended."""
    return type(error).__name__ in _LOST


def failure(error: Exception) -> TrainingError:
    """Return the error of a job in one line.

    Args:
        error: what the job or its launcher raised.
    """
    text = str(error) if is_lost(error) else "".join(traceback.format_exception_only(error))
    return TrainingError(f"a job failed: {text.strip().splitlines()[_LOST.get(type(error).__name__, -1)]}")
