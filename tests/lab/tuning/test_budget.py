"""Tests of budgets."""

from types import SimpleNamespace

import pytest

from stoix_like.errors import ConfigError
from stoix_like.lab.tuning import budget as budgets
from stoix_like.lab.tuning.budget import (
    Budget,
    Cost,
    least_seconds,
    parse_budget,
    plan_seconds,
    plan_steps,
    tail_rounds,
)
from stoix_like.lab.tuning.parameters import parse_space
from support.killed_sweeps import KEYS

STEPS = "environment steps"


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("150s", Budget(seconds=150.0)),
        ("2min", Budget(seconds=120.0)),
        ("10min", Budget(seconds=600.0)),
        ("1.5 h", Budget(seconds=5400.0)),
        ("5e7", Budget(steps=5e7)),
        (3_000_000, Budget(steps=3e6)),
    ],
)
def test_a_budget_is_a_time_or_a_number_of_steps(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["59s", "0.5min", "119s"])
def test_less_than_two_minutes_are_refused_at_once(text):
    with pytest.raises(ConfigError, match=f"budget={text} is too short: compiling alone .* use at least 2min"):
        parse_budget(text)


@pytest.mark.parametrize("text", ["", "10 minutes", "-5s", "nan", "min", "1.2.3s"])
def test_another_budget_is_refused(text):
    with pytest.raises(ConfigError, match="must be a wall time, 10min or 2h"):
        parse_budget(text)


def test_steps_are_divided_into_rounds():
    """With 8 seeds each, 4 finalists and then 2 settings are 3 rounds of 16 slots; 2 and 2 are 4 rounds of 8 slots."""
    assert (tail_rounds(16, 8), tail_rounds(8, 8)) == (3.0, 4.0)
    assert plan_steps(16 * 7000, 1000, None, STEPS) == (16, 4, None, 8)
    assert plan_steps(16 * 5000, 1000, None, STEPS) == (16, 2, None, 8)
    assert budgets.describe_steps(80_000, 1000, plan_steps(80_000, 1000, None, STEPS), STEPS) == (
        "of 8e+04 environment steps, 3.2e+04 for the search and 4.8e+04 for finalists and 8 fresh seeds; one round of"
        " 16 settings takes 1.6e+04"
    )
    assert plan_steps(16 * 4000, 1000, None, STEPS) == (8, 4, None, 8)
    # With 4 seeds, 2 finalists and 2 settings are 2 rounds of 8 slots, and 4 rounds of 4.
    assert plan_steps(39_000, 1000, None, STEPS) == (8, 2, None, 4)
    assert plan_steps(24_000, 1000, None, STEPS) == (4, 2, None, 4)
    with pytest.raises(ConfigError, match=r"=23999 gradient steps are .* use at least 2.4e\+04"):
        plan_steps(23_999, 1000, None, "gradient steps")


def test_a_plan_of_seconds_leaves_time_for_the_stages_that_follow():
    cost = Cost(start=10.0, round=20.0)
    plan = plan_seconds(600.0, cost, 16, spent=30.0)
    assert plan is not None
    # The last round starts before the deadline, and takes 20 / 0.85 + 5 s.
    assert plan.deadline + 28.6 <= 600.0 - 30.0 - tail_rounds(16, 8) * cost.round
    assert plan_seconds(100.0, cost, 16, spent=30.0) is None
    # After 30 s, the later stages have 3 rounds of 20 s with a margin and 5 starts of 5 s. The rest searches.
    assert budgets.describe_seconds(600.0, cost, plan, 30.0) == (
        "of 10:00, 0:30 went into compiling and timing; 7:54 for the search, 1:36 for finalists and 8 fresh seeds;"
        " one round of 16 settings takes 20 s"
    )
    assert plan_seconds(160.0, cost, 16, spent=30.0).seeds == 4
    least = least_seconds(cost, 16, spent=30.0)
    assert plan_seconds(least + 1e-6, cost, 16, spent=30.0) is not None
    assert plan_seconds(least - 1e-3, cost, 16, spent=30.0) is None


def test_a_round_takes_the_time_of_its_updates_and_evaluations(tmp_path, monkeypatch):
    """The first evaluation is over after 10 s, and the fourth one, which ends the run, more than 4 s later.

    Ten updates in 5 s and four evaluations in 2 s, with what goes with them: 60 and 20 of them take 30 s and 10 s.
    """
    timing = {"training": 5.0, "evaluation": 1.0, "logging": 0.25, "checkpoints": 0.75}
    times, answers = iter([0.0, 10.0, 13.0, 15.0]), []

    def prepare(config, run_dir):
        assert run_dir.parent.parent == tmp_path
        return SimpleNamespace(config=config, setup=SimpleNamespace(plan=SimpleNamespace(num_updates=60)))

    def run(prepared):
        (watch,) = prepared.config.custom_callbacks
        answers.extend(watch.on_evaluation({}, None) for _ in range(4))
        assert len(prepared.config.arch.population.hyperparams["gamma"]) == 2
        return SimpleNamespace(summary={"updates": 10, "timing": timing})

    monkeypatch.setattr(budgets, "prepare", prepare)
    monkeypatch.setattr(budgets.experiment, "run", run)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    parameters = parse_space({"gamma": {"uniform": [0.9, 1.0]}}, KEYS, ["gamma"])
    cost = budgets.measure(["arch.num_evaluation=20"], parameters, 2, tmp_path / "tuned")
    assert (cost, answers) == (Cost(start=10.0, round=40.0), [None, None, None, False])
    assert list(tmp_path.iterdir()) == []
