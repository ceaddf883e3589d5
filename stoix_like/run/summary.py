"""The results of a run, for `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from stoix_like.run.host.devices import device_names
from stoix_like.run.population.members import Population
from stoix_like.run.programs.compile import CompiledRun
from stoix_like.run.programs.profile import Profile
from stoix_like.run.records import records
from stoix_like.run.records.recording import Progress
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage.returns import at_members, best_member

LOGGING_MEANWHILE = "logging_while_training"
ENVIRONMENT = "training_environment"
LEARNING = "training_learning"
_MEAN = "episode_return_mean"


def summarise(
    setup: RunSetup,
    notes: Sequence[str],
    population: Population,
    progress: Progress,
    compiled: CompiledRun,
    absolute: dict[str, Any],
    profile: Profile | None,
    wall_seconds: float,
) -> dict[str, Any]:
    """Return the results of a run. `profile`: where the time of an update goes; None if it was not measured."""
    config, plan = setup.config, setup.plan
    last = dict(progress.history[-1])
    if population.num_members > 1 and absolute:
        healthy = ~at_members(last["population/failed"], (population.num_members,))
        scores = (
            np.where(healthy, record[f"{name}/{_MEAN}"], -np.inf)
            for name, record in (("absolute", absolute), ("eval", last))
        )
        last["population/best_member"] = best_member(*scores)
    failures = shown_failures(progress.failures, last)
    jaxs = jax.config.values["jax_default_matmul_precision"] or "default"
    trained_steps = progress.updates * plan.steps_per_update * population.num_members
    return {
        "system": config.system_name,
        "environment": config.environment_name,
        "seed": config.arch.seed,
        "env_steps": plan.warmup_steps + progress.updates * plan.steps_per_update,
        "updates": progress.updates,
        **{name: value for name, value in last.items() if name.startswith(("eval/", "population/"))},
        **absolute,
        **({} if population.num_members == 1 else _of_population(setup, population, last, failures, absolute)),
        "stopped_by": progress.stopped_by,
        **({} if profile is None else profile.summary()),
        "compile_seconds": compiled.seconds,
        "programs": compiled.program_seconds,
        "steps_per_second": trained_steps / progress.train_seconds if trained_steps else None,
        "wall_seconds": wall_seconds,
        "notes": list(notes),
        "versions": config.versions,
        "matmul_precision": config.arch.matmul_precision or jaxs,
        "environment_matmul_precision": config.matmul_precision or jaxs,
        "devices": device_names(setup.mesh),
    }


def shown_failures(failures: Mapping[int, str], last: Mapping[str, Any]) -> dict[int, str]:
    """Return the failures of the members that results are about: a slot's last trial may not be."""
    return {member: failure for member, failure in failures.items() if member in last["population/failed"]}


def _of_population(
    setup: RunSetup,
    population: Population,
    last: Mapping[str, Any],
    failures: Mapping[int, str],
    absolute: Mapping[str, Any],
) -> dict[str, Any]:
    members = records.members(population, last, absolute, failures)
    points = [] if setup.config.arch.population.evolves else records.points(population, members)
    best = records.best_point(points)
    return {
        "population/size": len(members),
        "population/varied": list(population.hyperparams),
        "population/best": members[last["population/best_member"]],
        **({"population/best_point": best, "population/points": points} if points else {}),
        "population/members": members,
    }


def timing(seconds: dict[str, float], elapsed: float, updates: int, profile: Profile | None) -> dict[str, float]:
    """Return where the time of a run went. `elapsed`: seconds since startup."""
    total = seconds["startup"] + elapsed
    counted = sum(value for phase, value in seconds.items() if phase != LOGGING_MEANWHILE)
    if profile is not None and profile.rollout_seconds is not None:
        # Without the sharing of the devices that one program allows.
        training = seconds.get("training", 0.0)
        environment = min(profile.rollout_seconds * updates, training)
        seconds = {**seconds, ENVIRONMENT: environment, LEARNING: training - environment}
    return {**seconds, "other": total - counted, "total": total}
