"""Runs of a sweep as the jobs of a Hydra launcher: in parallel, or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import OmegaConf

from hydra_plugins import stoix_like_ray
from stoix_like.composition import complete_overrides, compose_config, hydra_session
from stoix_like.errors import ConfigError
from stoix_like.overrides import quoted
from stoix_like.run import jobs as running


def check_launcher(overrides: Sequence[str]) -> None:
    """Refuse a launcher that is unknown or not installed.

    Args:
        overrides: Hydra overrides of all jobs, with `hydra/launcher=…`.

    Raises:
        ConfigError: names the launcher.
    """
    config = compose_config(overrides, return_hydra_config=True)
    if config.hydra.launcher.get("_target_", "").startswith(stoix_like_ray.__name__):
        stoix_like_ray.check_installed()


def launch(jobs: Sequence[Sequence[str]], run_dirs: Sequence[str], sweep_dir: Path, overrides: Sequence[str]) -> None:
    """Train one run per job, and wait for all of them; a job that has started already is resumed.

    Args:
        jobs: Hydra overrides of each job.
        run_dirs: the directory of each run, relative to `sweep_dir`.
        sweep_dir: the directory of the sweep.
        overrides: those of them that choose and configure the launcher.

    Raises:
        ConfigError: a job cannot be run.
        TrainingError: a job failed for another reason than training that diverged; names the first one in a line.
    """
    given = [*overrides, f"hydra.sweep.dir={quoted(str(sweep_dir))}", "hydra.mode=MULTIRUN"]
    config = compose_config(given, return_hydra_config=True)
    OmegaConf.set_readonly(config, False)
    OmegaConf.update(config, "hydra.job.config_name", "config", force_add=True)
    OmegaConf.update(config, "hydra.overrides.hydra", given)
    with hydra_session():
        context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=running.train, config=config
        )
        placed = [
            [*complete_overrides(job), f"hydra.sweep.subdir={quoted(run_dir)}"]
            for job, run_dir in zip(jobs, run_dirs, strict=True)
        ]
        try:
            for job in launcher.launch(placed, initial_job_idx=0):
                _ = job.return_value
        except ConfigError:
            raise
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR"):
                raise
            raise running.failure(error) from error
