"""Reinforcement learning in JAX with whole training runs compiled into one program.

```python
import stoix_like

result = stoix_like.train("ppo/ff_ppo", ["env=gymnax/cartpole", "arch.seed=1"])
result.eval_return, result.run_dir
```
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoix_like.errors import ConfigError, MissingExtraError, TrainingError
from stoix_like.overrides import Overrides, check_given_once, to_overrides, with_overrides

if TYPE_CHECKING:
    from stoix_like.callbacks import Callback
    from stoix_like.inference.evaluation import evaluate
    from stoix_like.lab import analysis as analysis
    from stoix_like.lab.collect import collect
    from stoix_like.lab.tuning.sweep import sweep as sweep
    from stoix_like.lab.tuning.tune import tune as tune
    from stoix_like.loggers import Logger
    from stoix_like.policies.load import load_policy
    from stoix_like.run.experiment import Result

    __version__: str
else:
    # Importing the package imports neither jax nor Hydra.
    _MODULES = {
        "collect": "stoix_like.lab.collect",
        "evaluate": "stoix_like.inference.evaluation",
        "load_policy": "stoix_like.policies.load",
        "sweep": "stoix_like.lab.tuning",
        "tune": "stoix_like.lab.tuning",
    }

    def __getattr__(name: str) -> Any:
        """Return the installed version for `__version__`, and functions and modules that are imported on first use."""
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version(__name__)
        if name == "analysis":
            return importlib.import_module("stoix_like.lab.analysis")
        if name in _MODULES:
            return getattr(importlib.import_module(_MODULES[name]), name)
        if importlib.import_module("importlib.util").find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f"{__name__}.{name}")
        found = ", ".join(sorted({*__all__, *_MODULES}))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {found}")

    def __dir__() -> list[str]:
        """Return what users call and the installed extras allow, with what is imported on first use."""
        find = importlib.import_module("importlib.util").find_spec
        extras = {"analysis": "matplotlib", "sweep": "optuna", "tune": "optuna"}
        return sorted([*__all__, "callbacks", "loggers", *(name for name, needed in extras.items() if find(needed))])


# Without `sweep` and `tune`: `from stoix_like import *` would need their extra.
__all__ = [
    "ConfigError",
    "MissingExtraError",
    "TrainingError",
    "__version__",
    "collect",
    "evaluate",
    "load_policy",
    "resume",
    "train",
]


@with_overrides
def train(
    system: str,
    overrides: Overrides = (),
    *,
    env: Any = None,
    run_dir: str | Path | None = None,
    config_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
) -> Result:
    """Train a system, as the command line would.

    Args:
        system: name of the system, as listed by `stoix-like list systems`: `"ppo/ff_ppo"`.
        overrides: Hydra overrides: `["env=gymnax/cartpole", "arch.seed=1"]`, or a dictionary:
            `{"env": "gymnax/cartpole", "arch.seed": 1}`.
        env: the name of an environment, `"gymnax/cartpole"`, or an id of gymnasium, `"CartPole-v1"`, which selects the
            environment of gymnax if it has the same id; or a custom environment, or a class or function that builds it
            from `env.kwargs`. A class or function
            that can be imported is recorded by its import path. Otherwise pass `env` again to resume or load the run.
        run_dir: directory to write to; by default `runs/<system>/<environment>/<time>-seed<seed>`.
        config_dir: directory of your YAML files, laid out like the package's `configs`.
        callbacks: objects of subclasses of `stoix_like.callbacks.Callback`, called at evaluations; pass them again to
            `resume`.
        loggers: objects with the methods of `stoix_like.loggers.Logger`, in addition to the configuration's.

    Returns:
        The result of the run: `eval_return`, `run_dir`, `summary`, `history`, `members`.

    Raises:
        ConfigError: the configuration cannot be run; a `ValueError` that names the key, the value and what would work.
        TrainingError: a metric or a parameter became non-finite.
    """
    started = time.perf_counter()
    # Imported here so that using a single loss function imports neither Hydra nor every environment.
    from stoix_like.composition import compose_config, hydra_job, run_dir_of
    from stoix_like.config import parse_config
    from stoix_like.envs.custom import as_overrides
    from stoix_like.run import experiment
    from stoix_like.run.prepare import prepare
    from stoix_like.run.set_up.custom import as_tuple

    extra = [] if config_dir is None else [Path(config_dir).expanduser()]
    own_overrides = to_overrides(overrides)
    check_given_once(own_overrides, system=system, env=env)
    given = [f"system={system}", *own_overrides]
    if env is not None:
        given += [f"env={env}"] if isinstance(env, str) else as_overrides(env)
        env = None if isinstance(env, str) else env
    composed = compose_config(given, extra, return_hydra_config=True)
    if run_dir is not None:
        composed.hydra.run.dir = str(Path(run_dir).expanduser())
    with hydra_job(composed):
        run = parse_config(composed)
    own_callbacks, own_loggers = as_tuple("callbacks", callbacks), as_tuple("loggers", loggers)
    run = run._replace(custom_env=env, custom_callbacks=own_callbacks, custom_loggers=own_loggers)
    return experiment.run(prepare(run, run_dir_of(composed), started))


@with_overrides
def resume(
    run_dir: str | Path,
    overrides: Overrides = (),
    *,
    trust: bool = False,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
) -> Result:
    """Resume a run that was stopped, or extend its budget, in its own directory.

    Args:
        run_dir: the directory of the run, or its address on an object store, `s3://bucket/run`.
        overrides: overrides of keys that may change, as for `train`: the budget (`{"arch.total_timesteps": 1e6}`),
            logging, checkpoints.
        trust: allow the run's configuration to name code from outside this package.
        env: the environment of a run that was trained on an object passed from Python.
        callbacks: the callbacks that were passed to `train`; their state is restored.
        loggers: the loggers that were passed to `train`.

    Returns:
        The result of the whole run, including what was trained before.

    Raises:
        ConfigError: there is no such run, another process is training it, or its configuration changed.
        TrainingError: a metric or a parameter became non-finite.
    """
    started = time.perf_counter()
    from stoix_like.run import experiment

    return experiment.resume(run_dir, to_overrides(overrides), trust, env, callbacks, loggers, started)
