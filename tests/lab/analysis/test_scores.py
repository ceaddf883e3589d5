import numpy as np

from support.lazily import Lazy

scores = Lazy("stoix_like.lab.analysis.scores")


def test_members_that_diverged_count_as_the_lowest_of_all():
    notes = []
    counted = scores.count_diverged(np.asarray([3.0, np.nan, 1.0]), -2.0, "a", notes)
    assert counted.tolist() == [3.0, -2.0, 1.0]
    assert notes == ["a: 1 of 3 diverged, counted as the lowest return of all"]


def test_members_that_diverged_have_no_lowest_return():
    assert scores.lowest([np.asarray([np.nan, 3.0]), np.asarray([1.0])]) == 1.0
