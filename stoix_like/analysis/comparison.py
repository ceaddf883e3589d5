"""Comparison of algorithms: `stoix-like compare`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from stoix_like.analysis import statistics
from stoix_like.analysis.groups import SCORES, Algorithm, common_tasks, read
from stoix_like.analysis.scores import raw_scores, score_tables
from stoix_like.analysis.statistics import CORRECTIONS, TESTS, TITLES, Interval
from stoix_like.errors import ConfigError, nearest
from stoix_like.loggers.formats import columns

HEAD = ("seeds", "mean", "median", "IQM", "optimality gap")
MIN_SEEDS = 5
MAX_ALL_PAIRS = 6


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a comparison.

    Attributes:
        score: `final` compares the last evaluations, `best` the best policies.
        test: name of the test between two algorithms, a key of `statistics.TESTS`.
        level: significance level, in (0, 1).
        correction: correction for several comparisons, an entry of `statistics.CORRECTIONS`.
        target: optimal return, from which the optimality gap is measured; None for the best that occurs.
    """

    score: str = "final"
    test: str = "welch"
    level: float = 0.05
    correction: str = "holm"
    target: float | None = None

    def check(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value is unknown or out of range.
        """
        for name, known in (("score", SCORES), ("test", TESTS), ("correction", CORRECTIONS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value} is unknown: {nearest(str(value), known)}")
        if not 0.0 < self.level < 1.0:
            raise ConfigError(f"level={self.level} must be between 0 and 1: use 0.05")


class Test(NamedTuple):
    """The outcome of a test between two algorithms on one task.

    Attributes:
        task: the environment.
        first: label of the first algorithm.
        second: label of the second algorithm.
        difference: mean of the first minus mean of the second.
        improvement: probability that a run of the first scores higher.
        p_value: of the test, uncorrected.
        corrected: p-value corrected for all tests of the comparison.
        seeds_needed: seeds of each with which the test would decide in 80 % of cases, for undecided pairs.
        seeds: seeds of both.
    """

    task: str
    first: str
    second: str
    difference: Interval
    improvement: Interval
    p_value: float
    corrected: float = math.nan
    seeds_needed: int | None = None
    seeds: tuple[int, int] = (0, 0)

    def verdict(self, level: float) -> str:
        """Return what the test decides, in a sentence.

        Args:
            level: significance level.
        """
        estimate, low, high = self.difference
        gap = f"by {abs(estimate):.4g} [{min(abs(low), abs(high)):.4g}, {max(abs(low), abs(high)):.4g}]"
        if self.corrected < level:
            better, worse = (self.first, self.second) if estimate > 0 else (self.second, self.first)
            return f"{better} is better than {worse} {gap}, p = {self.corrected:.2g}"
        if min(self.seeds) < 2:
            return f"{self.first} and {self.second}: undecided, since a test needs at least two seeds of each"
        if math.isnan(self.corrected):
            return f"{self.first} and {self.second}: the test is not defined without spread; try test=mann_whitney"
        text = f"{self.first} and {self.second}: undecided, difference {estimate:.4g} [{low:.4g}, {high:.4g}]"
        text += f", p = {self.corrected:.2g}"
        if estimate == 0.0:
            return text
        if self.seeds_needed is None:
            return f"{text}; 1,000 seeds of each would not be enough"
        return f"{text}; about {self.seeds_needed} seeds of each would decide it"


class Comparison(NamedTuple):
    """The outcome of a comparison; `print` shows it.

    Attributes:
        settings: the settings.
        algorithms: the algorithms.
        tasks: the environments that are common to all of them.
        target: the score of no optimality gap, in units of the aggregates.
        aggregates: statistics by label and name: `mean`, `median`, `iqm`, `optimality_gap`.
        tests: one per task and pair.
        notes: what the reader must know.
    """

    settings: Settings
    algorithms: list[Algorithm]
    tasks: list[str]
    target: float
    aggregates: dict[str, dict[str, Interval]]
    tests: list[Test]
    notes: list[str]

    @property
    def rows(self) -> list[list[str]]:
        """The aggregate statistics as text: label, and the cells of `HEAD`."""
        return [
            [
                algorithm.label,
                "/".join(str(len(algorithm.tasks[task])) for task in self.tasks),
                *(format_interval(interval) for interval in self.aggregates[algorithm.label].values()),
            ]
            for algorithm in self.algorithms
        ]

    @property
    def table(self) -> pd.DataFrame:
        """The aggregate statistics, one row per algorithm."""
        rows = {
            label: {
                f"{name}{suffix}": value
                for name, interval in found.items()
                for suffix, value in zip(("", "_low", "_high"), interval, strict=True)
            }
            for label, found in self.aggregates.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def __str__(self) -> str:
        """Return the comparison as text."""
        return "\n".join(_lines(self))


def compare(
    paths: str | Path | Iterable[str | Path] | Sequence[Algorithm],
    settings: Settings | None = None,
    by: Sequence[str] = (),
) -> Comparison:
    """Compare algorithms by their returns over seeds and tasks.

    Args:
        paths: run directories or directories that contain runs, grouped as by `read`; or algorithms from `read`.
        settings: what to compare, and how.
        by: dotted keys whose values alone make an algorithm, see `read`.

    Returns:
        The comparison.

    Raises:
        ConfigError: a setting is unknown, a path holds no run, or no environment is common to all algorithms.
    """
    settings = settings or Settings()
    settings.check()
    algorithms = _algorithms(paths, by)
    tasks = common_tasks(algorithms)
    notes: list[str] = []
    if settings.target is not None and len(tasks) > 1:
        raise ConfigError(
            f"target={settings.target:g} is a return of one environment, and these runs have {len(tasks)}: omit it"
        )
    scores = raw_scores(algorithms, tasks, settings.score, notes)
    tables = score_tables(scores, tasks, notes)
    best = max(float(np.max(table)) for table in tables.values())
    target = best if settings.target is None else settings.target
    pairs = [(index, *pair) for index in range(len(tasks)) for pair in _pairs(tables, notes)]
    samples = [(scores[first][index], scores[second][index]) for index, first, second in pairs]
    tests = [
        _test(tasks[index], first, second, *sample, settings)
        for (index, first, second), sample in zip(pairs, samples, strict=True)
    ]
    corrected = statistics.correct([test.p_value for test in tests], settings.correction)
    tests = [
        _decide(test, p, sample, settings, len(tests))
        for test, p, sample in zip(tests, corrected, samples, strict=True)
    ]
    seeds = [len(values) for columns in scores.values() for values in columns]
    if tests and min(seeds) < MIN_SEEDS:
        notes.append(f"fewer than {MIN_SEEDS} seeds: tests and intervals say little; train more seeds")
    if settings.test == "bootstrap" and min(seeds) < 20:
        notes.append("with fewer than 20 seeds, the bootstrap test decides too easily: prefer welch")
    found = statistics.aggregates(tables, target, settings.level)
    return Comparison(settings, algorithms, tasks, target, found, tests, notes)


def _pairs(tables: dict[str, np.ndarray], notes: list[str]) -> list[tuple[str, str]]:
    """Return the pairs to test: all of a few algorithms, otherwise the best against each other one."""
    if len(tables) <= MAX_ALL_PAIRS:
        return list(itertools.combinations(tables, 2))
    best = max(tables, key=lambda label: float(np.mean(tables[label])))
    notes.append(
        f"more than {MAX_ALL_PAIRS} algorithms: only the one with the highest mean is tested against the others"
    )
    return [(best, other) for other in tables if other != best]


def _algorithms(paths: str | Path | Iterable[str | Path] | Sequence[Algorithm], by: Sequence[str]) -> list[Algorithm]:
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if given and all(isinstance(item, Algorithm) for item in given):
        return [item for item in given if isinstance(item, Algorithm)]
    return read([item for item in given if isinstance(item, (str, Path))], by)


def _test(task: str, first: str, second: str, x: np.ndarray, y: np.ndarray, settings: Settings) -> Test:
    return Test(
        task,
        first,
        second,
        statistics.difference(x, y, settings.level),
        statistics.probability_of_improvement(x[:, None], y[:, None], settings.level),
        statistics.p_value(settings.test, x, y),
        seeds=(len(x), len(y)),
    )


def _decide(test: Test, corrected: float, samples: Sequence[np.ndarray], settings: Settings, num_tests: int) -> Test:
    """Add the corrected p-value, and the seeds that an undecided test needs at the level of the first of all tests."""
    needed = None
    if not corrected < settings.level:
        level = settings.level / (1 if settings.correction == "none" else num_tests)
        needed = statistics.seeds_needed(samples[0], samples[1], settings.test, level)
    return test._replace(corrected=corrected, seeds_needed=needed)


def _lines(comparison: Comparison) -> list[str]:
    settings = comparison.settings
    percent = f"{100.0 * (1.0 - settings.level):g} %"
    of = "best policies" if settings.score == "best" else "last evaluations"
    lines = [f"mean episode returns of the {of} on {', '.join(comparison.tasks)}, {percent} bootstrap intervals", ""]
    lines += columns([["", *HEAD], *comparison.rows])
    lines += ["", f"optimality gap: mean shortfall from {comparison.target:.4g}"]
    if comparison.tests:
        corrected = "" if settings.correction == "none" else f", corrected by {settings.correction}"
        lines += ["", f"{TITLES[settings.test]}, level {settings.level:g}{corrected}"]
        for test in comparison.tests:
            on = f"{test.task}: " if len(comparison.tasks) > 1 else ""
            lines.append(f"  {on}{test.verdict(settings.level)}")
            lines.append(f"    P({test.first} > {test.second}) = {format_interval(test.improvement, 2)}")
    return [*lines, *(f"note: {note}" for note in comparison.notes)]


def format_interval(interval: Interval, digits: int | None = None) -> str:
    """Return an interval as `estimate [low, high]`.

    Args:
        interval: the interval.
        digits: digits after the point; by default two for values below 2 and one otherwise.
    """
    if digits is None:
        digits = 2 if max(map(abs, interval)) < 2.0 else 1
    estimate, low, high = (f"{value:.{digits}f}" for value in interval)
    return f"{estimate} [{low}, {high}]"
