"""The Hydra launcher `hydra/launcher=ray`: each job is a task of a Ray cluster.

Hydra looks for launchers in the namespace `hydra_plugins` alone. It executes their modules before they are in
`sys.modules`, where a dataclass whose annotations are strings fails.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


@dataclass
class RayConfig:
    """Keys of `hydra.launcher`.

    Attributes:
        address: of the cluster, `auto` or `ray://host:10001`; None: that of RAY_ADDRESS, or a new instance here.
        num_cpus: processors that a job reserves.
        num_gpus: accelerators that a job reserves, and sees alone.
        resources: further resources that a job reserves, by name.
        max_retries: how often a job starts again whose process or node is lost; it resumes its run. -1: always.
        runtime_env: Ray's description of the environment of the jobs.
    """

    _target_: str = "hydra_plugins.stoix_like_ray.RayLauncher"
    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    max_retries: int = 3
    runtime_env: dict[str, Any] = field(default_factory=dict)


def check_installed() -> None:
    """Refuse to start jobs without ray.

    Raises:
        MissingExtraError: it is not installed.
    """
    found = importlib.util.find_spec("ray")
    # Ray itself writes to /tmp/ray, which looks like a package without files to who works in /tmp.
    if found is None or found.origin is None:
        from stoix_like.errors import MissingExtraError

        raise MissingExtraError("hydra/launcher=ray", "ray", "ray")


class RayLauncher(Launcher):
    """A launcher whose jobs are Ray tasks, each in a process of its own.

    Args:
        config: see `RayConfig`.
    """

    def __init__(self, **config: Any) -> None:
        self.cluster = {name: config.pop(name) for name in ("address", "runtime_env")}
        self.task = {name: _plain(value) for name, value in config.items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See `Launcher.setup`.

        Raises:
            MissingExtraError: ray is not installed.
        """
        check_installed()
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and wait for all of them; see `Launcher.launch`.

        Raises:
            ConfigError: the cluster cannot be reached.
            RayError: the process or the node of a job was lost more than `max_retries` times.
        """
        # Ray would report its use to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        setup_globals()
        config = self.config.copy()
        with open_dict(config):
            # The working directory of a task is another one.
            config.hydra.sweep.dir = str(Path(config.hydra.sweep.dir).absolute())
        is_outer = ray.is_initialized()
        if not is_outer:
            self._connect(ray)
        try:
            # jax starts once per process.
            run = ray.remote(**self.task, max_calls=1)(_run)
            shared = ray.put((self.hydra_context, config, self.task_function, Singleton.get_state(), os.getcwd()))
            jobs = [
                run.remote(initial_job_idx + index, list(words), shared) for index, words in enumerate(job_overrides)
            ]
            # A job that is lost keeps no other from running.
            ray.wait(jobs, num_returns=len(jobs), fetch_local=False)
            return list(ray.get(jobs))
        finally:
            if not is_outer:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        from stoix_like.errors import ConfigError

        address = self.cluster["address"]
        try:
            ray.init(address=address, runtime_env=_plain(self.cluster["runtime_env"]) or None)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(
                f"hydra.launcher.address={address} cannot be used: {' '.join(str(error).split())} (null starts a Ray"
                " instance on this machine)"
            ) from error


def _run(
    index: int, overrides: Sequence[str], shared: tuple[HydraContext, DictConfig, TaskFunction, Mapping[Any, Any], str]
) -> JobReturn:
    """Run a job in a process of its own."""
    from stoix_like.interpreter import make_importable

    context, config, task_function, singletons, working_directory = shared
    if os.path.isdir(working_directory):
        os.chdir(working_directory)
    make_importable()
    setup_globals()
    Singleton.set_state(dict(singletons))
    job_config = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(job_config):
        job_config.hydra.job.id = f"{job_config.hydra.job.name}_{index}"
        job_config.hydra.job.num = index
    HydraConfig.instance().set_config(job_config)
    return run_job(
        hydra_context=context,
        config=job_config,
        task_function=task_function,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


ConfigStore.instance().store(group="hydra/launcher", name="ray", node=RayConfig, provider="stoix_like")
