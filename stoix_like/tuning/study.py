"""The study of a sweep, from which a process that is killed at any moment takes nothing.

Trials are drawn in batches, in memory, and each is written in one transaction, with its parameters and its run. A batch
is a function of the settings and of the trials before it, so a resumed sweep draws what is missing of it as an
uninterrupted one does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from stoix_like.tuning.space import Parameter

# Attributes of a trial: its run, its place in the population, and the number of trials once its batch is complete.
RUN, PLACE, UNTIL = "run", "place", "until"
SAMPLERS = ("tpe", "cmaes", "random", "grid")
# Finished trials from which on a sampler learns.
STARTUP = {"tpe": 10, "cmaes": 1}
# Points of a grid of a continuous range.
GRID_POINTS = 5
_NAME, _DIRECTION = "sweep", optuna.study.StudyDirection.MAXIMIZE


def open_study(path: Path, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    """Create a study in a file, or open the one there.

    Args:
        path: the file, a database.
        pruner: of trials.

    Returns:
        The study.
    """
    study = optuna.create_study(
        storage=f"sqlite:///{path}",
        study_name=_NAME,
        direction=_DIRECTION,
        sampler=optuna.samplers.RandomSampler(),  # nothing is drawn from it
        pruner=pruner,
        load_if_exists=True,
    )
    # Earlier releases enqueued the points of a grid, and wrote a trial before its run: those are drawn again.
    for _ in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.ask()
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if RUN not in trial.user_attrs:
            study.tell(trial.number, state=TrialState.FAIL)
    return study


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that need no more training."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))


def unfinished(study: optuna.Study) -> list[list[FrozenTrial]]:
    """Return the populations with a trial that has no result yet, whole and in the order of their members.

    Args:
        study: the study.
    """
    runs: dict[str, list[FrozenTrial]] = {}
    for trial in study.get_trials(deepcopy=False):
        if RUN in trial.user_attrs:
            runs.setdefault(trial.user_attrs[RUN], []).append(trial)
    left = [trials for trials in runs.values() if any(trial.state == TrialState.RUNNING for trial in trials)]
    return [sorted(trials, key=lambda trial: trial.user_attrs[PLACE]) for trials in left]


def ask(
    study: optuna.Study, parameters: Sequence[Parameter], sampler: str, seed: int, trials: int, parallel: int
) -> None:
    """Draw the next batch; or, if a process was killed while it wrote the last one, what is missing of that.

    Args:
        study: the study; no trial of the next batch trains yet.
        parameters: what varies.
        sampler: name of the sampler.
        seed: its seed.
        trials: number of trials in the whole sweep, which has no more than its grid has points.
        parallel: number of trials in a batch.
    """
    before = study.get_trials(deepcopy=False)
    until = max((trial.user_attrs.get(UNTIL, 0) for trial in before), default=0)
    missing = itertools.islice(_missing_points(before, parameters), max(trials, until))
    points = list(missing) if sampler == "grid" else None
    if until <= len(before):
        if any(trial.state == TrialState.RUNNING for trial in before):
            return
        left = trials - sum(RUN in trial.user_attrs for trial in before)
        until = len(before) + max(0, min(left, parallel, left if points is None else len(points)))
    copy = optuna.create_study(study_name=_NAME, direction=_DIRECTION, pruner=study.pruner)
    copy.add_trials(before)
    distributions = {parameter.key: parameter.distribution for parameter in parameters}
    for number in range(len(before), until):
        if points is not None:
            copy.enqueue_trial(points[number - len(before)])
        # What a trial draws depends on its number, not on what the process drew before it.
        copy.sampler = _make_sampler(sampler, seed, number)
        copy.ask(distributions)
    batch = [trial for trial in before if trial.user_attrs.get(UNTIL) == until] + copy.get_trials()[len(before) :]
    for trial, attributes in zip(batch, _placed(batch, parameters), strict=True):
        if trial.number >= len(before):
            for name, value in {**attributes, UNTIL: until}.items():
                trial.set_user_attr(name, value)
            study.add_trial(trial)


def _missing_points(trials: Sequence[FrozenTrial], parameters: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    """Yield the points of the grid that no trial of a run has."""

    def represent(point: Mapping[str, Any]) -> tuple[float, ...]:
        # Of choices, the index: equal ones are one point.
        return tuple(one.distribution.to_internal_repr(point[one.key]) for one in parameters)

    seen = {represent(trial.params) for trial in trials if RUN in trial.user_attrs}
    for values in itertools.product(*(parameter.grid(GRID_POINTS) for parameter in parameters)):
        point = {parameter.key: value for parameter, value in zip(parameters, values, strict=True)}
        if (found := represent(point)) not in seen:
            seen.add(found)
            yield point


def _placed(batch: Sequence[FrozenTrial], parameters: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Return the run of each trial and its place there: one compiled population trains those that differ in floats."""
    groups: dict[str, list[int]] = {}
    placed = []
    for trial in batch:
        fixed = {parameter.key: trial.params[parameter.key] for parameter in parameters if not parameter.traced}
        group = groups.setdefault(json.dumps(fixed, sort_keys=True), [])
        group.append(trial.number)
        placed.append({RUN: f"runs/{group[0]:05d}", PLACE: len(group) - 1})
    return placed


def _make_sampler(name: str, seed: int, number: int) -> optuna.samplers.BaseSampler:
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=own)
    independent = optuna.samplers.RandomSampler(seed=own)
    # CMA-ES adds the number of the trial to its seed.
    return optuna.samplers.CmaEsSampler(seed=seed, independent_sampler=independent) if name == "cmaes" else independent


def random_share(sampler: str, trials: int, parallel: int) -> int:
    """Return the number of trials that a sampler draws at random, before it has returns to learn from.

    Args:
        sampler: its name.
        trials: number of trials in the whole sweep.
        parallel: number of trials in a batch.
    """
    return min(trials, -(-STARTUP.get(sampler, 0) // parallel) * parallel)
