"""The study of a sweep, from which a process that is killed at any moment takes nothing.

Trials are drawn in batches, in memory, and each is written in one transaction, with its parameters and its run. A batch
is a function of the settings and of the trials before it, so a resumed sweep draws what is missing of it as an
uninterrupted one does.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool

from stoix_like.errors import ConfigError
from stoix_like.lab.tuning.parameters import Parameter
from stoix_like.lab.tuning.shapes import GRID_POINTS, Shape, shape_of
from stoix_like.storage.recorded_runs import identity

# Attributes of a trial: its run, its place in the population, the size of that, and the number of trials once its
# batch is complete.
RUN, PLACE, SIZE, UNTIL = "run", "place", "size", "until"
SAMPLERS = ("tpe", "cmaes", "random", "grid")
# Finished trials from which on a sampler learns.
STARTUP = {"tpe": 10, "cmaes": 1}
FIRST_RUN = "runs/00000"
# The choice between shapes, as samplers see it.
_SHAPE = "shape"
_NAME, _DIRECTION = "sweep", optuna.study.StudyDirection.MAXIMIZE


def open_study(path: Path) -> optuna.Study:
    """Create a study in a file, or open the one there."""
    path = path.absolute()  # of whichever directory is the current one later

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False)
        # Waiting for the disk would take most of the time. What a power failure damages is no loss: without the file,
        # a sweep draws the same trials again, and reads their runs.
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    # No connection outlives its transaction: a pool would keep some open, and Python 3.13 warns of them.
    kwargs = {"creator": connect, "poolclass": NullPool}
    try:
        return optuna.create_study(
            storage=optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=kwargs),
            study_name=_NAME,
            direction=_DIRECTION,
            sampler=optuna.samplers.RandomSampler(),  # nothing is drawn from it
            load_if_exists=True,
        )
    except DatabaseError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.orig}): delete it if it is damaged; the command then draws the same trials"
            " again, and reads their runs"
        ) from error


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that need no more training."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))


def complete(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials with a value."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """Return the complete trial with the highest value, the first one of equals; None without any."""
    return max(complete(study), key=lambda trial: -math.inf if trial.value is None else trial.value, default=None)


def unfinished(study: optuna.Study) -> list[list[FrozenTrial]]:
    """Return the populations with a trial that has no result yet, whole and in the order of their members."""
    runs: dict[str, list[FrozenTrial]] = {}
    for trial in study.get_trials(deepcopy=False):
        runs.setdefault(trial.user_attrs[RUN], []).append(trial)
    left = [trials for trials in runs.values() if any(trial.state == TrialState.RUNNING for trial in trials)]
    return [sorted(trials, key=lambda trial: trial.user_attrs[PLACE]) for trials in left]


class Sampling(NamedTuple):
    """Parameters to sample, and the sampler."""

    parameters: Sequence[Parameter]  # what varies
    shapes: Sequence[Shape] | None  # the shapes to choose from
    sampler: str  # name of the sampler
    seed: int  # its seed


def ask(study: optuna.Study, sampling: Sampling, trials: int, parallel: int, size: int) -> None:
    """Draw the next batch; or, if a process was killed while it wrote the last one, what is missing of that.

    Every population of a batch has one shape. Each shape is tried once; then `tpe` draws the first trial of a
    population freely and the others with its shape, and other samplers take the shapes in turns.
    """
    before = study.get_trials(deepcopy=False)
    until = max((trial.user_attrs.get(UNTIL, 0) for trial in before), default=0)
    begun = [trial for trial in before if trial.user_attrs.get(UNTIL) == until] if until > len(before) else []
    if not begun:
        if any(trial.state == TrialState.RUNNING for trial in before):
            return
        left = min(trials - len(before), parallel)
        if sampling.sampler == "grid":
            left = min(left, sum(map(len, grid_populations(sampling, before, parallel, size))))
        until = len(before) + max(0, left)
    if begun:
        size = begun[0].user_attrs[SIZE]
    batch = _Batch(sampling.parameters, size, begun)
    drawn = _points(sampling, before) if sampling.sampler == "grid" else _draw(study, sampling, before, batch)
    distributions = {parameter.key: parameter.distribution for parameter in sampling.parameters}
    for number, (params, attributes) in zip(range(len(before), until), drawn, strict=False):
        placed = {**batch.place(number, params), SIZE: size, UNTIL: until}
        study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params={key: params[key] for key in distributions},
                distributions=distributions,
                user_attrs=placed,
                system_attrs=attributes,
            )
        )


class _Batch:
    """The populations of a batch: a trial joins the last one of its shape, until that is full."""

    def __init__(self, parameters: Sequence[Parameter], size: int, begun: Iterable[FrozenTrial]) -> None:
        self._parameters, self._size = parameters, size
        self._runs: list[tuple[Shape, list[int]]] = []
        for trial in begun:
            self.place(trial.number, trial.params)

    def place(self, number: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run of a trial and its place there."""
        shape = shape_of(params, self._parameters)
        fitting = [run for run in self._runs if run[0] == shape and len(run[1]) < self._size]
        if not fitting:
            fitting = [(shape, [])]
            self._runs += fitting
        numbers = fitting[-1][1]
        numbers.append(number)
        return {RUN: f"runs/{numbers[0]:05d}", PLACE: len(numbers) - 1}

    def open_shape(self) -> Shape | None:
        """Return the shape of the next trial; None at the start of a population."""
        if not self._runs or len(self._runs[-1][1]) == self._size:
            return None
        return self._runs[-1][0]

    def shapes(self) -> list[Shape]:
        """Return the shape of each population."""
        return [shape for shape, _ in self._runs]


def _draw(
    study: optuna.Study, sampling: Sampling, before: Sequence[FrozenTrial], batch: _Batch
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the parameters of each trial of a batch, and what the sampler remembers of it."""
    traced = [parameter for parameter in sampling.parameters if parameter.traced]
    tried = [shape_of(trial.params, sampling.parameters) for trial in before if trial.user_attrs.get(PLACE) == 0]
    tried = tried[: len(tried) - len(batch.shapes())]
    shapes = None if sampling.shapes is None else list(sampling.shapes)
    asked = traced if shapes is not None else sampling.parameters
    distributions = {parameter.key: parameter.distribution for parameter in asked}
    if shapes is not None and len(shapes) > 1:
        distributions[_SHAPE] = CategoricalDistribution(range(len(shapes)))
    copy = optuna.create_study(study_name=_NAME, direction=_DIRECTION)
    # Samplers leave failed trials out, and would draw from where training diverges again and again. To TPE, those that
    # run are bad ones (`constant_liar`), and no evidence of what is good.
    values = [trial.value for trial in before if trial.value is not None]
    startup = max(1, STARTUP["tpe"] - sum(trial.state == TrialState.FAIL for trial in before))
    lower = min(values) - max(1.0, abs(min(values))) if values and sampling.sampler == "cmaes" else None
    copy.add_trials([_in_terms_of(distributions, trial, shapes, sampling.parameters, lower) for trial in before])
    for number in itertools.count(len(before)):
        shape = batch.open_shape() if traced else None
        if shape is None and shapes is not None:
            counts = Counter(identity(one) for one in [*tried, *batch.shapes()])
            rarest = min(shapes, key=lambda one: counts[identity(one)])
            if sampling.sampler != "tpe" or counts[identity(rarest)] == 0:
                shape = rarest
        fixed = {} if shape is None or shapes is None else {_SHAPE: shapes.index(shape)}
        # What a trial draws depends on its number, not on what the process drew before it.
        copy.sampler = _make_sampler(sampling.sampler, sampling.seed, number, startup, fixed)
        trial = copy.ask(distributions)
        params = dict(trial.params)
        if shapes is not None:
            params |= shapes[params.pop(_SHAPE, 0)]
        # CMA-ES keeps its state there; others derive what they write from the parameters.
        own = copy.get_trials(deepcopy=False)[number].system_attrs if sampling.sampler == "cmaes" else {}
        yield params, own


def _in_terms_of(
    distributions: dict[str, BaseDistribution],
    trial: FrozenTrial,
    shapes: Sequence[Shape] | None,
    parameters: Sequence[Parameter],
    lower: float | None,
) -> FrozenTrial:
    """Return a trial for a sampler, to which a shape is one choice; one that failed runs, or has the lower return."""
    own, state, value = dict(trial.params), trial.state, trial.value
    if state == TrialState.FAIL:
        state, value = (TrialState.RUNNING if lower is None else TrialState.COMPLETE), lower
    if _SHAPE in distributions:
        assert shapes is not None
        own[_SHAPE] = shapes.index(shape_of(trial.params, parameters))
    return create_trial(
        state=state,
        value=value,
        params={key: own[key] for key in distributions},
        distributions=distributions,
        system_attrs=trial.system_attrs,
    )


def _points(sampling: Sampling, before: Sequence[FrozenTrial]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the points of the grid that no trial of a run has, shape by shape."""

    def represent(point: Mapping[str, Any]) -> tuple[float, ...]:
        # Of choices, the index: equal ones are one point.
        return tuple(one.distribution.to_internal_repr(point[one.key]) for one in sampling.parameters)

    seen = {represent(trial.params) for trial in before}
    traced = [parameter for parameter in sampling.parameters if parameter.traced]
    for shape in sampling.shapes or ():
        for values in itertools.product(*(parameter.grid(GRID_POINTS) for parameter in traced)):
            point = shape | {parameter.key: value for parameter, value in zip(traced, values, strict=True)}
            if (found := represent(point)) not in seen:
                seen.add(found)
                yield point, {}


def grid_populations(sampling: Sampling, before: Sequence[FrozenTrial], limit: int, size: int) -> list[list[Shape]]:
    """Return the next populations of a grid, by the parameters of their trials."""
    populations, total = list[list[Shape]](), 0
    points = (point for point, _ in _points(sampling, before))
    for _, group in itertools.groupby(points, lambda point: identity(shape_of(point, sampling.parameters))):
        while population := list(itertools.islice(group, size)):
            total += len(population)
            if total > limit:
                return populations
            populations.append(population)
    return populations


def _make_sampler(name: str, seed: int, number: int, startup: int, fixed: dict[str, Any]) -> BaseSampler:
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    sampler: BaseSampler = optuna.samplers.RandomSampler(seed=own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            # The trials of the batch that are drawn already count as bad ones.
            tpe: dict[str, Any] = {"n_startup_trials": startup, "multivariate": True, "constant_liar": True}
            sampler = optuna.samplers.TPESampler(seed=own, **tpe)
        elif name == "cmaes":  # which adds the number of the trial to its seed
            sampler = optuna.samplers.CmaEsSampler(seed=seed, independent_sampler=sampler)
        return optuna.samplers.PartialFixedSampler(fixed, sampler) if fixed else sampler


def random_share(sampler: str, trials: int, parallel: int) -> int:
    """Return the number of trials that a sampler draws at random, before it has returns to learn from."""
    return min(trials, -(-STARTUP.get(sampler, 0) // parallel) * parallel)
