import math

import pytest

from stoix_like.lab.analysis.selection import describe_fresh
from support.lazily import Lazy
from support.recorded import write_run

analysis = Lazy("stoix_like.lab.analysis")


def test_fresh_seeds_are_not_grouped_with_the_trial_that_was_selected(tmp_path, capsys):
    trials = write_run(tmp_path / "search/runs/00000", (1.0, 9.0), varied={"actor_lr": [0.1, 0.2]})
    fresh = write_run(tmp_path / "search/fresh/mine/00", (5.0, 5.0), seed=2_000_000, actor_lr=0.2)
    # No run of a search has such a name.
    assert sorted(len(algorithm.members) for algorithm in analysis.read(tmp_path)) == [1, 3]
    fresh.parent.rename(fresh.parent.with_name("00001-0-2"))
    fresh = tmp_path / "search/fresh/00001-0-2/00"
    for paths in ([tmp_path], [tmp_path / "search"], [fresh, trials]):
        seeds = {algorithm.label: [member.seed for member in algorithm.members] for algorithm in analysis.read(paths)}
        assert seeds == {"ppo/ff_ppo actor_lr=0.1": [0], "ppo/ff_ppo actor_lr=0.2": [1]}
        assert f"leaving out {tmp_path / 'search/fresh'}: fresh seeds do not count with" in capsys.readouterr().err
    (alone,) = analysis.read(tmp_path / "search/fresh")
    assert [member.seed for member in alone.members] == [2_000_000, 2_000_001]
    assert capsys.readouterr().err == ""


def test_of_tune_only_the_last_stage_counts(tmp_path, capsys):
    """As the search, the finalists have seeds that selected; the configured setting has fresh ones, too."""
    stages = {"search": ("search/runs/00000", 9.0), "finalists": ("finalists/0/00", 7.0), "fresh": ("fresh/0/00", 5.0)}
    before = []
    for seed, (stage, (run, value)) in enumerate(stages.items()):
        write_run(tmp_path / "tuned" / run, (value,), seed=seed)
        (algorithm,) = analysis.read(tmp_path)
        assert [member.score("final") for member in algorithm.members] == [value]
        said = capsys.readouterr().err.splitlines()
        assert said == [
            f"leaving out {tmp_path / 'tuned' / one}: what it selected trains again in {stage}/; pass only this"
            " directory to see it"
            for one in before
        ]
        before.append(stage)
    (alone,) = analysis.read(tmp_path / "tuned/search")
    assert (len(alone.members), capsys.readouterr().err) == (1, "")


@pytest.mark.parametrize(
    ("runs", "counted"),
    [
        (["runs/00000", "fresh/00000-0-1/00"], 0),
        # Mirrors of `tune` have the runs of its search beside the other stages, and copies of its directory below.
        (["runs/00000", "finalists/0/00"], 1),
        (["runs/00000", "finalists/0/00", "fresh/0/00"], 2),
        (["search/runs/00000", "fresh/0/00"], 1),
    ],
)
def test_copies_of_searches_are_known_by_their_runs(tmp_path, runs, counted):
    for seed, run in enumerate(runs):
        write_run(tmp_path / "copy" / run, (float(seed),), seed=seed)
    (algorithm,) = analysis.read(tmp_path / "copy")
    # Of a sweep, what selected counts, and of `tune` what did not.
    assert [member.seed for member in algorithm.members] == [counted]


def test_an_end_of_an_interval_in_which_seeds_diverged_is_named():
    # The mean of the middle four of 8 has no value where at least 3 of 8 draws are the seed that diverged: in 6.7 % of
    # the resamples, 1 - (7/8)^8 - 8 (7/8)^7 / 8 - 28 (7/8)^6 / 64, more than the 2.5 % below the interval.
    text = describe_fresh([math.nan, 460.0, 462.0, 464.0, 466.0, 468.0, 470.0, 490.0])
    # (462 + 464 + 466 + 468) / 4
    assert text.startswith("IQM 465 [diverged, 4")
    assert text.endswith("] on 8 fresh seed(s), 1 of which diverged")
    assert describe_fresh([math.nan] * 4 + [1.0]).startswith("IQM diverged [diverged, ")
