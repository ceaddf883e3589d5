"""Tests of the progress of tuning."""

from types import SimpleNamespace

from stoix_like.lab.tuning.progress import TuningProgress, interquartile_means


def test_the_progress_shows_the_mean_that_counts_and_not_the_best_member(capsys):
    """Of four seeds, one at either end is trimmed: (2 + 4) / 2 = 3 of the first setting, (5 + 5) / 2 of the second."""
    progress = TuningProgress("fresh", seeds=4)
    progress.on_start(SimpleNamespace(num_evaluations=3, history=(), num_members=8))
    for seconds in (1.0, 2.0):
        returns = [1.0, 2.0, 4.0, 900.0, 5.0, 5.0, 5.0, float("nan")]
        progress.on_evaluation({"eval/episode_return_mean": returns, "wall_seconds": seconds}, None)
    shown = capsys.readouterr().out
    assert "fresh: 2 setting(s) of 4 seed(s), 2 evaluations" in shown
    assert "best IQM 5," in shown


def test_settings_are_judged_by_the_interquartile_mean_of_their_members():
    # Of four members, the mean of the middle two; of three, the mean; NaN is the lowest.
    assert interquartile_means([0.0, 100.0, 2.0, 4.0, float("nan"), 1.0, 3.0, 5.0], 4).tolist() == [3.0, 2.0]
    assert interquartile_means([0.0, 3.0, 6.0, 1.0, float("nan"), 2.0], 3).tolist() == [3.0, -float("inf")]
