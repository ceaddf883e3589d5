import pytest

from stoix_like import cli
from stoix_like.lab.analysis.statistics import TESTS
from stoix_like.lab.plotting import KINDS


@pytest.mark.parametrize(
    ("kind", "own"),
    [("curves", "--band"), ("heatmap", "--hyperparam"), ("critic", "--fixed"), ("search", "--step"), ("memory", "--x")],
)
def test_an_option_of_another_kind_is_refused_with_those_of_this_one(kind, own, refused):
    error = refused("plot", "run", "--kind", kind, "--out", "x.png", "--context=5")
    assert "unrecognized arguments: --context=5" in error
    assert f"usage: stoix-like plot --kind {kind} " in error
    assert own in error
    assert ("--by" in error) == (kind in ("curves", "heatmap", "memory"))
    # Titles of populations name no algorithm.
    assert ("--label" in error) == (kind == "curves")


@pytest.fixture
def help_of(capsys):
    def shown(*words):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["plot", *words, "--help"])
        assert stopped.value.code == 0
        return capsys.readouterr().out

    return shown


DRAWN = {"policy": "two", "critic": "two", "trajectory": "four"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_of_a_kind_lists_its_options_and_all_kinds(kind, help_of):
    shown = help_of(f"--kind={kind}")
    assert f"usage: stoix-like plot --kind {kind} " in shown
    assert [line.split()[0] for line in shown.partition("kinds, each")[2].splitlines()[1:]] == list(KINDS)
    shown = " ".join(shown.split())
    assert f"Plot {KINDS[kind].about}." in shown
    features = f"first {DRAWN.get(kind)} that the environment names, or the two entries that vary most)"
    assert (f"(default: the {features}" in shown) == (kind in DRAWN)


def test_the_help_names_the_tests(help_of):
    names = " ".join(help_of().split()).partition("--test TEST mark where it decides")[2]
    assert f"algorithms: {', '.join([*TESTS][:-1])} or {[*TESTS][-1]} " in names
