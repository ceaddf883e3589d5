"""The results of a run, for `summary.json`."""

from __future__ import annotations

from typing import Any

import jax

from stoix_like.run import records
from stoix_like.run.compile import CompiledRun
from stoix_like.run.population import Population
from stoix_like.run.profile import Profile
from stoix_like.run.recording import Progress
from stoix_like.run.setup import RunSetup
from stoix_like.versions import versions

LOGGING_MEANWHILE = "logging_while_training"
ENVIRONMENT = "training_environment"
LEARNING = "training_learning"


def summarise(
    setup: RunSetup,
    population: Population,
    progress: Progress,
    compiled: CompiledRun,
    absolute: dict[str, Any],
    profile: Profile | None,
    wall_seconds: float,
) -> dict[str, Any]:
    """Return the results of a run.

    Args:
        setup: the run.
        population: its members, as population-based training has left them.
        progress: its progress.
        compiled: its programs.
        absolute: the absolute metric; empty without one.
        profile: where the time of an update goes; None if it was not measured.
        wall_seconds: time since the run started.
    """
    config, plan, last = setup.config, setup.plan, progress.history[-1]
    trained_steps = progress.updates * plan.steps_per_update * population.num_members
    return {
        "system": config.system_name,
        "environment": config.environment_name,
        "seed": config.arch.seed,
        "env_steps": plan.warmup_steps + progress.updates * plan.steps_per_update,
        "updates": progress.updates,
        **{name: value for name, value in last.items() if name.startswith(("eval/", "population/"))},
        **absolute,
        **({} if population.num_members == 1 else _of_population(setup, population, progress, absolute)),
        "stopped_by": progress.stopped_by,
        **({} if profile is None else profile.summary()),
        "compile_seconds": compiled.seconds,
        "programs": compiled.program_seconds,
        "steps_per_second": trained_steps / progress.train_seconds if trained_steps else None,
        "wall_seconds": wall_seconds,
        "notes": list(plan.notes),
        "versions": versions(),
        "matmul_precision": config.matmul_precision or jax.config.values["jax_default_matmul_precision"] or "default",
        "devices": [f"{device.platform}:{device.device_kind}" for device in setup.mesh.devices.flat],
    }


def _of_population(
    setup: RunSetup, population: Population, progress: Progress, absolute: dict[str, Any]
) -> dict[str, Any]:
    last = progress.history[-1]
    members = records.members(population, last, absolute, progress.failures)
    points = [] if setup.evolves else records.points(population, members)
    return {
        "population/size": len(members),
        "population/varied": list(population.hyperparams),
        "population/best": members[last["population/best_member"]],
        **({"population/best_point": records.best_point(points), "population/points": points} if points else {}),
        "population/members": members,
    }


def timing(seconds: dict[str, float], elapsed: float, updates: int, profile: Profile | None) -> dict[str, float]:
    """Return where the time of a run went.

    Args:
        seconds: by phase, with `startup`.
        elapsed: seconds since startup.
        updates: number of updates.
        profile: see `summarise`.

    Returns:
        Seconds by phase; `total` is their sum, apart from `LOGGING_MEANWHILE`, `ENVIRONMENT` and `LEARNING`, which
        are parts of `training`. The last two are estimates, for a run with a profile alone.
    """
    total = seconds["startup"] + elapsed
    counted = sum(value for phase, value in seconds.items() if phase != LOGGING_MEANWHILE)
    if profile is not None and profile.rollout_seconds is not None:
        # Without the sharing of the devices that one program allows.
        training = seconds.get("training", 0.0)
        environment = min(profile.rollout_seconds * updates, training)
        seconds = {**seconds, ENVIRONMENT: environment, LEARNING: training - environment}
    return {**seconds, "other": total - counted, "total": total}
