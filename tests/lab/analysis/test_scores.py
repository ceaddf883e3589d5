import numpy as np

from support.lazily import Lazy

scores = Lazy("stoix_like.lab.analysis.scores")


def test_members_that_diverged_have_no_lowest_return():
    assert scores.lowest([np.asarray([np.nan, 3.0]), np.asarray([1.0])]) == 1.0
