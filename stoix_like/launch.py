"""Entry points of a system's module; the launcher is only imported when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
        from stoix_like.run import experiment

        return experiment.run_experiment(config, build)

    def hydra_entry_point() -> None:
        """Train with the arguments of the command line; see `stoix_like.cli.launch`."""
        from stoix_like import cli

        cli.launch(system)

    return run_experiment, hydra_entry_point
