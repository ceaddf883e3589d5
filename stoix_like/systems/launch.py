"""Entry points of a system's module; what they run is named here and imported when they are called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# Systems stand below the runner and the command line, and import neither.
RUNNER = "stoix_like.run.experiment", "run_experiment"
COMMAND_LINE = "stoix_like.cli", "launch"


def entry_points(system: str, build: Callable[[Any, Any], Any]) -> tuple[Callable[[Any], float], Callable[[], None]]:
    """Return the entry points of a system's module.

    Args:
        system: name of the system, `ppo/ff_ppo`.
        build: the module's `build(config, spec)`.

    Returns:
        `run_experiment(config) -> float`, which trains a configuration composed by Hydra and returns the evaluation
        metric, and `hydra_entry_point()`, which trains with the arguments of the command line.
    """

    def run_experiment(config: Any) -> float:
        """Train a composed configuration; see `stoix_like.run.experiment.run_experiment`."""
        metric: float = _resolve(*RUNNER)(config, build)
        return metric

    def hydra_entry_point() -> None:
        """Train with the arguments of the command line; see `stoix_like.cli.launch`."""
        _resolve(*COMMAND_LINE)(system)

    return run_experiment, hydra_entry_point


def _resolve(module: str, name: str) -> Any:
    """Import a module and return one of its attributes."""
    return getattr(importlib.import_module(module), name)
