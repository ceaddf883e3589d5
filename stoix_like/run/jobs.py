"""Jobs of Hydra's launchers: a job that fails does not keep the others from running."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, configure_log, run_job
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from stoix_like.composition import PRIMARY, hydra_session, with_search
from stoix_like.errors import ProcessLostError, TrainingError
from stoix_like.run import experiment
from stoix_like.storage.run_files import read_failure, read_summary

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


def run(config: DictConfig, task: TaskFunction) -> None:
    """Run one job as `hydra.main` does, which would compose its configuration again.

    Args:
        config: the composed configuration, with that of Hydra.
        task: the job; what it raises is raised here.
    """
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    config.hydra.mode = RunMode.RUN
    callbacks = Callbacks(config)
    with hydra_session():
        context = HydraContext(GlobalHydra.instance().config_loader(), callbacks)
        callbacks.on_run_start(config=config, config_name=PRIMARY)
        job = run_job(task, config, "hydra.run.dir", None, context)
        callbacks.on_run_end(config=config, config_name=PRIMARY, job_return=job)
    _ = job.return_value  # raises what the job raised


def run_all(overrides: Sequence[str], config_dirs: Sequence[str | Path], task: TaskFunction) -> list[JobReturn]:
    """Run the jobs of a multirun, as `hydra.main` does, which would drop what they return.

    Args:
        overrides: Hydra overrides with swept values.
        config_dirs: further directories of YAML files.
        task: the job.

    Returns:
        The jobs; none with a sweeper that returns none.
    """
    with hydra_session():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        given = [*with_search(overrides, config_dirs), "hydra.mode=MULTIRUN"]
        batches = hydra.multirun(PRIMARY, task, given)
    return [job for batch in batches or () for job in batch]


def check(jobs: Sequence[JobReturn]) -> None:
    """Report the jobs of a multirun that failed.

    Args:
        jobs: what `train` returned, in Hydra's form.

    Raises:
        TrainingError: names the directory of each job that failed, and why.
    """
    unscored = [_run_dir(job) for job in jobs if math.isnan(job.return_value)]
    # A run may be complete without a score; one that was to be extended has the results of before.
    failed = [run_dir for run_dir in unscored if read_failure(run_dir) or not read_summary(run_dir)]
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
