"""Tests of the progress of tuning."""

from types import SimpleNamespace

from stoix_like.lab.tuning.progress import TuningProgress


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
