import re

import numpy as np
import pytest

from stoix_like import cli
from stoix_like.errors import ConfigError
from support.lazily import Lazy
from support.recorded import set_key, write_grid, write_run

analysis, comparison, report, statistics = map(
    Lazy, (f"stoix_like.lab.analysis{name}" for name in ("", ".comparison", ".report", ".statistics"))
)
pytestmark = pytest.mark.usefixtures("few_resamples")
DIVERGED = "TrainingError: training diverged: train/loss became non-finite"
POPULATION = {"size": 3, "hyperparams": None, "mode": "zip", "seeds": 1}


def test_a_clear_difference_is_decided(two):
    found = analysis.compare(two)
    # Means 14 and 100; the best return that occurs, 110, is the target of the optimality gap.
    assert found.aggregates["ppo/ff_ppo"]["mean"].estimate == 100.0
    assert found.aggregates["ppo/ff_ppo"]["optimality_gap"].estimate == 10.0
    (test,) = found.tests
    assert test.difference.estimate == -86.0
    assert test.improvement.estimate == 0.0
    assert test.verdict(0.05).startswith("ppo/ff_ppo is better than q_learning/ff_dqn by 86 [")


def test_a_small_difference_is_undecided_and_tells_the_seeds_it_needs(tmp_path):
    write_run(tmp_path / "a", (8.0, 9.0, 10.0, 11.0, 12.0))
    write_run(tmp_path / "b", (9.0, 10.0, 11.0, 12.0, 13.0), actor_lr=0.01)
    (test,) = analysis.compare(tmp_path).tests
    # Deviation sqrt(2.5), difference 1: effect size 0.63, for which Cohen's tables give 40 per group.
    assert 34 <= test.seeds_needed <= 46
    assert re.search("undecided.*seeds of each would decide it", test.verdict(0.05))
    # Without spread, three against three have C(6, 3) = 20 splits, p = 2/20; four against four C(8, 4) = 70,
    # p = 2/70 = 0.029.
    for name, value in (("c", 1.0), ("d", 0.0)):
        write_run(tmp_path / name, (value,) * 3, system=f"ppo/{name}")
    found = analysis.compare([tmp_path / "c", tmp_path / "d"], analysis.Settings(test="permutation"))
    assert found.tests[0].verdict(0.05).endswith("p = 0.1; about 4 seeds of each would decide it")


def test_of_single_scores_estimates_are_printed_alone(tmp_path):
    for name, value in (("a", 480.0), ("b", 470.0)):
        write_run(tmp_path / name, (value,), system=f"ppo/{name}")
    found = analysis.compare(tmp_path)
    # There is no distance to the best of them.
    assert [row[-2:] for row in found.rows] == [["–", "–"]] * 2
    assert "ppo/a  1      100    480.0  480.0" in str(found)
    assert "fewer than 5 seeds: tests and intervals say little" in str(found)
    assert not any(text in str(found) for text in ("[", "bootstrap", "Welch", "P(ppo/a", "optimality gap: "))
    found = analysis.compare(tmp_path, analysis.Settings(target=500.0))
    assert [row[-1] for row in found.rows] == ["20.0", "30.0"]
    write_run(tmp_path / "c", (1.0, 2.0), system="ppo/b", seed=1)
    printed = str(analysis.compare(tmp_path))
    # The first column of the table, and of the pair, whose test needs two seeds of each.
    assert "P(ppo/a > ppo/b) = 1.00\n" in printed
    assert "95 % bootstrap intervals" in printed
    assert "Welch" not in printed


def test_a_grid_is_a_table_of_the_best_against_the_others_paired_by_seed(tmp_path):
    write_grid(tmp_path / "grid", [0.0, 10.0, 30.0, 20.0, 15.0, 12.0, 11.0])
    found = analysis.compare(tmp_path)
    rates = [algorithm.settings["system.actor_lr"] for algorithm in found.algorithms]
    assert rates[0] == 30.0
    iqms = [found.aggregates[algorithm.label]["iqm"].estimate for algorithm in found.algorithms]
    assert iqms == sorted(iqms, reverse=True)
    assert {test.first for test in found.tests} == {found.algorithms[0].label}
    # The seeds' own effects, of 50, would hide these differences from an unpaired test.
    assert all(test.paired and test.corrected < 0.05 for test in found.tests)
    printed = str(found)
    assert "paired t-test, level 0.05, corrected by holm" in printed
    assert max(map(len, printed.splitlines())) < 160
    assert len(printed.splitlines()) == 3 + 7 + 3 + 1 + 1 + 1 + 6 + 1


def test_the_choice_of_the_best_of_a_grid_counts_in_the_correction(tmp_path, monkeypatch):
    """Any of 7 * 6 / 2 pairs on each of two environments could have been tested."""
    levels, name = [], "stoix_like.lab.analysis.statistics.seeds_needed"
    monkeypatch.setattr(name, lambda x, y, test, level, **rest: levels.append(level))
    for env, factor in (("CartPole-v1", 1.0), ("Acrobot-v1", 2.0)):
        for place in range(7):
            finals = [factor * (place + seed) for seed in range(5)]
            write_run(tmp_path / f"{env}{place}", finals, env=env, actor_lr=place)
    found = analysis.compare(tmp_path, analysis.Settings(correction="bonferroni"))
    assert len(found.tests) == 12
    assert [test.corrected for test in found.tests] == [min(42 * test.p_value, 1.0) for test in found.tests]
    assert set(levels) == {0.05 / 42}
    note = "more than 6 algorithms: only the best one is tested against the others"
    assert f"{note}, corrected for all pairs" in found.notes
    assert note in analysis.compare(tmp_path, analysis.Settings(correction="none")).notes


@pytest.mark.parametrize(("distance", "common"), [(3, False), (2, True)])
def test_scores_of_the_best_of_many_members_are_noted(tmp_path, distance, common):
    for seed in (0, distance):
        run = write_run(tmp_path / f"{seed}", (1.0, 5.0, 3.0), seed=seed)
        set_key(run, "arch.population", {**POPULATION, "pbt": {"every_evals": 1}})
    first = "ppo/ff_ppo on gymnax/CartPole-v1: each score is that of the best of 3 members"
    apart = ", with seeds in common, so they are not independent (use values of arch.seed at least 3 apart)"
    total = f"after 300 env steps of all together{apart if common else ''}"
    fresh = "`stoix-like compare --score best` compares fresh episodes"
    assert f"{first}, by these episodes, {total}; {fresh}" in analysis.compare(tmp_path).notes
    assert f"{first}, {total}" in analysis.compare(tmp_path, analysis.Settings(score="best")).notes


def test_different_budgets_are_reported_and_no_setting(tmp_path):
    write_run(tmp_path / "short", curves=[[0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]], system="sac/ff_sac")
    write_run(tmp_path / "long", curves=[[0.0] * 5, [1.0] * 5, [2.0, 3.0, 4.0, 5.0, 6.0]])
    printed = str(analysis.compare(tmp_path))
    assert "note: budgets differ, from 100 to 200 env steps" in printed
    write_run(tmp_path / "more", curves=[[0.0] * 3, [1.0] * 3], seed=5)
    longer = analysis.read([tmp_path / "long", tmp_path / "more"])
    assert [len(algorithm.members) for algorithm in longer] == [8]


def test_budgets_of_offline_runs_are_gradient_steps_and_equal_where_they_are_rounded_to_whole_updates(tmp_path):
    write_run(tmp_path / "short", system="sac/ff_sac")
    write_run(tmp_path / "long", curves=[[0.0], [1.0], [2.0]])
    for name, unit in (("short", "steps"), ("long", "gradient steps")):
        set_key(tmp_path / name, "arch.architecture_name", "offline")
        assert f"budgets differ, from 100 to 200 {unit}: " in analysis.compare(tmp_path).notes[-1]
    write_run(tmp_path / "other", system="q_learning/ff_dqn", seed=1)
    records = tmp_path / "other/metrics.jsonl"
    records.write_text(records.read_text().replace('"env_steps": 100', '"env_steps": 99'))
    found = analysis.compare([tmp_path / "short", tmp_path / "other"])
    assert not any("budgets differ" in note for note in found.notes)


def test_runs_that_have_not_finished_are_named_and_no_other_budget(tmp_path):
    write_run(tmp_path / "a", (1.0, 2.0, 3.0, 4.0, 5.0))
    for name, seed, error in (("killed", 5, None), ("crashed", 6, "OSError: full"), ("diverged", 7, DIVERGED)):
        run = write_run(tmp_path / name, seed=seed, finished=False)
        # After 40 of the 100 steps of all.
        (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().replace(": 100,", ": 40,"))
        if error is not None:
            (run / "failure.txt").write_text(error)
    diverged, note = analysis.compare(tmp_path).notes
    assert "1 of 8 diverged" in diverged
    runs = f"{tmp_path / 'killed'} (stopped), {tmp_path / 'crashed'} (failed)"
    advice = "their last evaluations are not final returns; resume them or leave them out"
    assert note == f"2 run(s) have not finished: {runs}: {advice}"


def test_wrappers_that_differ_within_an_algorithm_are_reported(tmp_path):
    for seed in range(5):
        write_run(tmp_path / f"{seed}", seed=seed, env_keys={"frame_stack": 1 + seed % 2})
    (note,) = analysis.compare(tmp_path).notes
    differ = "members that differ in env.frame_stack count as one algorithm; `--by` tells them apart"
    assert note == f"ppo/ff_ppo on gymnax/CartPole-v1: {differ}"
    assert not any("frame_stack" in note for note in analysis.compare(tmp_path, by=["env.frame_stack"]).notes)


def test_a_run_that_has_not_ended_has_no_best_return(tmp_path):
    write_run(tmp_path / "a", [1.0, 2.0, 3.0, 4.0, 6.0])
    write_run(tmp_path / "b", [0.5], seed=5, finished=False)
    found = analysis.compare(tmp_path, analysis.Settings(score="best"))
    assert found.aggregates["ppo/ff_ppo"]["mean"].estimate == pytest.approx(16.0 / 5.0)
    assert found.notes == ["ppo/ff_ppo on gymnax/CartPole-v1: 1 member(s) without a best return are left out"]


@pytest.mark.parametrize(
    ("first", "best", "reason"),
    [
        (0.0, 500.0, "both reach the largest return, 500"),
        (500.0, 500.0, "all their runs return 500"),
        (0.0, 501.0, "all their runs return 500"),
    ],
)
def test_pairs_of_which_all_runs_return_the_same_are_not_tested(tmp_path, first, best, reason):
    write_run(tmp_path / "a", curves=[[first] * 3, [best] * 3, [500.0] * 3])
    write_run(tmp_path / "b", (500.0,) * 3, curves=[[first] * 3, [500.0] * 3], system="sac/ff_sac")
    found = analysis.compare(tmp_path, analysis.Settings(test="mann_whitney"))
    (test,) = found.tests
    assert np.isnan(test.p_value)
    assert test.verdict(0.05) == f"ppo/ff_ppo and sac/ff_sac are equal: {reason}"
    assert "Mann" not in str(found)
    report.write([tmp_path], tmp_path / "report.html", animation=False)
    text = (tmp_path / "report.html").read_text()
    assert f"are equal: {reason}" in text
    # Two curves, and no profile.
    assert text.count("<figure>") == 1


def test_pairs_that_are_equal_seed_by_seed_are_not_tested(tmp_path):
    """Of the members 1 and 2 in another order, the means are equal and the runs are not."""
    for name, finals in (("a", (1.0, 2.0)), ("b", (1.0, 2.0)), ("c", (2.0, 1.0))):
        write_run(tmp_path / name, finals, system=f"ppo/{name}")
    verdicts = [test.verdict(0.05) for test in analysis.compare(tmp_path).tests]
    assert verdicts[0] == "ppo/a and ppo/b are equal: each seed returns the same with both"
    assert all("undecided" in verdict for verdict in verdicts[1:])


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((5.0, 1.0, 20.0), "5.0 [1.0, 20.0]"),
        ((0.1, 0.05, 0.5), "0.10 [0.05, 0.50]"),
        # Two significant digits of the largest, 0.04 and 0.0012.
        ((-0.03, -0.04, 0.002), "-0.030 [-0.040, 0.002]"),
        ((0.0012, float("nan"), float("nan")), "0.0012"),
        ((3e-9, 0.0, 3e-9), "0.000000 [0.000000, 0.000000]"),
        ((0.0, 0.0, 0.0), "0.00 [0.00, 0.00]"),
    ],
)
def test_small_returns_have_more_digits(interval, text):
    assert comparison.format_interval(statistics.Interval(*interval)) == text


def test_an_interquartile_mean_of_three_seeds_is_not_named_so(tmp_path):
    write_run(tmp_path / "a", (1.0, 2.0, 6.0))
    found = analysis.compare(tmp_path)
    assert found.rows[0][5] == "–"
    assert "an IQM needs 4 scores" in str(found)


def test_several_environments_are_scaled_and_tested_apart(tmp_path):
    for env, factor in (("CartPole-v1", 1.0), ("Acrobot-v1", -100.0)):
        write_run(tmp_path / f"a-{env}", (1.0 * factor, 2.0 * factor), env=env)
        write_run(tmp_path / f"b-{env}", (3.0 * factor, 5.0 * factor), env=env, actor_lr=0.01)
    found = analysis.compare(tmp_path)
    # Scaled by the extremes 1 and 5: (0, 1/4) and (1/2, 1) on CartPole; in reverse on Acrobot, where the extremes are
    # -500 and -100: (1, 3/4) and (1/2, 0).
    means = {label: statistics["mean"].estimate for label, statistics in found.aggregates.items()}
    assert means == {"ppo/ff_ppo actor_lr=0.001": 0.5, "ppo/ff_ppo actor_lr=0.01": 0.5}
    assert {test.task for test in found.tests} == {"gymnax/CartPole-v1", "gymnax/Acrobot-v1"}
    assert any("scaled" in note for note in found.notes)


def test_members_that_diverged_count_as_the_lowest_of_all_algorithms(tmp_path):
    """Of five, four diverged: with the lowest of its own, 480 without spread would be the better one."""
    write_run(tmp_path / "fragile", (480.0, None, None, None, None), system="ppo/fragile")
    write_run(tmp_path / "robust", (470.0, 465.0, 472.0, 468.0, 460.0), system="ppo/robust")
    found = analysis.compare(tmp_path)
    (test,) = found.tests
    # Means (480 + 4 * 460) / 5 = 464 and 467.
    assert test.difference.estimate == -3.0
    assert test.verdict(0.05).startswith("ppo/fragile and ppo/robust: undecided")
    note = "ppo/fragile on gymnax/CartPole-v1: 4 of 5 diverged, counted as the lowest return of all"
    assert found.notes == [note]
    # All of one did.
    for seed in (0, 1):
        run = write_run(tmp_path / f"lost{seed}", (9.0,), seed=seed, system="ppo/lost", finished=False)
        (run / "failure.txt").write_text("TrainingError: training diverged: train/loss became non-finite\n")
    found = analysis.compare(tmp_path)
    assert found.aggregates["ppo/lost"]["mean"].estimate == 460.0
    assert "2 of 2 diverged, counted as the lowest return of all" in " ".join(str(found).split())


def test_a_test_of_ranks_names_the_one_of_higher_ranks(tmp_path):
    """Nine of ten runs of A are above all of B, and one so far below that its mean is lower."""
    write_run(tmp_path / "a", (*(500.0 + seed for seed in range(9)), 0.0), system="ppo/a")
    write_run(tmp_path / "b", [460.0 + seed for seed in range(10)], system="ppo/b", seed=20)
    (test,) = analysis.compare(tmp_path, analysis.Settings(test="mann_whitney")).tests
    assert test.improvement.estimate == 0.9
    assert test.verdict(0.05).startswith("ppo/a ranks above ppo/b, p = ")
    low, high = (float(end) for end in re.findall(r"difference -10.9 \[(.*), (.*)\]", test.verdict(0.05))[0])
    assert low < -10.9 < high


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test": "welsh"}, "test=welsh is unknown: did you mean 'welch'"),
        ({"correction": "hulm"}, "did you mean 'holm'"),
        ({"score": "last"}, "score=last is unknown"),
        ({"level": 5.0}, "level=5.0 must be between 0 and 1"),
    ],
)
def test_unknown_settings_are_refused(two, settings, message):
    with pytest.raises(ConfigError, match=message):
        analysis.compare(two, analysis.Settings(**settings))


@pytest.mark.slow
def test_algorithms_without_a_common_environment_are_compared_apart(tmp_path):
    write_run(tmp_path / "a", (1.0, 2.0))
    write_run(tmp_path / "b", (3.0, 4.0), env="Acrobot-v1", actor_lr=0.01)
    write_run(tmp_path / "c", (5.0, 6.0), env="Acrobot-v1", system="q_learning/ff_dqn")
    with pytest.raises(ConfigError, match="no environment is common"):
        analysis.compare(tmp_path)
    first, second = analysis.compare_all(tmp_path)
    assert (first.tasks, [one.label for one in first.algorithms]) == (["gymnax/CartPole-v1"], ["ppo/ff_ppo"])
    assert second.tasks == ["gymnax/Acrobot-v1"]
    assert [one.label for one in second.algorithms] == ["ppo/ff_ppo", "q_learning/ff_dqn"]
    page = tmp_path / "page.html"
    report.write([tmp_path], page, animation=False)
    assert page.read_text().count("<h2>Summary: ") == 2
    cli.main(["plot", str(tmp_path), "--out", str(tmp_path / "curves.svg")])
    assert all(f"gymnax/{name}" in (tmp_path / "curves.svg").read_text() for name in ("CartPole-v1", "Acrobot-v1"))


def test_load_has_one_row_per_member_and_evaluation(tmp_path):
    write_run(tmp_path / "a", (1.0, 2.0), seed=7, varied={"actor_lr": [0.1, 0.2]})
    frame = analysis.load(tmp_path)
    assert len(frame) == 4
    last = frame[frame["env_steps"] == 100].set_index("seed")
    assert last["eval/episode_return_mean"].to_dict() == {7: 1.0, 8: 2.0}
    assert last["system.actor_lr"].to_dict() == {7: 0.1, 8: 0.2}
    assert last["wall_seconds"].tolist() == [2.0, 2.0]
    # A statistic of the whole population belongs to no member.
    assert "eval/episode_return_iqm" not in frame
    assert frame["train/entropy"].isna().sum() == 2


def test_compare_prints_the_verdict(two, capsys):
    cli.main(["compare", str(two), "--test", "mann_whitney", "--correction", "none"])
    printed = capsys.readouterr().out
    assert "Mann–Whitney U test, level 0.05" in printed
    assert "ppo/ff_ppo is better than q_learning/ff_dqn" in printed


def test_algorithms_of_one_label_are_refused(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        write_run(tmp_path / name, seed=seed)
    (first,), (second,) = analysis.read(tmp_path / "a"), analysis.read(tmp_path / "b")
    with pytest.raises(ConfigError, match="two algorithms are called ppo/ff_ppo: read their runs together"):
        analysis.compare([first, second])
    assert len(analysis.compare([first, second._replace(label="again")]).rows) == 2
    with pytest.raises(ConfigError, match="no runs are given"):
        analysis.load([])
