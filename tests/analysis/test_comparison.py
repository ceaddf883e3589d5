import json

import numpy as np
import pytest
from lazily import Lazy
from omegaconf import OmegaConf
from recorded import write_run

from stoix_like import cli
from stoix_like.cli.listings import run_lines
from stoix_like.cli.process import REFUSED
from stoix_like.errors import ConfigError
from stoix_like.storage.recorded_runs import find_runs, members, read_run

analysis, plots, report, statistics = map(
    Lazy, ("stoix_like.analysis", *(f"stoix_like.analysis.{name}" for name in ("plots", "report", "statistics")))
)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Draw few bootstrap samples: `test_statistics` tests the intervals themselves."""
    for module in ("statistics", "plots"):
        monkeypatch.setattr(f"stoix_like.analysis.{module}.NUM_RESAMPLES", 200)


@pytest.fixture
def two(tmp_path):
    """PPO, far better, as a population of five; and DQN as five runs of one seed each."""
    write_run(tmp_path / "ppo", (90.0, 95.0, 100.0, 105.0, 110.0))
    for seed, value in enumerate((10.0, 12.0, 14.0, 16.0, 18.0)):
        write_run(tmp_path / f"dqn/{seed}", (value,), seed=seed, system="q_learning/ff_dqn")
    return tmp_path


def test_seeds_of_single_runs_and_of_populations_are_grouped(two):
    by_label = {algorithm.label: algorithm for algorithm in analysis.read(two)}
    assert list(by_label) == ["q_learning/ff_dqn", "ppo/ff_ppo"]
    assert by_label["q_learning/ff_dqn"].scores("gymnax/CartPole-v1").tolist() == [10.0, 12.0, 14.0, 16.0, 18.0]
    assert [member.seed for member in by_label["ppo/ff_ppo"].members] == [0, 1, 2, 3, 4]


def test_labels_name_the_settings_in_which_algorithms_differ(tmp_path):
    write_run(tmp_path / "a", actor_lr=0.01)
    write_run(tmp_path / "b", actor_lr=0.02)
    write_run(tmp_path / "c", (1.0, 2.0), varied={"gamma": [0.9, 0.99]}, actor_lr=0.01)
    assert [algorithm.label for algorithm in analysis.read(tmp_path)] == [
        "ppo/ff_ppo actor_lr=0.01 gamma=None",
        "ppo/ff_ppo actor_lr=0.02 gamma=None",
        "ppo/ff_ppo actor_lr=0.01 gamma=0.9",
        "ppo/ff_ppo actor_lr=0.01 gamma=0.99",
    ]


def test_a_seed_counts_once(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"seed 0 occurs twice .*/a and .*/b"):
        analysis.read(tmp_path)


def test_the_seeds_of_a_grid_are_grouped_by_its_hyperparameters(tmp_path):
    run = write_run(tmp_path / "a", (1.0, 2.0), varied={"actor_lr": [0.1, 0.2]})
    summary = json.loads((run / "summary.json").read_text())
    summary["population/members"][1]["seed"] = 0
    (run / "summary.json").write_text(json.dumps(summary))
    assert len(analysis.read(tmp_path)) == 2
    assert run_lines(tmp_path)[1].split()[5:8] == ["0", "×", "2"]
    with pytest.raises(ConfigError, match=r"seed 0 occurs in several .* add --by system.actor_lr$"):
        analysis.read(tmp_path, by=["system.name"])


def test_metrics_between_evaluations_are_loaded_and_drawn(tmp_path):
    run = write_run(tmp_path / "a", (1.0, 2.0))
    records = [{"env_steps": step, "updates": step, "updates/loss": [step / 10, None]} for step in (10, 20)]
    (run / "updates.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    frame = analysis.load(run, updates=True)
    assert frame[["member", "env_steps"]].values.tolist() == [[0, 10], [0, 20], [1, 10], [1, 20]]
    assert frame["updates/loss"].tolist()[:2] == [1.0, 2.0]
    first = members(read_run(run))[:1]
    steps, values = plots.curve(first, "updates/loss")
    assert (steps.tolist(), values.tolist()) == ([10.0, 20.0], [[1.0, 2.0]])
    with pytest.raises(ConfigError, match="the records of updates/loss have env_steps alone"):
        plots.curve(first, "updates/loss", "wall_seconds")
    with pytest.raises(ConfigError, match="no value of updates/los: did you mean 'updates/loss'"):
        plots.curve(first, "updates/los")


def test_a_clear_difference_is_decided(two):
    found = analysis.compare(two)
    # Means 14 and 100; the best return that occurs, 110, is the target of the optimality gap.
    assert found.table.loc["ppo/ff_ppo", "mean"] == 100.0
    assert found.table.loc["ppo/ff_ppo", "optimality_gap"] == 10.0
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
    assert "undecided" in test.verdict(0.05)
    assert "seeds of each would decide it" in test.verdict(0.05)


@pytest.mark.slow
def test_of_many_algorithms_the_best_is_tested_against_the_others(tmp_path):
    write_run(tmp_path / "a", [float(x) for x in range(16)], varied={"actor_lr": [0.1 * (x // 2) for x in range(16)]})
    tests = analysis.compare(tmp_path).tests
    assert {test.first for test in tests} == {"ppo/ff_ppo actor_lr=0.7"}
    assert len(tests) == 7


def test_several_environments_are_scaled_and_tested_apart(tmp_path):
    for env, factor in (("CartPole-v1", 1.0), ("Acrobot-v1", -100.0)):
        write_run(tmp_path / f"a-{env}", (1.0 * factor, 2.0 * factor), env=env)
        write_run(tmp_path / f"b-{env}", (3.0 * factor, 5.0 * factor), env=env, actor_lr=0.01)
    found = analysis.compare(tmp_path)
    # Scaled by the extremes 1 and 5: (0, 1/4) and (1/2, 1) on CartPole; in reverse on Acrobot, where the extremes are
    # -500 and -100: (1, 3/4) and (1/2, 0).
    assert found.table["mean"].to_dict() == {"ppo/ff_ppo actor_lr=0.001": 0.5, "ppo/ff_ppo actor_lr=0.01": 0.5}
    assert {test.task for test in found.tests} == {"gymnax/CartPole-v1", "gymnax/Acrobot-v1"}
    assert any("scaled" in note for note in found.notes)


def test_a_member_that_diverged_counts_as_the_lowest(tmp_path):
    write_run(tmp_path / "a", (3.0, None, 5.0))
    found = analysis.compare(tmp_path)
    assert found.table.loc["ppo/ff_ppo", "mean"] == pytest.approx(11.0 / 3.0)
    assert "1 member(s) without a return count as the lowest one" in str(found)


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


def test_algorithms_without_a_common_environment_are_refused(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", env="Acrobot-v1", actor_lr=0.01)
    with pytest.raises(ConfigError, match="no environment is common"):
        analysis.compare(tmp_path)


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


def test_curves_show_the_center_and_the_band(tmp_path):
    write_run(tmp_path / "a", curves=[[0.0, 0.0, 0.0], [1.0, 2.0, 6.0]])
    axes = analysis.learning_curves(analysis.read(tmp_path), center="mean", band="deviation")
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [0.0, 100.0]
    assert line.get_ydata().tolist() == [0.0, 3.0]
    # Squared distances from the mean 4 + 1 + 9, over 3 - 1 seeds: sqrt(7).
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert [band.min(), band.max()] == pytest.approx([0.0, 3.0 + np.sqrt(7.0)])
    assert analysis.learning_curves(analysis.read(tmp_path), x="wall_seconds").lines[0].get_xdata()[-1] == 2.0


def test_runs_evaluated_at_other_steps_are_interpolated(tmp_path):
    write_run(tmp_path / "a", curves=[[0.0], [10.0], [20.0]], seed=0)
    write_run(tmp_path / "b", curves=[[0.0], [10.0]], seed=1)
    algorithms = [*analysis.read(tmp_path / "a")[0].members, *analysis.read(tmp_path / "b")[0].members]
    points, values = plots.curve(algorithms, "eval/episode_return_mean")
    assert points[-1] == 100.0  # the end of the shorter run
    assert values[:, -1].tolist() == [10.0, 10.0]


def test_marks_appear_only_where_the_curves_differ(tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 5))
    write_run(tmp_path / "a", curves=[list(noise[0]), list(noise[0])])
    write_run(tmp_path / "b", curves=[list(noise[1]), list(noise[1] + 50.0)], actor_lr=0.01)
    axes = analysis.learning_curves(analysis.read(tmp_path), test="welch")
    marks = [line for line in axes.lines if line.get_marker() == "*"]
    assert [line.get_xdata().tolist() for line in marks] == [[100.0]]


def test_profiles_are_the_shares_above_each_return(two):
    axes = analysis.performance_profiles(analysis.read(two))
    lines = {line.get_label(): line for line in axes.lines}
    shares = np.interp(20.0, *lines["ppo/ff_ppo"].get_data()), np.interp(20.0, *lines["q_learning/ff_dqn"].get_data())
    assert shares == (1.0, 0.0)
    assert np.interp(102.0, *lines["ppo/ff_ppo"].get_data()) == pytest.approx(0.4)


def test_sample_efficiency_of_several_environments(tmp_path):
    write_run(tmp_path / "a", curves=[[0.0, 0.0], [4.0, 4.0]])
    write_run(tmp_path / "b", curves=[[-500.0, -500.0], [-100.0, -100.0]], env="Acrobot-v1")
    line = analysis.sample_efficiency(analysis.read(tmp_path)).lines[0]
    assert line.get_ydata()[[0, -1]].tolist() == [0.0, 1.0]


def test_slices_and_heat_maps_of_a_population(tmp_path):
    varied = {"actor_lr": [1e-4, 1e-4, 1e-2, 1e-2], "gamma": [0.9, 0.99, 0.9, 0.99]}
    write_run(tmp_path / "a", (1.0, 3.0, 5.0, 7.0), varied=varied)
    own = members(read_run(tmp_path / "a"))
    axes = analysis.hyperparameter_slices(own, "actor_lr")
    assert axes.get_xscale() == "log"
    assert axes.lines[0].get_ydata().tolist() == [2.0, 6.0]
    image = analysis.heat_map(own, "actor_lr", "gamma").images[0]
    assert image.get_array().tolist() == [[1.0, 5.0], [3.0, 7.0]]
    with pytest.raises(ConfigError, match="clip_eps does not vary"):
        analysis.hyperparameter_slices(own, "clip_eps")


def test_figures_as_files(two, tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!doctype html>"), (".pdf", b"%PDF")):
        path = tmp_path / f"curves{suffix}"
        cli.main(["plot", str(two), "--out", str(path), "--test", "welch"])
        assert path.read_bytes().startswith(start)
    page = (tmp_path / "curves.html").read_text()
    assert "ppo/ff_ppo" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.gif"], "the ending must be one of .png"),
        (["--out", "none/x.png"], "none is not a directory"),
        (["--out", "x.png", "--kind", "curve"], "did you mean 'curves'"),
        (["--out", "x.png", "--kind", "profiles", "--band", "error"], "--band does not apply to --kind profiles"),
        (["--out", "x.png", "--kind", "heatmap"], "needs a population"),
        (["--out", "x.png", "--metric", "eval/episode_retrn_mean"], "did you mean 'eval/episode_return_mean'"),
        (["--out", "x.png", "--by", "system.actr_lr"], "did you mean 'system.actor_lr'"),
    ],
)
def test_plots_that_cannot_be_drawn_are_refused(two, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(two)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["plot", str(two), *arguments])
    assert exit_.value.code == REFUSED
    assert message in capsys.readouterr().err


def test_compare_prints_the_verdict(two, capsys):
    cli.main(["compare", str(two), "--test", "mann_whitney", "--correction", "none"])
    printed = capsys.readouterr().out
    assert "Mann–Whitney U test, level 0.05" in printed
    assert "ppo/ff_ppo is better than q_learning/ff_dqn" in printed


def test_runs_are_listed_with_their_status(tmp_path, capsys):
    write_run(tmp_path / "done", (1.0, 2.0))
    write_run(tmp_path / "stopped", (3.0,), finished=False, seed=5)
    (write_run(tmp_path / "failed", (3.0,), finished=False) / "failure.txt").write_text("TrainingError: diverged\n")
    cli.main(["runs", str(tmp_path)])
    rows = {line.split("  ")[-1].rsplit("/", 1)[-1]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert {name: row.split()[2] for name, row in rows.items()} == {
        "done": "finished",
        "stopped": "stopped",
        "failed": "failed",
    }
    assert "0–1  " in rows["done"]
    assert " 1.5 " in rows["done"]


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


def test_find_runs_names_what_is_not_a_run(tmp_path):
    with pytest.raises(ConfigError, match="holds no run: a run is a directory with a config.yaml and a metrics.jsonl"):
        find_runs([tmp_path])


def test_a_lineage_shows_each_interval_and_each_replacement(tmp_path):
    write_run(tmp_path / "run", curves=[[0.0, 0.0], [1.0, 5.0], [6.0, 4.0]])
    run = read_run(tmp_path / "run")
    values = [[0.1, 0.2], [0.1, 0.2], [0.3, 0.2]]
    records = [{**record, "hyperparams/lr": row} for record, row in zip(run.history, values, strict=True)]
    records[1]["population/continues"] = [1, 1]
    replacements, intervals = plots.lineage(run._replace(history=records), "lr").collections
    # Member 0 continues member 1, whose rate was 0.2, with 0.3.
    np.testing.assert_array_equal(replacements.get_segments(), [[[100, 0.2], [100, 0.3]]])
    assert [segment[0].tolist() for segment in intervals.get_segments()] == [[0, 0.1], [0, 0.2], [100, 0.3], [100, 0.2]]
    np.testing.assert_array_equal(intervals.get_array(), [1.0, 5.0, 6.0, 4.0])
    with pytest.raises(ConfigError, match="has no rate over time"):
        plots.lineage(run._replace(history=records), "rate")


def test_population_based_training_counts_as_one_seed_each(tmp_path):
    for seed in (0, 2):
        write_run(tmp_path / f"pbt{seed}", (1.0, 5.0, 3.0), seed=seed)
        config = OmegaConf.load(tmp_path / f"pbt{seed}/config.yaml")
        config.arch.population = {"hyperparams": {"gamma": {"uniform": [0.9, 1.0]}}, "pbt": {"every_evals": 1}}
        OmegaConf.save(config, tmp_path / f"pbt{seed}/config.yaml")
        path = tmp_path / f"pbt{seed}/metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for number, record in enumerate(records):
            record |= {"population/best_member": 1, "hyperparams/gamma": [0.9, 0.91 + number / 100, 0.92]}
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    write_run(tmp_path / "plain", (1.0, 2.0))
    plain, evolved = sorted(analysis.read(tmp_path), key=lambda algorithm: "every_evals=1" in algorithm.label)
    assert [member.seed for member in plain.members] == [0, 1]
    assert [member.seed for member in evolved.members] == [0, 2]
    assert evolved.scores("gymnax/CartPole-v1").tolist() == [5.0, 5.0]
    table = analysis.load(tmp_path / "pbt0")
    assert table[table.member == 1]["system.gamma"].tolist() == pytest.approx([0.91, 0.92])
