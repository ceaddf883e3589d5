"""Which trials of successive halving continue, by examples worked out by hand."""

import math

import numpy as np
import pytest

from stoix_like.run.population.trials import Rules, Trials, interquartile_means

# Nine evaluations and eta 3: rungs after one and three evaluations.
RULES = Rules(evaluations=9, eta=3, rungs=2)


def history(*rows, seeds=1, failed=None):
    first = rows[0][0]
    found = [{"population/trials": first, "eval/episode_return_mean": [0.0] * len(first) * seeds}]
    for index, (numbers, returns) in enumerate(rows, start=1):
        lr = [float(number) for number in numbers for _ in range(seeds)]
        found.append(
            {
                "population/trials": numbers,
                "eval/episode_return_mean": returns,
                "population/failed": (failed or {}).get(index, []),
                "hyperparams/lr": lr,
            }
        )
    return found


def replaced(*rows, left=100, rules=RULES, **kwargs):
    return Trials(rules).take(history(*rows, seeds=rules.seeds, **kwargs)).to_replace(left)


def test_rungs_are_powers_of_eta_below_a_whole_trial():
    assert RULES.levels == (1, 3)
    # 20 / 9 = 2.2, 20 / 3 = 6.7; 4 / 9 would be none.
    assert Rules(evaluations=20).levels == (2, 7)
    assert Rules(evaluations=4).levels == (1, 1)
    assert Rules(evaluations=64, eta=4, rungs=3).levels == (1, 4, 16)


def test_the_best_third_of_all_results_at_a_rung_continues():
    # Of six results, two continue: 9 and 7.
    assert replaced(([0, 1, 2, 3, 4, 5], [1.0, 9.0, 3.0, 7.0, 5.0, 2.0])) == [0, 2, 4, 5]
    # Then four new trials reach the first rung, where ten results make three continue: 9, 8 and 7. The new 6 loses
    # against them. The trials 1 and 3 are between two rungs.
    first = ([0, 1, 2, 3, 4, 5], [1.0, 9.0, 3.0, 7.0, 5.0, 2.0])
    assert replaced(first, ([6, 1, 7, 3, 8, 9], [8.0, 0.0, 6.0, 0.0, 1.0, 1.0])) == [2, 4, 5]
    # At the second rung, two results make one continue.
    rows = (first, ([6, 1, 7, 3, 8, 9], [8.0] + [0.0] * 5), ([6, 1, 10, 3, 11, 12], [0.0, 4.0, 0.0, 5.0, 0.0, 0.0]))
    assert 1 in replaced(*rows)
    assert 3 not in replaced(*rows)


def test_equal_results_continue_together():
    assert replaced(([0, 1, 2, 3], [-500.0] * 4)) == []
    assert replaced(([0, 1, 2, 3], [-500.0, -500.0, -500.0, -400.0])) == [0, 1, 2]


def test_losers_continue_where_no_other_trial_could_complete():
    row = ([0, 1, 2], [1.0, 2.0, 3.0])
    assert replaced(row, left=9) == [0, 1]
    assert replaced(row, left=8) == []


def test_complete_and_diverged_trials_are_replaced_to_the_end():
    rows = [([0, 1, 2], [3.0, 2.0, 1.0])] * 9
    assert replaced(*rows, left=1, failed={9: [2]}) == [0, 1, 2]
    assert replaced(*rows[:8], left=1, failed={8: [2]}) == [2]
    # The return of a policy that is frozen is no result: the second best continues in its place.
    assert replaced(([0, 1, 2], [9.0, 2.0, 1.0]), failed={1: [0]}) == [0, 2]


def test_a_trial_is_judged_by_the_interquartile_mean_of_its_members():
    # Of four members, the mean of the middle two; of three, the mean; NaN is the lowest.
    np.testing.assert_array_equal(interquartile_means([0.0, 100.0, 2.0, 4.0], 4), [3.0])
    np.testing.assert_array_equal(interquartile_means([0.0, 3.0, 6.0, 1.0, math.nan, 2.0], 3), [3.0, -math.inf])
    np.testing.assert_array_equal(interquartile_means([math.nan, 1.0, 3.0, 5.0], 4), [2.0])
    rules = Rules(evaluations=9, seeds=2)
    # 5, 4 and 3 on average; the member that diverged is one of trial 1.
    row = ([0, 1, 2], [0.0, 10.0, 4.0, 4.0, 3.0, 3.0])
    assert replaced(row, rules=rules) == [1, 2]
    assert replaced(row, rules=rules, failed={1: [3]}) == [1, 2]
    assert replaced(row, rules=rules, left=0, failed={1: [3]}) == [1]


def test_records_that_were_taken_one_by_one_decide_as_all_of_them():
    rng = np.random.default_rng(0)
    records, trials, numbers, fresh = history(([0, 1, 2, 3], [0.0] * 4))[:1], Trials(RULES), [0, 1, 2, 3], 4
    for left in range(60, -1, -1):
        returns = rng.normal(size=4).tolist()
        records += history((list(numbers), returns), failed={1: [2]} if left % 17 == 0 else {})[1:]
        slots = trials.take(records).to_replace(left)
        assert slots == Trials(RULES).take(records).to_replace(left)
        for slot in slots if left else ():
            numbers[slot], fresh = fresh, fresh + 1
    # Every trial that has ended is complete, stopped at a rung, or diverged, and every slot has completed one.
    for entry in trials.summary():
        number = len(entry["evaluations"])
        allowed = {"complete": number == 9, "stopped": number in RULES.levels, "diverged": True, "unfinished": True}
        assert allowed[entry["state"]], entry
    assert [entry["number"] for entry in trials.summary()] == list(range(max(numbers) + 1))
    assert all(trials.is_complete(trial) for trial in trials.finalists())


def test_the_summary_lists_every_trial_with_its_setting_and_state():
    trials = Trials(Rules(evaluations=2, eta=2, rungs=1))
    trials.take(history(([0, 1], [1.0, 2.0]), ([2, 1], [math.nan, 3.0]), ([2, 3], [5.0, 4.0]), failed={2: []}))
    assert trials.summary() == [
        {"number": 0, "hyperparameters": {"lr": 0.0}, "evaluations": [1.0], "state": "stopped"},
        {"number": 1, "hyperparameters": {"lr": 1.0}, "evaluations": [2.0, 3.0], "state": "complete"},
        {"number": 2, "hyperparameters": {"lr": 2.0}, "evaluations": [None, 5.0], "state": "complete"},
        {"number": 3, "hyperparameters": {"lr": 3.0}, "evaluations": [4.0], "state": "unfinished"},
    ]
    assert [trial.number for trial in trials.finalists()] == [2, 1]
    assert trials.best(trials.finalists()).number == 2


def test_a_trial_that_diverged_is_no_result_while_there_is_another():
    trials = Trials(RULES).take(history(([0, 1, 2], [9.0, 1.0, 2.0]), failed={1: [0]}))
    assert trials.best(trials.finalists()).number == 2


@pytest.mark.parametrize(("returns", "slots"), [([math.nan, 1.0, 2.0], [0, 1]), ([math.nan] * 3, [0, 1, 2])])
def test_trials_without_a_return_lose(returns, slots):
    assert replaced(([0, 1, 2], returns)) == slots
