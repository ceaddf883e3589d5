"""Comparison of algorithms: `stoix-like compare`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stoix_like.errors import ConfigError, nearest
from stoix_like.lab.analysis import statistics
from stoix_like.lab.analysis.groups import SCORES, AlgorithmRuns, are_paired, common_tasks, read, sections
from stoix_like.lab.analysis.scores import common_unit, raw_scores, score_tables, with_scores
from stoix_like.lab.analysis.statistics import CORRECTIONS, TESTS, TITLES, Interval
from stoix_like.loggers.formats import MIN_IQM, columns
from stoix_like.storage.recorded_runs import FINISHED, RETURN, TASK, Member, budget, differing_keys, flatten, is_below

HEAD = ("seeds", "steps", "mean", "median", "IQM", "optimality gap")
MIN_SEEDS = 5
MAX_ALL_PAIRS = 6
_WIDTH = 120
_MAX_DIGITS = 6  # after the point
_MOST_NAMED = 5  # runs in a note


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a comparison."""

    score: str = "final"  # `final` compares the last evaluations, `best` the best policies
    test: str = "welch"  # name of the test between two algorithms, a key of `statistics.TESTS`
    level: float = 0.05  # significance level, in (0, 1)
    correction: str = "holm"  # correction for several comparisons, an entry of `statistics.CORRECTIONS`
    # Optimal return, from which the optimality gap is measured; None for the best that occurs.
    target: float | None = None

    def __post_init__(self) -> None:
        """Refuse a value that is unknown or out of range."""
        for name, known in (("score", SCORES), ("test", TESTS), ("correction", CORRECTIONS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value} is unknown: {nearest(str(value), known)}")
        if not 0.0 < self.level < 1.0:
            raise ConfigError(f"level={self.level} must be between 0 and 1: use 0.05")


class Test(NamedTuple):
    """The outcome of a test between two algorithms on one task."""

    task: str  # the environment
    first: str  # label of the first algorithm
    second: str  # label of the second algorithm
    difference: Interval  # mean of the first minus mean of the second
    improvement: Interval  # probability that a run of the first scores higher
    p_value: float  # of the test, uncorrected
    corrected: float = math.nan  # p-value corrected for all tests of the comparison; of a grid, for all pairs
    # Seeds of each with which the test would decide in 80 % of cases, for undecided pairs.
    seeds_needed: int | None = None
    seeds: tuple[int, int] = (0, 0)  # seeds of both
    # Whether both were trained with the same seeds in one population, and are compared seed by seed.
    paired: bool = False
    direction: float = 0.0  # positive if the test favours the first
    equal: str = ""  # what all runs of both return, where it is the same and there is nothing to test; otherwise empty

    @property
    def is_tested(self) -> bool:
        """True if there is a p-value: of several seeds of both, that are not equal, and for a t-test with spread."""
        return not math.isnan(self.p_value)

    def verdict(self, level: float) -> str:
        """Return what the test decides, in a sentence."""
        if self.equal:
            return f"{self.first} and {self.second} are equal: {self.equal}"
        if self.corrected < level:
            return self._decided()
        estimate, low, high = self.difference
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

    def _decided(self) -> str:
        """Return which of both is better; a test of ranks may favour the one of the lower mean."""
        sign = 1 if self.direction > 0 else -1
        better, worse = (self.first, self.second)[::sign]
        estimate, (low, high) = sign * self.difference.estimate, sorted(sign * end for end in self.difference[1:])
        gap = f"{estimate:.4g} [{low:.4g}, {high:.4g}]"
        if estimate > 0:
            return f"{better} is better than {worse} by {gap}, p = {self.corrected:.2g}"
        return f"{better} ranks above {worse}, p = {self.corrected:.2g}, but its mean does not: difference {gap}"


class Comparison(NamedTuple):
    """The outcome of a comparison; `print` shows it."""

    settings: Settings  # the settings
    algorithms: list[AlgorithmRuns]  # the algorithms
    tasks: list[str]  # the environments that are common to all of them
    target: float  # the score of no optimality gap, in units of the aggregates
    # Statistics by label and name: `mean`, `median`, `iqm`, `optimality_gap`.
    aggregates: dict[str, dict[str, Interval]]
    tests: list[Test]  # one per task and pair
    notes: list[str]  # what the reader must know

    @property
    def rows(self) -> list[list[str]]:
        """The aggregate statistics as text, with the cells of `HEAD` after the label; of many algorithms best first."""
        return [
            [
                algorithm.label,
                "/".join(str(len(algorithm.tasks[task])) for task in self.tasks),
                _steps(algorithm, self.tasks),
                *(
                    "–" if self._says_nothing(name, algorithm) else format_interval(interval)
                    for name, interval in self.aggregates[algorithm.label].items()
                ),
            ]
            for algorithm in self.algorithms
        ]

    def _says_nothing(self, name: str, algorithm: AlgorithmRuns) -> bool:
        """Return whether a statistic is the mean of so few scores, or the distance of single scores to each other."""
        if name == "iqm":
            return _num_scores(algorithm, self.tasks) < MIN_IQM
        return name == "optimality_gap" and not self.has_gap

    @property
    def has_gap(self) -> bool:
        """True unless the target is the best of single seeds."""
        seeds = max(len(one.tasks[task]) for one in self.algorithms for task in self.tasks)
        return self.settings.target is not None or seeds > 1

    @property
    def is_grid(self) -> bool:
        """True if there are so many algorithms that only the best one is compared with each other one."""
        return len(self.algorithms) > MAX_ALL_PAIRS

    @property
    def test_title(self) -> str:
        """Names and settings of the tests, as a title."""
        settings = self.settings
        names = dict.fromkeys(_test_title(test, settings.test) for test in self.tests if test.is_tested)
        corrected = "" if settings.correction == "none" else f", corrected by {settings.correction}"
        if settings.test == "welch":
            interval = "its intervals of the difference between means"
        else:
            interval = "bootstrap intervals of the difference between means"
        return f"{', '.join(names)}, level {settings.level:g}{corrected}, with {interval}"

    def __str__(self) -> str:
        """Return the comparison as text."""
        return "\n".join(_lines(self))


def compare(
    paths: str | Path | Iterable[str | Path] | Sequence[AlgorithmRuns],
    settings: Settings | None = None,
    by: Sequence[str] = (),
) -> Comparison:
    """Compare algorithms by their returns over seeds and tasks.

    Args:
        paths: run directories or directories that contain runs, grouped as by `read`; or algorithms from `read`.
        settings: what to compare, and how.
        by: dotted keys; only their values make an algorithm, see `read`.

    Raises:
        ConfigError: a setting is unknown, a path holds no run, or no environment is common to all algorithms.
    """
    return _compare(_algorithms(paths, by), settings or Settings())


def compare_all(
    paths: str | Path | Iterable[str | Path] | Sequence[AlgorithmRuns],
    settings: Settings | None = None,
    by: Sequence[str] = (),
) -> list[Comparison]:
    """Compare the algorithms of each set of environments that the same algorithms were trained on; see `compare`."""
    return [_compare(section, settings or Settings()) for section in sections(_algorithms(paths, by))]


def _compare(algorithms: list[AlgorithmRuns], settings: Settings) -> Comparison:
    tasks = common_tasks(algorithms)
    notes: list[str] = []
    if settings.target is not None and len(tasks) > 1:
        one = f"target={settings.target:g} is a return of one environment"
        raise ConfigError(f"{one}, and these runs have {len(tasks)}: omit it")
    algorithms = with_scores(algorithms, settings.score, notes)
    scores = raw_scores(algorithms, tasks, settings.score, notes)
    tables = score_tables(scores, tasks, notes)
    best = max(float(np.max(table)) for table in tables.values())
    target = best if settings.target is None else settings.target
    found = {label: statistics.aggregates(table, target, settings.level) for label, table in tables.items()}
    if len(algorithms) > MAX_ALL_PAIRS:
        algorithms = sorted(algorithms, key=lambda algorithm: found[algorithm.label]["iqm"].estimate, reverse=True)
        corrected = "" if settings.correction == "none" else ", corrected for all pairs"
        notes.append(f"more than {MAX_ALL_PAIRS} algorithms: only the best one is tested against the others{corrected}")
    few = len(algorithms) <= MAX_ALL_PAIRS
    together = [pair for pair in itertools.combinations(algorithms, 2) if few or pair[0] is algorithms[0]]
    pairs = [(index, *pair) for index in range(len(tasks)) for pair in together]
    # The scores themselves choose the best one: its tests count for all pairs that could have been chosen.
    untested = len(tasks) * math.comb(len(algorithms), 2) - len(pairs)
    samples = [(scores[first.label][index], scores[second.label][index]) for index, first, second in pairs]
    equal = [_equal(algorithms, (first, second), tasks[index], settings) for index, first, second in pairs]
    tests = [
        _test(tasks[index], first, second, *sample, settings, how)
        for (index, first, second), sample, how in zip(pairs, samples, equal, strict=True)
    ]
    p_values = statistics.correct([test.p_value for test in tests], settings.correction, untested)
    num_tests = max(1, untested + sum(not test.equal for test in tests))
    decided = zip(tests, p_values, samples, strict=True)
    tests = [_decide(test, p, sample, settings, num_tests) for test, p, sample in decided]
    seeds = [len(values) for columns in scores.values() for values in columns]
    if min(seeds) < MIN_SEEDS:
        notes.append(f"fewer than {MIN_SEEDS} seeds: tests and intervals say little; train more seeds")
    if any(_num_scores(algorithm, tasks) < MIN_IQM for algorithm in algorithms):
        notes.append(f"an IQM needs {MIN_IQM} scores: see the mean")
    notes += [note for algorithm in algorithms for task in tasks if (note := _differing_env_keys(algorithm, task))]
    notes += _notes_on_training([member for one in algorithms for task in tasks for member in one.tasks[task]])
    return Comparison(settings, algorithms, tasks, target, found, tests, notes)


def _notes_on_training(members: Sequence[Member]) -> list[str]:
    """Return which runs have not finished, and whether the budgets of members differ."""
    notes = []
    status = {member.run.directory: member.run.status for member in members if not member.failure}
    if unfinished := [f"{directory} ({one})" for directory, one in status.items() if one != FINISHED]:
        named = ", ".join(unfinished[:_MOST_NAMED]) + ", …" * (len(unfinished) > _MOST_NAMED)
        notes.append(
            f"{len(unfinished)} run(s) have not finished: {named}: their last evaluations are not final returns; resume"
            " them or leave them out"
        )
    finished = {directory for directory, one in status.items() if one == FINISHED}
    steps = {
        member.value(member.run.last, "env_steps") if member.run.directory in finished else budget(member.run)
        for member in members
    }
    # Runs last whole updates.
    if max(steps) > 1.02 * min(steps):
        notes.append(
            f"budgets differ, from {min(steps):,.0f} to {max(steps):,.0f} {common_unit(members)}: these are returns"
            " after different amounts of training; `stoix-like plot` compares them at equal steps"
        )
    return notes


def _differing_env_keys(algorithm: AlgorithmRuns, task: str) -> str | None:
    """Return in which keys of the environment, besides the keys of its task, members of an algorithm differ."""
    runs = {member.run.directory: member.run for member in algorithm.tasks[task]}
    chosen = [dict(flatten({"env": run.config["env"]})) for run in runs.values()]
    keys = [key for key in differing_keys(chosen) if not is_below(key, TASK)]
    differ = f"{algorithm.label} on {task}: members that differ in {', '.join(keys)} count as one algorithm"
    return f"{differ}; `--by` tells them apart" if keys else None


def _steps(algorithm: AlgorithmRuns, tasks: Sequence[str]) -> str:
    steps = [member.value(member.run.last, "env_steps") for task in tasks for member in algorithm.tasks[task]]
    return "–".join(f"{step:,.0f}" for step in dict.fromkeys((min(steps), max(steps))))


def _num_scores(algorithm: AlgorithmRuns, tasks: Sequence[str]) -> int:
    return min(len(algorithm.tasks[task]) for task in tasks) * len(tasks)


def _algorithms(
    paths: str | Path | Iterable[str | Path] | Sequence[AlgorithmRuns], by: Sequence[str]
) -> list[AlgorithmRuns]:
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    algorithms = [item for item in given if isinstance(item, AlgorithmRuns)]
    return algorithms if given and len(algorithms) == len(given) else read(given, by)  # type: ignore[arg-type]


def _test(
    task: str, first: AlgorithmRuns, second: AlgorithmRuns, x: np.ndarray, y: np.ndarray, settings: Settings, equal: str
) -> Test:
    paired = are_paired(first, second, task)
    return Test(
        task,
        first.label,
        second.label,
        statistics.difference(x, y, settings.level, test=settings.test, paired=paired),
        statistics.probability_of_improvement(x, y, settings.level),
        math.nan if equal else statistics.p_value(settings.test, x, y, paired),
        seeds=(len(x), len(y)),
        paired=paired,
        direction=statistics.direction(settings.test, x, y, paired),
        equal=equal,
    )


def _equal(algorithms: Sequence[AlgorithmRuns], pair: Sequence[AlgorithmRuns], task: str, settings: Settings) -> str:
    """Return how the runs of a pair are equal, all of them or seed by seed; empty if not, or if there are too few."""
    scores = [algorithm.scores(task, settings.score) for algorithm in pair]
    value = scores[0][0]
    if min(map(len, scores)) < 2:
        return ""
    if any((values != value).any() for values in scores):
        seeds = [[member.seed for member in algorithm.tasks[task]] for algorithm in pair]
        same = seeds[0] == seeds[1] and np.array_equal(scores[0], scores[1])
        return "each seed returns the same with both" if same else ""
    members = [member for algorithm in algorithms for member in algorithm.tasks[task]]
    evaluated = [member.number(one) for member in members for one in member.run.series(RETURN).values]
    # Where no evaluation ever returned less, runs may have failed alike.
    if np.nanmin(evaluated) < value and np.nanmax(evaluated) <= value:
        return f"both reach the largest return, {value:.4g}"
    return f"all their runs return {value:.4g}"


def _decide(test: Test, corrected: float, samples: Sequence[np.ndarray], settings: Settings, num_tests: int) -> Test:
    """Add the corrected p-value, and the seeds that an undecided test needs at the level of the first of all tests."""
    needed = None
    if not corrected < settings.level:
        level = settings.level / (1 if settings.correction == "none" else num_tests)
        needed = statistics.seeds_needed(samples[0], samples[1], settings.test, level, paired=test.paired)
    return test._replace(corrected=corrected, seeds_needed=needed)


def _test_title(test: Test, name: str) -> str:
    title = (statistics.PAIRED_TITLES if test.paired else TITLES)[name]
    if name != "permutation":
        return title
    exact = statistics.is_exact(test.seeds[0], None if test.paired else test.seeds[1])
    return f"{title} ({'exact' if exact else f'{statistics.NUM_RESAMPLES:,} random permutations'})"


def _lines(comparison: Comparison) -> list[str]:
    settings = comparison.settings
    of = "best policies" if settings.score == "best" else "last evaluations"
    title = f"mean episode returns of the {of} on {', '.join(comparison.tasks)}"
    if any(not math.isnan(found["mean"].low) for found in comparison.aggregates.values()):
        title += f", {100.0 * (1.0 - settings.level):g} % bootstrap intervals"
    lines = [title, ""]
    lines += columns([["", *HEAD], *comparison.rows])
    lines += ["", f"optimality gap: mean shortfall from {comparison.target:.4g}"] if comparison.has_gap else []
    if comparison.tests:
        lines += ["", comparison.test_title] if any(test.is_tested for test in comparison.tests) else [""]
        lines += _grid_lines(comparison) if comparison.is_grid else _pair_lines(comparison)
    return [*lines, *itertools.chain.from_iterable(_wrap(f"note: {note}") for note in comparison.notes)]


def _wrap(text: str, indent: str = "") -> list[str]:
    """Break a sentence into lines; those after the first one are indented further."""
    wrapper = textwrap.TextWrapper(_WIDTH, indent, f"{indent}  ", break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


def _pair_lines(comparison: Comparison) -> list[str]:
    lines = []
    for test in comparison.tests:
        on = f"{test.task}: " if len(comparison.tasks) > 1 else ""
        lines += _wrap(f"{on}{test.verdict(comparison.settings.level)}", "  ")
        if not test.equal and max(test.seeds) > 1:
            lines += _wrap(f"P({test.first} > {test.second}) = {format_interval(test.improvement, 2)}", "    ")
    return lines


def _grid_lines(comparison: Comparison) -> list[str]:
    """Return a table of the other algorithms against the best one, by environment."""
    level, lines = comparison.settings.level, [f"best: {comparison.algorithms[0].label}, compared with:"]
    for task in comparison.tasks:
        head = [task if len(comparison.tasks) > 1 else "", "better by", "p", "", "seeds to decide"]
        lines += columns([head, *(_grid_row(test, level) for test in comparison.tests if test.task == task)])
    return lines


def _grid_row(test: Test, level: float) -> list[str]:
    decided = "equal" if test.equal else "*" if test.corrected < level else ""
    p_value = "–" if math.isnan(test.corrected) else f"{test.corrected:.2g}"
    needed = "" if decided else str(test.seeds_needed or "–")
    return [test.second, format_interval(test.difference), p_value, decided, needed]


def format_interval(interval: Interval, digits: int | None = None) -> str:
    """Return an interval as `estimate [low, high]`, and an estimate without one alone."""
    if digits is None:
        largest = np.nanmax(np.abs(interval))
        digits = 2 if largest < 2.0 else 1
        if 0.0 < largest < 0.1:
            digits = min(1 - math.floor(math.log10(largest)), _MAX_DIGITS)
    estimate, low, high = (f"{value:.{digits}f}" for value in interval)
    return estimate if math.isnan(interval.low) else f"{estimate} [{low}, {high}]"
