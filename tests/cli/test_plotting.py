import pytest

from stoix_like import cli
from stoix_like.cli.plotting import KINDS, plot
from stoix_like.lab.analysis.statistics import TESTS


@pytest.mark.parametrize(
    ("kind", "own"),
    [("curves", "--band"), ("heatmap", "--hyperparam"), ("critic", "--fixed"), ("search", "--step"), ("memory", "--x")],
)
def test_an_option_of_another_kind_is_refused_with_those_of_this_one(kind, own, capsys):
    with pytest.raises(SystemExit) as exit_:
        plot(["run", "--kind", kind, "--out", "x.png", "--context=5"])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert "unrecognized arguments: --context=5" in error
    assert f"usage: stoix-like plot --kind {kind} " in error
    assert own in error
    assert ("--by" in error) == (kind in ("curves", "heatmap", "memory"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_of_a_kind_lists_its_options_and_all_kinds(kind, capsys):
    with pytest.raises(SystemExit) as exit_:
        plot([f"--kind={kind}", "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: stoix-like plot --kind {kind} " in shown
    assert f"Plot {KINDS[kind].about}." in " ".join(shown.split())
    assert [line.split()[0] for line in shown.partition("kinds, each")[2].splitlines()[1:]] == list(KINDS)


@pytest.mark.parametrize(("kind", "number"), [("policy", "two"), ("critic", "two"), ("trajectory", "four")])
def test_the_help_says_which_features_are_drawn_by_default(kind, number, capsys):
    with pytest.raises(SystemExit):
        plot([f"--kind={kind}", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"(default: the first {number} that the environment names, or the two entries that vary most)" in shown


def test_the_help_names_the_tests(capsys):
    with pytest.raises(SystemExit):
        plot(["--help"])
    names = " ".join(capsys.readouterr().out.split()).partition("--test TEST mark where it decides")[2]
    assert f"algorithms: {', '.join([*TESTS][:-1])} or {[*TESTS][-1]} " in names


@pytest.mark.parametrize("kind", ["policy", "critic", "trajectory", "search", "dream", "memory"])
def test_a_command_that_has_become_a_kind_is_answered_by_its_new_form(kind, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([f"plot-{kind}", "run", "--out", "x.png"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err == (
        f"stoix-like: plot-{kind} is a kind of plot: use stoix-like plot --kind {kind}\n"
    )
