"""Aggregate statistics over seeds and tasks, tests between two algorithms, and the seeds that a test needs."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rliable import library, metrics
from scipy import stats
from statsmodels.stats.multitest import multipletests

CORRECTIONS = ("holm", "bonferroni", "fdr_bh", "none")
NUM_RESAMPLES = 2000
POWER = 0.8
_NUM_SIMULATIONS = 500
# Each about a tenth more than the one before.
_SIZES = (
    *range(2, 16),
    17,
    19,
    21,
    23,
    25,
    28,
    31,
    34,
    38,
    42,
    46,
    51,
    56,
    62,
    68,
    75,
    83,
    91,
    100,
    110,
    121,
    133,
    146,
)
_LARGER_SIZES = (161, 177, 195, 214, 236, 259, 285, 314, 345, 380, 418, 459, 505, 556, 611, 673, 740, 814, 895, 1000)


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

    def all_of(values: np.ndarray) -> np.ndarray:
        median = metrics.aggregate_median(values) if values.shape[1] > 1 else np.median(values)
        gap = metrics.aggregate_optimality_gap(values, gamma=target)
        return np.asarray([metrics.aggregate_mean(values), median, metrics.aggregate_iqm(values), gap])

    found = _intervals({name: (values,) for name, values in scores.items()}, all_of, level, seed)
    names = ("mean", "median", "iqm", "optimality_gap")
    return {name: dict(zip(names, intervals, strict=True)) for name, intervals in found.items()}


def probability_of_improvement(x: np.ndarray, y: np.ndarray, level: float = 0.05, seed: int = 0) -> Interval:
    """Compute the probability that a run of X scores higher than a run of Y, averaged over tasks.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.

    Args:
        x: `[S, K]` scores of S seeds on K tasks.
        y: `[S', K]` scores.
        level: significance level; the interval has the confidence 1 - level.
        seed: seed of the resampling.

    Returns:
        The probability with its stratified bootstrap interval.
    """

    def probability(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray([metrics.probability_of_improvement(x, y)])

    return _intervals({"pair": (x, y)}, probability, level, seed)["pair"][0]


def _intervals(
    scores: Mapping[str, tuple[np.ndarray, ...]], function: Callable[..., np.ndarray], level: float, seed: int
) -> dict[str, list[Interval]]:
    found = {}
    for name, values in scores.items():
        given = values[0] if len(values) == 1 else values
        # Seeded for each: results do not depend on which other algorithms are compared.
        with seeded(seed):
            points, ends = library.get_interval_estimates(
                {name: given}, function, reps=NUM_RESAMPLES, confidence_interval_size=1.0 - level
            )
        low, high = ends[name]
        found[name] = [Interval(*map(float, values)) for values in zip(points[name], low, high, strict=True)]
    return found


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, from which rliable draws whatever `random_state` it is given, and restore it.

    Args:
        seed: the seed.
    """
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


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
    ranks = stats.rankdata(np.concatenate([x, y], axis=-1), axis=-1)
    return student(ranks[..., : x.shape[-1]], ranks[..., x.shape[-1] :])


def permutation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the p-values of the permutation test of the difference between means; exact for small samples."""
    result = stats.permutation_test(
        (x, y), _difference, vectorized=True, axis=-1, n_resamples=NUM_RESAMPLES, rng=np.random.default_rng(0)
    )
    return np.asarray(result.pvalue)


def bootstrap(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return bootstrap p-values: twice the share of resampled differences on the other side of zero.

    Too small for fewer than about 20 seeds: Colas et al. 2019, "A hitchhiker's guide to statistical comparisons of
    reinforcement learning algorithms" (arXiv:1904.06979).
    """
    differences = _resampled_differences(x, y, np.random.default_rng(0))
    below, above = (differences <= 0.0).mean(-1), (differences >= 0.0).mean(-1)
    return np.minimum(1.0, 2.0 * np.maximum(np.minimum(below, above), 1.0 / NUM_RESAMPLES))


TESTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "welch": welch,
    "student": student,
    "mann_whitney": mann_whitney,
    "ranked_t": ranked_t,
    "permutation": permutation,
    "bootstrap": bootstrap,
}
TITLES = {
    "welch": "Welch's t-test",
    "student": "Student's t-test",
    "mann_whitney": "Mann–Whitney U test",
    "ranked_t": "t-test on ranks",
    "permutation": "permutation test",
    "bootstrap": "bootstrap test",
}


def p_value(test: str, x: np.ndarray, y: np.ndarray) -> float:
    """Return the two-sided p-value of a test between two samples.

    Args:
        test: a key of `TESTS`.
        x: `[S]` scores.
        y: `[S']` scores.

    Returns:
        The p-value; 1 where all scores are equal, NaN where the test is not defined: for a single seed, or for a t-test
        without any spread.
    """
    if min(len(x), len(y)) < 2:
        return math.nan
    if np.ptp(np.concatenate([x, y])) == 0.0:
        return 1.0
    if np.ptp(x) == np.ptp(y) == 0.0 and test in ("welch", "student", "ranked_t"):
        return math.nan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of samples that are nearly constant
        return float(TESTS[test](x, y))


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
    if method != "none" and defined.any():
        values[defined] = multipletests(values[defined], method=method)[1]
    return [float(value) for value in values]


def difference(x: np.ndarray, y: np.ndarray, level: float = 0.05, seed: int = 0) -> Interval:
    """Return the difference between the means of X and Y, with its percentile bootstrap interval.

    Args:
        x: `[S]` scores.
        y: `[S']` scores.
        level: significance level; the interval has the confidence 1 - level.
        seed: seed of the resampling.

    Returns:
        The difference.
    """
    resampled = _resampled_differences(x, y, np.random.default_rng(seed))
    low, high = np.quantile(resampled, [level / 2.0, 1.0 - level / 2.0])
    return Interval(float(np.mean(x) - np.mean(y)), float(low), float(high))


def seeds_needed(x: np.ndarray, y: np.ndarray, test: str, level: float = 0.05, seed: int = 0) -> int | None:
    """Return the number of seeds of each algorithm with which a test decides in 80 % of cases, by simulation.

    Scores are drawn from normal distributions with the observed means and standard deviations. The permutation and
    bootstrap tests are simulated by Welch's, which has nearly the same power.

    Args:
        x: `[S]` scores.
        y: `[S']` scores.
        test: a key of `TESTS`.
        level: significance level.
        seed: seed of the simulation.

    Returns:
        The number of seeds, or None if 1,000 are not enough, or there is no spread to simulate.
    """
    if min(len(x), len(y)) < 2 or np.mean(x) == np.mean(y) or np.ptp(x) == np.ptp(y) == 0.0:
        return None
    function = TESTS["welch" if test in ("permutation", "bootstrap") else test]
    rng = np.random.default_rng(seed)

    def power(size: int) -> float:
        drawn = [rng.normal(np.mean(z), np.std(z, ddof=1), (_NUM_SIMULATIONS, size)) for z in (x, y)]
        return float(np.mean(function(*drawn) < level))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return next((size for size in (*_SIZES, *_LARGER_SIZES) if power(size) >= POWER), None)


def _difference(x: np.ndarray, y: np.ndarray, axis: int = -1) -> Any:
    return np.mean(x, axis=axis) - np.mean(y, axis=axis)


def _resampled_differences(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    resampled = [z[..., rng.integers(z.shape[-1], size=(NUM_RESAMPLES, z.shape[-1]))].mean(-1) for z in (x, y)]
    return resampled[0] - resampled[1]
