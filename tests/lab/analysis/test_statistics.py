import math

import numpy as np
import pytest

from support.lazily import Lazy

stats, statistics = map(Lazy, ("scipy.stats", "stoix_like.lab.analysis.statistics"))
X, Y = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0]), np.asarray([4.0, 5.0, 6.0, 7.0, 8.0])


def test_aggregates_of_one_task():
    # [0, 1, 2, 3, 100]: mean 106 / 5 = 21.2, median 2; the IQM drops a quarter of 5, rounded down to 1, at each end:
    # (1 + 2 + 3) / 3 = 2. Shortfalls from 3: 3, 2, 1, 0, 0; their mean is 1.2.
    found = statistics.aggregates(np.asarray([0.0, 1.0, 2.0, 3.0, 100.0])[:, None], target=3.0)
    assert [found[name].estimate for name in ("mean", "median", "iqm", "optimality_gap")] == pytest.approx(
        [21.2, 2.0, 2.0, 1.2]
    )
    assert all(interval.low <= interval.estimate <= interval.high for interval in found.values())


# Mean, IQM, optimality gap and probability of improvement, computed by rliable 1.2.0 from the scores of the test below.
BY_RLIABLE = {
    (5, 1): (0.040655750447460434, 0.032841824985043705, 0.9593442495525396, 0.28),
    (7, 3): (-0.18057623864374153, -0.16958025387178619, 1.1970768774329232, 0.3877551020408163),
    (2, 2): (0.1847370313496033, 0.1153151691232165, 0.8152629686503967, 0.25),
}


@pytest.mark.parametrize("shape", BY_RLIABLE)
def test_estimates_are_those_of_rliable(shape):
    scores = np.random.default_rng(0).normal(size=shape)
    found = statistics.aggregates(scores, target=1.0)
    probability = statistics.probability_of_improvement(scores[:, 0], scores[::-1, 0] + 0.3)
    estimates = [found[name].estimate for name in ("mean", "iqm", "optimality_gap")]
    assert [*estimates, probability.estimate] == pytest.approx(BY_RLIABLE[shape], rel=1e-12)
    # As in rliable, over the means of several tasks; over the scores of a single one.
    assert found["median"].estimate == pytest.approx(np.median(scores.mean(0) if shape[1] > 1 else scores))


def test_intervals_are_those_of_a_direct_bootstrap():
    values = np.random.default_rng(0).normal(size=10)
    resampled = values[np.random.default_rng(1).integers(10, size=(50_000, 10))]
    found = statistics.aggregates(values[:, None], target=0.0)
    for name, expected in (
        ("mean", resampled.mean(1)),
        ("median", np.median(resampled, axis=1)),
        ("iqm", stats.trim_mean(resampled, 0.25, axis=1)),
    ):
        low, high = np.quantile(expected, [0.025, 0.975])
        assert found[name][1:] == pytest.approx((low, high), abs=0.02 * (high - low))


@pytest.mark.usefixtures("few_resamples")
def test_estimates_and_intervals_by_hand():
    # Means of the tasks 1, 2 and 6: mean 3, median 2.
    scores = np.asarray([[0.0, 2.0, 5.0], [2.0, 2.0, 7.0]])
    found = statistics.aggregates(scores, target=0.0)
    assert (found["mean"].estimate, found["median"].estimate) == (3.0, 2.0)
    # Of the 4 pairs, (3, 2) and (3, 1) are won, (1, 1) is a tie, (1, 2) is lost: 2.5 / 4. One resample in 16 is of
    # (1, 2) only, and one in 4 of 3 only.
    found = statistics.probability_of_improvement(np.asarray([1.0, 3.0]), np.asarray([1.0, 2.0]))
    assert found == (0.625, 0.0, 1.0)
    # Intervals do not depend on what was computed before.
    alone, other, again = (statistics.aggregates(scores[:, None], target=5.0) for scores in (X, Y, X))
    assert alone == again != other
    # A single score has none.
    one, none = np.asarray([1.0]), (math.nan, math.nan)
    found = statistics.aggregates(one[:, None], target=3.0)["mean"]
    assert found == pytest.approx((1.0, *none), nan_ok=True)
    for x, y in ((one, X), (X, one)):
        assert statistics.difference(x, y)[1:] == pytest.approx(none, nan_ok=True)
        assert statistics.probability_of_improvement(x, y)[1:] == pytest.approx(none, nan_ok=True)


def test_p_values_by_hand():
    # Welch: means 3 and 6, variances 2.5: t = -3 / sqrt(2.5 / 5 + 2.5 / 5) = -3 with 8 degrees of freedom.
    expected = 2.0 * stats.t.sf(3.0, 8)
    assert statistics.p_value("welch", X, Y) == pytest.approx(expected)
    # Of the C(4, 2) = 6 splits of {1, 2, 8, 9}, two are as extreme as the observed one.
    assert statistics.p_value("permutation", np.asarray([1.0, 2.0]), np.asarray([8.0, 9.0])) == pytest.approx(2 / 6)
    # All 3 × 3 pairs are won: the two most extreme of the C(6, 3) = 20 orders.
    assert statistics.p_value("mann_whitney", X[:3], Y[2:]) == pytest.approx(0.1)
    assert len(statistics.TESTS) == 3
    # All are symmetric, and ranks do not feel an outlier.
    for test in statistics.TESTS:
        assert statistics.p_value(test, X, Y) == pytest.approx(statistics.p_value(test, Y, X), abs=5e-3)
    outlier = np.asarray([*Y[:-1], 1e6])
    assert statistics.p_value("mann_whitney", X, outlier) == statistics.p_value("mann_whitney", X, Y)
    assert statistics.p_value("welch", X, outlier) > 0.3


def test_permutation_tests_go_through_all_permutations_or_draw_some():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=6), rng.normal(size=8) + 1.0

    def difference(x, y, axis):
        return x.mean(axis) - y.mean(axis)

    expected = stats.permutation_test((x, y), difference, vectorized=True, n_resamples=np.inf).pvalue
    assert statistics.p_value("permutation", x, y) == pytest.approx(expected)
    assert statistics.is_exact(6, 8)
    several = statistics.TESTS["permutation"](np.stack([x, y[:6]]), np.stack([y, y])).pvalue
    assert several[0] == pytest.approx(expected)
    assert not statistics.is_exact(20, 20)
    many = rng.normal(size=(2, 20))
    drawn = statistics.p_value("permutation", many[0], many[1] + 0.6)
    assert drawn == pytest.approx(statistics.p_value("welch", many[0], many[1] + 0.6), abs=0.02)


def test_paired_tests_by_hand():
    # Differences 1, 2 and 3: t = 2 / (1 / sqrt(3)) with 2 degrees of freedom; of the 8 signs, 2 are as extreme; the
    # smallest two-sided p-value of the signed-rank test of 3 seeds is 2 / 8.
    x, y = np.asarray([11.0, 22.0, 33.0]), np.asarray([10.0, 20.0, 30.0])
    expected = 2.0 * stats.t.sf(2.0 * math.sqrt(3.0), 2)
    assert statistics.p_value("welch", x, y, paired=True) == pytest.approx(expected)
    assert statistics.p_value("permutation", x, y, paired=True) == pytest.approx(0.25)
    assert statistics.p_value("mann_whitney", x, y, paired=True) == pytest.approx(0.25)
    width = stats.t.ppf(0.975, 2) / math.sqrt(3.0)
    assert statistics.difference(x, y, test="welch", paired=True) == pytest.approx((2.0, 2.0 - width, 2.0 + width))
    assert statistics.seeds_needed(x, y, "welch", paired=True) < 10
    # Of the 27 resamples of the differences, one is of 1 only and one of 3 only: 3.7 % each.
    assert statistics.difference(x, y, paired=True) == pytest.approx((2.0, 1.0, 3.0))
    assert math.isnan(statistics.p_value("welch", x, x - 1.0, paired=True))
    assert statistics.p_value("welch", x, x, paired=True) == 1.0
    # Ranks of 2, 3, 4 and -10, without the pair of equal scores: 1 + 2 + 3 - 4, although the mean is negative.
    assert statistics.direction("mann_whitney", X + np.asarray([2.0, 3.0, 4.0, -10.0, 0.0]), X, paired=True) == 2.0


def test_the_interval_under_a_t_test_is_its_own():
    # Means 3 and 6, a standard error of 1, and 8 degrees of freedom.
    width = stats.t.ppf(0.975, 8)
    assert statistics.difference(X, Y, test="welch") == pytest.approx((-3.0, -3.0 - width, -3.0 + width))
    # A bootstrap's variances are 2 / 5 for each mean: nearly normal, of deviation sqrt(0.8).
    width = stats.norm.ppf(0.975) * math.sqrt(0.8)
    found = statistics.difference(X, Y, test="mann_whitney")
    assert found == pytest.approx((-3.0, -3.0 - width, -3.0 + width), abs=0.06)
    # One sample without spread, of which scipy warns.
    assert statistics.difference(np.full(5, 500.0), Y, test="welch").estimate == 500.0 - Y.mean()


def test_cases_without_spread():
    same, other = np.full(3, 500.0), np.full(3, 400.0)
    assert statistics.p_value("welch", same, same) == 1.0
    assert math.isnan(statistics.p_value("welch", same, other))
    assert statistics.p_value("permutation", same, other) == pytest.approx(0.1)
    assert math.isnan(statistics.p_value("welch", same[:1], other))
    assert statistics.seeds_needed(same, other, "welch") is None
    # The p-values of all permutations of n against n are 2 / C(2n, n), 2/70 and 2/252; of n signs 2 / 2^n, 2/64.
    assert statistics.seeds_needed(same, other, "permutation") == 4
    assert statistics.seeds_needed(same, other, "permutation", level=0.01) == 5
    assert statistics.seeds_needed(same, other, "permutation", paired=True) == 6
    assert statistics.seeds_needed(same, other, "mann_whitney") <= 5


@pytest.mark.slow
def test_a_level_below_that_of_all_permutations_is_reached_by_no_number_of_seeds():
    assert statistics.seeds_needed(np.full(3, 500.0), np.full(3, 400.0), "permutation", level=1e-9) is None


def test_correction_of_several_tests():
    # Holm: 3 × 0.01, max(2 × 0.02, the one before), max(1 × 0.04, the one before); an undefined p-value is not counted.
    corrected = statistics.correct([0.04, math.nan, 0.01, 0.02], "holm")
    assert corrected == pytest.approx([0.04, math.nan, 0.03, 0.04], nan_ok=True)
    assert statistics.correct([0.04, 0.01], "bonferroni") == pytest.approx([0.08, 0.02])
    assert statistics.correct([0.04, 0.01], "none") == [0.04, 0.01]
    # Benjamini–Hochberg: 3 × 0.01 / 1, 3 × 0.02 / 2, 3 × 0.04 / 3.
    assert statistics.correct([0.04, 0.01, 0.02], "fdr_bh") == pytest.approx([0.04, 0.03, 0.03])


@pytest.mark.parametrize("method", statistics.CORRECTIONS)
def test_untested_comparisons_count_as_undecided_tests(method):
    p_values = [0.01, 0.001, math.nan, 0.6, 0.02]
    expected = np.minimum(statistics.correct([*p_values, 1.0, 1.0, 1.0], method)[:5], 1.0)
    assert statistics.correct(p_values, method, 3) == pytest.approx(expected, nan_ok=True)
    assert statistics.correct([math.nan], method, 3) == pytest.approx([math.nan], nan_ok=True)


def test_seeds_needed_agree_with_the_power_of_the_t_test():
    # Effect size 1: the standard result is 17 per group for a power of 0.8 at level 0.05 (Cohen 1988, table 2.4.1).
    x = np.asarray([-1.0, 0.0, 1.0])  # mean 0, deviation 1
    needed = statistics.seeds_needed(x, x + 1.0, "welch")
    assert 15 <= needed <= 19
    # Of pairs, it is 10, whatever the spread of the scores that they share.
    shared = np.asarray([0.0, 100.0, -100.0])
    assert 9 <= statistics.seeds_needed(shared + x + 1.0, shared, "welch", paired=True) <= 11
