"""Aggregate statistics over seeds and tasks, tests between two algorithms, and the seeds that a test needs."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

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
    """A point estimate and the ends of its interval."""

    estimate: float
    low: float
    high: float


def aggregates(
    scores: Mapping[str, np.ndarray], target: float, level: float = 0.05, seed: int = 0
) -> dict[str, dict[str, Interval]]:
    """Compute mean, median, interquartile mean and optimality gap, with stratified bootstrap intervals.

    With several tasks, the median is that of the tasks' means. Source: Agarwal et al. 2021, "Deep reinforcement
    learning at the edge of the statistical precipice", section 4.

    Args:
        scores: `[S, K]` scores of S seeds on K tasks, by algorithm.
        target: the score that would be optimal; the optimality gap is the mean shortfall from it.
        level: significance level; intervals have the confidence 1 - level.
        seed: seed of the resampling.

    Returns:
        `mean`, `median`, `iqm` and `optimality_gap` by algorithm.
    """
    return {name: _aggregates(values, target, level, seed) for name, values in scores.items()}


def _aggregates(values: np.ndarray, target: float, level: float, seed: int) -> dict[str, Interval]:
    flat, num_tasks = values.T.ravel(), values.shape[1]

    def all_of(counts: np.ndarray) -> np.ndarray:
        by_task = (counts.reshape(len(counts), num_tasks, -1) * values.T).mean(-1)
        median = np.median(by_task, axis=-1) if num_tasks > 1 else trimmed_mean(flat, counts, (flat.size - 1) // 2)
        gap = (counts * np.maximum(target - flat, 0.0)).mean(-1)
        return np.stack([by_task.mean(-1), median, trimmed_mean(flat, counts, flat.size // 4), gap], axis=-1)

    # Seeded for each: results do not depend on which other algorithms are compared.
    resampled = np.concatenate([all_of(counts) for counts in resample_counts(values.shape, seed)])
    estimates = all_of(np.ones((1, flat.size)))[0]
    names = ("mean", "median", "iqm", "optimality_gap")
    return {name: _interval(estimates[index], resampled[:, index], level) for index, name in enumerate(names)}


def resample_counts(shape: tuple[int, ...], seed: int, number: int | None = None) -> Iterator[np.ndarray]:
    """Draw bootstrap samples of seeds within each task, as counts: how often each score occurs.

    Args:
        shape: `(S, K)`: number of seeds, and of tasks.
        seed: seed of the resampling.
        number: number of samples, by default `NUM_RESAMPLES`.

    Yields:
        Chunks `[R, K * S]`, task by task.
    """
    size, num_tasks = shape
    rng, number = np.random.default_rng(seed), number or NUM_RESAMPLES
    for start in range(0, number, _ROWS):
        rows = min(_ROWS, number - start)
        yield rng.multinomial(size, np.full(size, 1.0 / size), size=(rows, num_tasks)).reshape(rows, -1)


def trimmed_mean(values: np.ndarray, counts: np.ndarray, cut: int) -> np.ndarray:
    """Return means without the `cut` lowest and highest scores of samples.

    Args:
        values: `[M]` scores.
        counts: `[R, M]`, how often each of them occurs in each sample; rows have the sum M.
        cut: number of scores that each end of a sample loses.

    Returns:
        `[R]` means.
    """
    order = np.argsort(values)
    ends = np.cumsum(counts[:, order], axis=-1)
    kept = np.diff(np.clip(ends, cut, values.size - cut), axis=-1, prepend=cut)
    return kept @ values[order] / (values.size - 2 * cut)


def _interval(estimate: float, resampled: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(resampled, [level / 2.0, 1.0 - level / 2.0])
    return Interval(float(estimate), float(low), float(high))


def probability_of_improvement(x: np.ndarray, y: np.ndarray, level: float = 0.05, seed: int = 0) -> Interval:
    """Compute the probability that a run of X scores higher than a run of Y; ties count half.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.

    Args:
        x: `[S]` scores.
        y: `[S']` scores.
        level: significance level; the interval has the confidence 1 - level.
        seed: seed of the resampling.

    Returns:
        The probability with its bootstrap interval.
    """
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    counts = zip(resample_counts((len(x), 1), seed), resample_counts((len(y), 1), seed + 1), strict=True)
    resampled = [((first @ wins) * second).sum(-1) / wins.size for first, second in counts]
    return _interval(wins.mean(), np.concatenate(resampled), level)


def welch(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of Welch's t-test, which allows different variances; `[..., S]` against `[..., S']`."""
    return stats.ttest_ind(x, y, axis=-1, equal_var=False).pvalue


def student(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of Student's t-test, which takes variances for equal."""
    return stats.ttest_ind(x, y, axis=-1).pvalue


def mann_whitney(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of the Mann–Whitney U test on ranks."""
    return stats.mannwhitneyu(x, y, axis=-1).pvalue


def ranked_t(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of Student's t-test on the ranks in both samples together."""
    return student(*_ranks(x, y))


def permutation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of the permutation test of the difference between means, see `is_exact`."""
    pooled, size = np.concatenate([x, y], axis=-1), x.shape[-1]
    total, rest = pooled.sum(-1, keepdims=True), y.shape[-1]

    def differences(chosen: np.ndarray) -> np.ndarray:
        sums = pooled @ chosen.T
        return sums / size - (total - sums) / rest

    return _two_sided(x.mean(-1) - y.mean(-1), map(differences, _splits(size, size + rest)), is_exact(size, rest))


def bootstrap(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return bootstrap p-values: twice the share of resampled differences on the other side of zero.

    Too small for fewer than about 20 seeds: Colas et al. 2019, "A hitchhiker's guide to statistical comparisons of
    reinforcement learning algorithms" (arXiv:1904.06979).
    """
    return _sides_of_zero(_resampled_differences(x, y, 0))


def paired_t(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of the paired t-test; `[..., S]` against `[..., S]`, seed by seed."""
    return stats.ttest_rel(x, y, axis=-1).pvalue


def wilcoxon(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of Wilcoxon's signed-rank test."""
    return stats.wilcoxon(x, y, axis=-1).pvalue


def paired_ranked_t(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of the paired t-test on the ranks in both samples together."""
    return paired_t(*_ranks(x, y))


def sign_flips(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of the paired permutation test: differences have random signs; see `is_exact`."""
    differences = x - y
    means = (differences @ signs.T / x.shape[-1] for signs in _signs(x.shape[-1]))
    return _two_sided(differences.mean(-1), means, is_exact(x.shape[-1]))


def paired_bootstrap(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return bootstrap p-values of the mean of the differences, see `bootstrap`."""
    return _sides_of_zero(_resampled_differences(x - y, None, 0))


TESTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "welch": welch,
    "student": student,
    "mann_whitney": mann_whitney,
    "ranked_t": ranked_t,
    "permutation": permutation,
    "bootstrap": bootstrap,
}
PAIRED_TESTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "welch": paired_t,
    "student": paired_t,
    "mann_whitney": wilcoxon,
    "ranked_t": paired_ranked_t,
    "permutation": sign_flips,
    "bootstrap": paired_bootstrap,
}
T_TESTS = ("welch", "student")
TITLES = {
    "welch": "Welch's t-test",
    "student": "Student's t-test",
    "mann_whitney": "Mann–Whitney U test",
    "ranked_t": "t-test on ranks",
    "permutation": "permutation test",
    "bootstrap": "bootstrap test",
}
PAIRED_TITLES = {
    "welch": "paired t-test",
    "student": "paired t-test",
    "mann_whitney": "Wilcoxon's signed-rank test",
    "ranked_t": "paired t-test on ranks",
    "permutation": "paired permutation test",
    "bootstrap": "paired bootstrap test",
}


def is_exact(size: int, other: int | None = None) -> bool:
    """Return whether a permutation test goes through all permutations instead of drawing `NUM_RESAMPLES`.

    Args:
        size: number of seeds.
        other: that of the other algorithm; None if they are paired.
    """
    return (2**size if other is None else math.comb(size + other, size)) <= MAX_PERMUTATIONS


def p_value(test: str, x: np.ndarray, y: np.ndarray, paired: bool = False) -> float:
    """Return the two-sided p-value of a test between two samples.

    Args:
        test: a key of `TESTS`.
        x: `[S]` scores.
        y: `[S']` scores.
        paired: whether the scores of both belong together in pairs, in this order.

    Returns:
        The p-value; 1 where all scores are equal, NaN where the test is not defined: for a single seed, or for a t-test
        without any spread.
    """
    if min(len(x), len(y)) < 2:
        return math.nan
    if np.array_equal(x, y) if paired else np.ptp(np.concatenate([x, y])) == 0.0:
        return 1.0
    without_spread = np.ptp(x - y) == 0.0 if paired else np.ptp(x) == np.ptp(y) == 0.0
    if without_spread and test in (*T_TESTS, "ranked_t"):
        return math.nan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of samples that are nearly constant
        return float((PAIRED_TESTS if paired else TESTS)[test](x, y))


def correct(p_values: Sequence[float], method: str) -> list[float]:
    """Correct p-values for several comparisons.

    Args:
        p_values: uncorrected p-values; NaN stays NaN and is not counted.
        method: an entry of `CORRECTIONS`: Holm, Bonferroni, Benjamini–Hochberg or none.

    Returns:
        The corrected p-values.
    """
    values = np.asarray(p_values, np.float64)
    defined = ~np.isnan(values)
    found, number = values[defined], int(defined.sum())
    if method == "bonferroni":
        values[defined] = np.minimum(number * found, 1.0)
    elif method == "fdr_bh" and number:
        values[defined] = stats.false_discovery_control(found)
    elif method == "holm":
        order = np.argsort(found)
        steps = np.minimum(np.maximum.accumulate((number - np.arange(number)) * found[order]), 1.0)
        values[defined] = steps[np.argsort(order)]
    return [float(value) for value in values]


def difference(
    x: np.ndarray, y: np.ndarray, level: float = 0.05, seed: int = 0, test: str = "bootstrap", paired: bool = False
) -> Interval:
    """Return the difference between the means of X and Y with its interval: of a t-test its own, else a bootstrap's.

    Args:
        x: `[S]` scores.
        y: `[S']` scores.
        level: significance level; the interval has the confidence 1 - level.
        seed: seed of the resampling.
        test: a key of `TESTS`.
        paired: see `p_value`.

    Returns:
        The difference.
    """
    estimate = float(np.mean(x) - np.mean(y))
    if test in T_TESTS and not math.isnan(p_value(test, x, y, paired)) and np.ptp(x - y if paired else [*x, *y]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of samples that are nearly constant
            result = stats.ttest_rel(x, y) if paired else stats.ttest_ind(x, y, equal_var=test == "student")
            return Interval(estimate, *map(float, result.confidence_interval(1.0 - level)))
    chunks = _resampled_differences(x - y, None, seed) if paired else _resampled_differences(x, y, seed)
    return _interval(estimate, np.concatenate(list(chunks)), level)


def seeds_needed(
    x: np.ndarray, y: np.ndarray, test: str, level: float = 0.05, seed: int = 0, paired: bool = False
) -> int | None:
    """Return the number of seeds of each algorithm with which a test decides in 80 % of cases, by simulation.

    Scores are drawn from normal distributions with the observed means and standard deviations. The permutation and
    bootstrap tests are simulated by t-tests, which have nearly the same power.

    Args:
        x: `[S]` scores.
        y: `[S']` scores.
        test: a key of `TESTS`.
        level: significance level.
        seed: seed of the simulation.
        paired: see `p_value`; normal differences are drawn.

    Returns:
        The number of seeds, or None if 1,000 are not enough, or there is no spread to simulate.
    """
    samples = (x - y, np.zeros_like(y)) if paired else (x, y)
    if min(len(x), len(y)) < 2 or np.mean(x) == np.mean(y) or all(np.ptp(z) == 0.0 for z in samples):
        return None
    function = (PAIRED_TESTS if paired else TESTS)["welch" if test in ("permutation", "bootstrap") else test]
    rng = np.random.default_rng(seed)

    def power(size: int) -> float:
        drawn = [rng.normal(np.mean(z), np.std(z, ddof=1), (_NUM_SIMULATIONS, size)) for z in samples]
        return float(np.mean(function(*drawn) < level))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return next((size for size in _SIZES if power(size) >= POWER), None)


def _ranks(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ranks = stats.rankdata(np.concatenate([x, y], axis=-1), axis=-1)
    return ranks[..., : x.shape[-1]], ranks[..., x.shape[-1] :]


@functools.lru_cache(maxsize=2)
def _combinations(size: int, total: int) -> np.ndarray:
    """Return all choices `[C, size]` of positions below `total`."""
    positions = itertools.chain.from_iterable(itertools.combinations(range(total), size))
    return np.fromiter(positions, np.uint8).reshape(-1, size)


def _splits(size: int, total: int) -> Iterator[np.ndarray]:
    """Yield all choices, or random ones, of `size` of `total` scores, as chunks `[R, total]` of zeros and ones."""
    exact = is_exact(size, total - size)
    rng = np.random.default_rng(0)
    number = math.comb(total, size) if exact else NUM_RESAMPLES
    for start in range(0, number, _ROWS):
        rows = min(_ROWS, number - start)
        places = _combinations(size, total)[start : start + rows] if exact else None
        if places is None:
            places = np.argsort(rng.random((rows, total)), axis=-1)[:, :size]
        chosen = np.zeros((rows, total))
        np.put_along_axis(chosen, places.astype(np.intp), 1.0, axis=-1)
        yield chosen


def _signs(size: int) -> Iterator[np.ndarray]:
    """Yield all signs of `size` differences, or random ones, as chunks `[R, size]`."""
    rng = np.random.default_rng(0)
    number = 2**size if is_exact(size) else NUM_RESAMPLES
    for start in range(0, number, _ROWS):
        rows = np.arange(start, min(start + _ROWS, number))
        bits = rows[:, None] >> np.arange(size) & 1 if is_exact(size) else rng.integers(2, size=(len(rows), size))
        yield 2.0 * bits - 1.0


def _two_sided(observed: np.ndarray, permuted: Iterator[np.ndarray], exact: bool) -> np.ndarray:
    """Return two-sided p-values `[...]` of observed statistics among chunks `[..., R]` of permuted ones."""
    below = above = number = 0
    for values in permuted:
        # The observed statistic, summed in another order, counts as equal.
        close = 1e-12 * np.abs(values).max(-1)
        below = below + (values <= (observed + close)[..., None]).sum(-1)
        above = above + (values >= (observed - close)[..., None]).sum(-1)
        number += values.shape[-1]
    drawn = 0 if exact else 1  # the observed one is among all permutations
    return np.minimum(1.0, 2.0 * (np.minimum(below, above) + drawn) / (number + drawn))


def _resampled_differences(x: np.ndarray, y: np.ndarray | None, seed: int) -> Iterator[np.ndarray]:
    """Yield chunks `[..., R]` of resampled differences between the means of X and Y, or of the mean of X."""
    seeds = (seed, seed + 1)
    first = (x @ counts.T / x.shape[-1] for counts in resample_counts((x.shape[-1], 1), seeds[0]))
    if y is None:
        return first
    second = (y @ counts.T / y.shape[-1] for counts in resample_counts((y.shape[-1], 1), seeds[1]))
    return (these - those for these, those in zip(first, second, strict=True))


def _sides_of_zero(resampled: Iterator[np.ndarray]) -> np.ndarray:
    below = above = np.asarray(0)
    for values in resampled:
        below = below + (values <= 0.0).sum(-1)
        above = above + (values >= 0.0).sum(-1)
    return np.minimum(1.0, 2.0 * np.maximum(np.minimum(below, above), 1) / NUM_RESAMPLES)
