"""The report in one page."""

import pytest
from lazily import Lazy
from recorded import write_run

analysis, plots, report, statistics = map(
    Lazy, ("stoix_like.analysis", *(f"stoix_like.analysis.{name}" for name in ("plots", "report", "statistics")))
)


pytestmark = pytest.mark.usefixtures("few_resamples")


def test_the_report_is_one_page_with_all_parts(two):
    page = two / "report.html"
    report.write([two], page, animation=False)
    text = page.read_text()
    for part in ("Summary", "Learning curves", "Final returns", "Differences", "Runs and timing", "Versions", "0.11.2"):
        assert part in text
    assert "ppo/ff_ppo is better than q_learning/ff_dqn" in text
    # Nothing is loaded, neither from a network nor from a file.
    assert not [word for word in ('src="http', 'href="http', "<script", "<link", "@import", "url(http") if word in text]


@pytest.mark.slow
def test_the_report_of_a_grid_shows_colours_and_tests_no_single_seeds(tmp_path):
    varied = {"actor_lr": [1e-4, 1e-4, 1e-2, 1e-2], "gamma": [0.9, 0.99, 0.9, 0.99]}
    write_run(tmp_path / "a", (1.0, 3.0, 5.0, 7.0), varied=varied)
    report.write([tmp_path], tmp_path / "report.html", animation=False)
    text = (tmp_path / "report.html").read_text()
    assert "undecided" not in text
    assert "6 pair(s) of algorithms are not tested" in text
    # Curves, profiles, a heat map and two slices.
    assert text.count("<figure>") == 5


def test_text_of_runs_cannot_leave_its_place_in_the_report(tmp_path):
    write_run(tmp_path / "a", env="<img src=x onerror=alert(1)>")
    report.write([tmp_path], tmp_path / "report.html", animation=False)
    assert "<img src=x" not in (tmp_path / "report.html").read_text()
