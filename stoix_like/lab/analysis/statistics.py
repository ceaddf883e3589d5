"""Aggregate statistics over seeds and tasks, tests between two algorithms, and the seeds that a test needs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CORRECTIONS = ("holm", "bonferroni", "fdr_bh", "none")
NUM_RESAMPLES = 50_000
# Permutation tests of more splits of the scores, or signs of the differences, draw `NUM_RESAMPLES` of them.
MAX_PERMUTATIONS = 1_000_000
POWER = 0.8
_NUM_SIMULATIONS = 500
_ROWS = 1000  # resamples in memory at a time
# Each about a tenth more than the one before.
_SIZES = (*range(2, 16), *(round(1.1**power) for power in range(29, 73)), 1000)


class Interval(NamedTuple):
    """A point estimate and the ends of its interval; NaN where a sample has a single score, which has no interval."""

    estimate: float
    low: float = math.nan
    high: float = math.nan


def aggregates(values: np.ndarray, target: float, level: float = 0.05) -> dict[str, Interval]:
    """Compute mean, median, interquartile mean and optimality gap, with stratified bootstrap intervals.

    With several tasks, the median is over the tasks' means. Source: Agarwal et al. 2021, "Deep reinforcement
    learning at the edge of the statistical precipice", section 4.

    `values`: `[S, K]` scores of S seeds on K tasks.
    """
    flat, num_tasks = values.T.ravel(), values.shape[1]

    def all_of(counts: np.ndarray) -> np.ndarray:
        by_task = (counts.reshape(len(counts), num_tasks, -1) * values.T).mean(-1)
        median = np.median(by_task, axis=-1) if num_tasks > 1 else trimmed_mean(flat, counts, (flat.size - 1) // 2)
        gap = (counts * np.maximum(target - flat, 0.0)).mean(-1)
        return np.stack([by_task.mean(-1), median, trimmed_mean(flat, counts, flat.size // 4), gap], axis=-1)

    estimates = all_of(np.ones((1, flat.size)))[0]
    names = ("mean", "median", "iqm", "optimality_gap")
    if len(values) == 1:
        return dict(zip(names, map(Interval, estimates.tolist()), strict=True))
    # Seeded for each: results do not depend on which other algorithms are compared.
    resampled = np.concatenate([all_of(counts) for counts in resample_counts(values.shape, 0)])
    return {name: interval(estimates[index], resampled[:, index], level) for index, name in enumerate(names)}


def resample_counts(shape: tuple[int, ...], seed: int, number: int | None = None) -> Iterator[np.ndarray]:
    """Draw bootstrap samples of seeds within each task, as counts: how often each score occurs."""
    size, num_tasks = shape
    rng, number = np.random.default_rng(seed), number or NUM_RESAMPLES
    for start in range(0, number, _ROWS):
        rows = min(_ROWS, number - start)
        yield rng.multinomial(size, np.full(size, 1.0 / size), size=(rows, num_tasks)).reshape(rows, -1)


def trimmed_mean(values: np.ndarray, counts: np.ndarray, cut: int) -> np.ndarray:
    """Return means without the `cut` lowest and highest scores of samples.

    `values`: `[M]` scores.
    `counts`: `[R, M]`, how often each of them occurs in each sample; rows have the sum M.
    Returns `[R]` means.
    """
    order = np.argsort(values)
    ends = np.cumsum(counts[:, order], axis=-1)
    kept = np.diff(np.clip(ends, cut, values.size - cut), axis=-1, prepend=cut)
    return kept @ values[order] / (values.size - 2 * cut)


def interval(estimate: float, resampled: np.ndarray, level: float) -> Interval:
    """Return an estimate with the central share of resampled ones."""
    low, high = np.quantile(resampled, [level / 2.0, 1.0 - level / 2.0])
    return Interval(float(estimate), float(low), float(high))


def probability_of_improvement(x: np.ndarray, y: np.ndarray, level: float = 0.05) -> Interval:
    """Compute the probability that a run of X, of scores `[S]`, is better than one of Y, `[S']`; ties count half.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.
    """
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    if min(len(x), len(y)) == 1:
        return Interval(float(wins.mean()))
    counts = zip(resample_counts((len(x), 1), 0), resample_counts((len(y), 1), 1), strict=True)
    resampled = [((first @ wins) * second).sum(-1) / wins.size for first, second in counts]
    return interval(wins.mean(), np.concatenate(resampled), level)


def _permutation(x: np.ndarray, y: np.ndarray, paired: bool = False) -> Any:
    """Test the difference between means by permutation; if paired, by random signs of the differences."""

    def difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return x.mean(axis) - y.mean(axis)

    samples, statistic, kind = ((x - y,), np.mean, "samples") if paired else ((x, y), difference, "independent")
    number = MAX_PERMUTATIONS if is_exact(x.shape[-1], None if paired else y.shape[-1]) else NUM_RESAMPLES
    options: dict[str, Any] = {"vectorized": True, "batch": _ROWS, "axis": -1, "rng": np.random.default_rng(0)}
    return stats.permutation_test(samples, statistic, permutation_type=kind, n_resamples=number, **options)


TESTS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "welch": partial(stats.ttest_ind, axis=-1, equal_var=False),  # the variances may differ
    "mann_whitney": partial(stats.mannwhitneyu, axis=-1),
    "permutation": _permutation,
}
"""Tests of samples `[..., S]` against `[..., S']`; their results have a `pvalue` `[...]`."""
PAIRED_TESTS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "welch": partial(stats.ttest_rel, axis=-1),
    "mann_whitney": partial(stats.wilcoxon, axis=-1),
    "permutation": partial(_permutation, paired=True),
}
"""Tests seed by seed, of `[..., S]` against `[..., S]`."""
TITLES = {"welch": "Welch's t-test", "mann_whitney": "Mann–Whitney U test", "permutation": "permutation test"}
PAIRED_TITLES = {
    "welch": "paired t-test",
    "mann_whitney": "Wilcoxon's signed-rank test",
    "permutation": "paired permutation test",
}


def is_exact(size: int, other: int | None = None) -> bool:
    """Return whether a permutation test enumerates all permutations. `other`: the other size; None if paired."""
    return (2**size if other is None else math.comb(size + other, size)) <= MAX_PERMUTATIONS


def p_value(test: str, x: np.ndarray, y: np.ndarray, paired: bool = False) -> float:
    """Return the two-sided p-value of a test between two samples. `x`: `[S]` scores. `y`: `[S']` scores."""
    if min(len(x), len(y)) < 2:
        return math.nan
    if np.array_equal(x, y) if paired else np.ptp(np.concatenate([x, y])) == 0.0:
        return 1.0
    without_spread = np.ptp(x - y) == 0.0 if paired else np.ptp(x) == np.ptp(y) == 0.0
    if without_spread and test == "welch":
        return math.nan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of samples that are nearly constant
        return float((PAIRED_TESTS if paired else TESTS)[test](x, y).pvalue)


def direction(test: str, x: np.ndarray, y: np.ndarray, paired: bool = False) -> float:
    """Return which of two samples a test favours: of rank tests the one of higher ranks, otherwise of higher mean."""
    if test != "mann_whitney":
        return float(np.mean(x) - np.mean(y))
    if not paired:
        return float(np.mean(np.sign(x[:, None] - y)))
    apart = (x - y)[x != y]
    return float(np.sign(apart) @ stats.rankdata(np.abs(apart)))


def correct(p_values: Sequence[float], method: str, untested: int = 0) -> list[float]:
    """Correct p-values for several comparisons."""
    values = np.asarray(p_values, np.float64)
    defined = ~np.isnan(values)
    found, number = values[defined], int(defined.sum()) + untested
    if method == "bonferroni":
        values[defined] = np.minimum(number * found, 1.0)
    elif method == "fdr_bh" and found.size:
        values[defined] = np.minimum(stats.false_discovery_control(found) * (number / found.size), 1.0)
    elif method == "holm":
        order = np.argsort(found)
        steps = np.minimum(np.maximum.accumulate((number - np.arange(found.size)) * found[order]), 1.0)
        values[defined] = steps[np.argsort(order)]
    return [float(value) for value in values]


def difference(
    x: np.ndarray, y: np.ndarray, level: float = 0.05, test: str = "permutation", paired: bool = False
) -> Interval:
    """Return the difference between the means of X and Y with its interval: of a t-test its own, else a bootstrap's."""
    estimate = float(np.mean(x) - np.mean(y))
    if min(len(x), len(y)) == 1:
        return Interval(estimate)
    if test == "welch" and not math.isnan(p_value(test, x, y, paired)) and np.ptp(x - y if paired else [*x, *y]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of samples that are nearly constant
            result = (PAIRED_TESTS if paired else TESTS)[test](x, y)
            return Interval(estimate, *map(float, result.confidence_interval(1.0 - level)))
    resampled = [
        np.concatenate([counts @ sample / len(sample) for counts in resample_counts((len(sample), 1), place)])
        for place, sample in enumerate([x - y] if paired else [x, y])
    ]
    return interval(estimate, resampled[0] if paired else resampled[0] - resampled[1], level)


def seeds_needed(x: np.ndarray, y: np.ndarray, test: str, level: float = 0.05, paired: bool = False) -> int | None:
    """Return the number of seeds of each algorithm with which a test decides in 80 % of cases, by simulation.

    Scores are drawn from normal distributions with the observed means and standard deviations. The permutation test is
    simulated by a t-test, which has nearly the same power. Without spread, scores are the observed ones, repeated.

    Returns the number of seeds, or None if 1,000 are not enough, or the test is not defined.
    """
    samples = (x - y, np.zeros_like(y)) if paired else (x, y)
    if min(len(x), len(y)) < 2 or np.mean(x) == np.mean(y):
        return None
    if all(np.ptp(z) == 0.0 for z in samples):
        # Of permutations that are drawn, none decides what all of fewer seeds do not.
        sizes = (size for size in _SIZES if test != "permutation" or is_exact(size, None if paired else size))
        repeated = ((size, *(np.full(size, z[0]) for z in samples)) for size in sizes)
        return next((size for size, first, second in repeated if p_value(test, first, second, paired) < level), None)
    function = (PAIRED_TESTS if paired else TESTS)["welch" if test == "permutation" else test]
    rng = np.random.default_rng(0)

    def power(size: int) -> float:
        drawn = [rng.normal(np.mean(z), np.std(z, ddof=1), (_NUM_SIMULATIONS, size)) for z in samples]
        return float(np.mean(function(*drawn).pvalue < level))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return next((size for size in _SIZES if power(size) >= POWER), None)
