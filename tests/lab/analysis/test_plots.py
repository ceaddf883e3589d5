import json
import sys

import numpy as np
import pytest

from stoix_like import cli
from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.storage.recorded_runs import members, read_run
from support.lazily import Lazy
from support.recorded import change_records, set_key, write_grid, write_run

analysis, plots, statistics = map(Lazy, (f"stoix_like.lab.analysis{name}" for name in ("", ".plots", ".statistics")))
pytestmark = pytest.mark.usefixtures("few_resamples")
BAND = "band: 95 % bootstrap interval of the"


def marked(algorithms):
    lines = analysis.learning_curves(algorithms, test="welch").lines
    return [line.get_xdata().tolist() for line in lines if line.get_marker() == "*"]


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
    with pytest.raises(ConfigError, match="the records of updates/loss only have env_steps"):
        plots.curve(first, "updates/loss", "wall_seconds")
    with pytest.raises(ConfigError, match="no value of updates/los: did you mean 'updates/loss'"):
        plots.curve(first, "updates/los")


@pytest.mark.parametrize(
    ("band", "ends"),
    [
        # Squared distances from the mean 4 + 1 + 9, over 3 - 1 seeds: sqrt(7).
        ("deviation", (3.0 - np.sqrt(7.0), 3.0 + np.sqrt(7.0))),
        # The standard error is the deviation sqrt(7) over sqrt(3).
        ("error", (3.0 - np.sqrt(7.0 / 3.0), 3.0 + np.sqrt(7.0 / 3.0))),
        # Of three values, the position of the share p is 2 p: 0.05 between the first two, 1.95 between the last two.
        ("percentile", (1.0 + 0.05 * (2.0 - 1.0), 2.0 + 0.95 * (6.0 - 2.0))),
    ],
)
def test_curves_show_the_center_and_the_band(tmp_path, band, ends):
    write_run(tmp_path / "a", curves=[[0.0, 0.0, 0.0], [1.0, 2.0, 6.0]])
    algorithms = analysis.read(tmp_path)
    axes = analysis.learning_curves(algorithms, center="mean", band=band)
    assert axes.lines[0].get_xydata().tolist() == [[0.0, 0.0], [100.0, 3.0]]
    corners = axes.collections[0].get_paths()[0].vertices
    at_the_end = corners[corners[:, 0] == 100.0, 1]
    assert [at_the_end.min(), at_the_end.max()] == pytest.approx(ends)
    assert not analysis.learning_curves(algorithms, band="none").collections
    assert analysis.learning_curves(algorithms, x="wall_seconds").lines[0].get_xdata()[-1] == 2.0


def test_runs_evaluated_at_other_steps_are_interpolated(tmp_path, capsys):
    write_run(tmp_path / "a", curves=[[0.0], [10.0], [20.0]], seed=0)
    write_run(tmp_path / "b", curves=[[0.0], [10.0]], seed=1)
    algorithms = [*analysis.read(tmp_path / "a")[0].members, *analysis.read(tmp_path / "b")[0].members]
    points, values = plots.curve(algorithms, "eval/episode_return_mean")
    assert points[-1] == 100.0  # the end of the shorter run
    assert values[:, -1].tolist() == [10.0, 10.0]
    assert f"is shown up to 100 of 200 env_steps: {tmp_path / 'b'} ends there" in capsys.readouterr().err


@pytest.mark.parametrize(("start", "is_drawn"), [(100, True), (101, False)])
def test_curves_without_common_points_are_refused(tmp_path, start, is_drawn):
    write_run(tmp_path / "a", curves=[[0.0], [10.0]], seed=0)
    late = write_run(tmp_path / "b", curves=[[0.0], [10.0], [20.0]], seed=1)
    change_records(late, lambda _, record: {"env_steps": start + record["env_steps"]})
    (algorithm,) = analysis.read(tmp_path)
    if is_drawn:
        points, values = plots.curve(algorithm.members, "eval/episode_return_mean")
        assert (set(points), values[:, 0].tolist()) == ({100.0}, [10.0, 0.0])
        return
    message = r"of ppo/ff_ppo: the values of .*/b start at 101 env_steps, after those of .*/a end at 100: plot them"
    with pytest.raises(ConfigError, match=message):
        plots.curve(algorithm.members, "eval/episode_return_mean")


def test_sample_efficiency_needs_points_that_all_environments_share(tmp_path):
    write_run(tmp_path / "a", curves=[[0.0], [4.0]])
    late = write_run(tmp_path / "b", curves=[[0.0], [4.0]], env="Acrobot-v1")
    change_records(late, lambda _, record: {"env_steps": 200 + record["env_steps"]})
    with pytest.raises(ConfigError, match="of ppo/ff_ppo: the values of gymnax/Acrobot-v1 start at 200 env_steps"):
        analysis.sample_efficiency(analysis.read(tmp_path))


def test_the_axis_of_offline_runs_counts_gradient_steps(tmp_path):
    write_run(tmp_path / "a")
    assert analysis.learning_curves(analysis.read(tmp_path)).get_xlabel() == "environment steps"
    set_key(tmp_path / "a", "arch.architecture_name", "offline")
    algorithms = analysis.read(tmp_path)
    for axes in (analysis.learning_curves(algorithms), analysis.sample_efficiency(algorithms)):
        assert axes.get_xlabel() == "gradient steps"


def test_seconds_count_from_the_first_record(tmp_path):
    """One seed compiles for 20 s before it, the other takes its programs from a cache."""
    for seed, start in enumerate((20.0, 0.0)):
        run = write_run(tmp_path / str(seed), curves=[[0.0], [10.0], [20.0]], seed=seed)
        change_records(run, lambda _, record, start=start: {"wall_seconds": start + record["wall_seconds"]})
    (algorithm,) = analysis.read(tmp_path)
    points, values = plots.curve(algorithm.members, "eval/episode_return_mean", "wall_seconds")
    assert (points.tolist(), values.tolist()) == ([0.0, 2.0, 4.0], [[0.0, 10.0, 20.0]] * 2)


def test_marks_stand_only_at_points_that_all_recorded_and_where_the_curves_differ(tmp_path):
    noise = np.random.default_rng(0).normal(size=(13, 5))
    write_run(tmp_path / "a", curves=noise[:9].tolist())
    write_run(tmp_path / "b", curves=[noise[0].tolist(), *(noise[9:] + 50.0).tolist()], actor_lr=0.01)
    # Evaluated after 0, 150, 300, 450 and 600 steps.
    change_records(tmp_path / "b", lambda _, record: {"env_steps": record["env_steps"] * 3 // 2})
    assert marked(analysis.read(tmp_path)) == [[300.0, 600.0]]


def test_curves_say_what_lines_and_bands_are(tmp_path):
    for size, name in ((5, "IQM"), (3, "mean")):
        write_run(tmp_path / name, [1.0] * size)
        texts = [text.get_text() for text in analysis.learning_curves(analysis.read(tmp_path / name)).texts]
        assert texts == [f"line: {name} over seeds; {BAND} {name}"]


def test_plots_and_comparisons_need_the_core_only(tmp_path, monkeypatch):
    write_run(tmp_path / "a", (1.0, 2.0))
    monkeypatch.setitem(sys.modules, "pandas", None)
    cli.main(["plot", str(tmp_path), "--out", str(tmp_path / "curves.svg")])
    assert "ppo/ff_ppo" in str(analysis.compare(tmp_path))
    with pytest.raises(MissingExtraError, match=r"\[analysis\]'"):
        analysis.load(tmp_path)


def test_curves_of_many_evaluations_are_thinned(tmp_path):
    write_run(tmp_path / "a", curves=[[float(step)] for step in range(2001)])
    points, values = plots.curve(members(read_run(tmp_path / "a")), "eval/episode_return_mean")
    assert (len(points), points[0], points[-1]) == (500, 0.0, 200_000.0)
    np.testing.assert_array_equal(values[0], points / 100.0)


def test_marks_are_corrected_for_the_number_of_points(tmp_path):
    rng = np.random.default_rng(0)
    curves = rng.normal(size=(2, 30, 5))
    for name, values in zip("ab", curves, strict=True):
        write_run(tmp_path / name, curves=values.tolist(), system=f"ppo/{name}")
    # Both are noise of one distribution. The least of 30 p-values is below 0.05, and not below 0.05 / 30.
    assert 0.05 / 30 < min(statistics.p_value("welch", *pair) for pair in zip(*curves, strict=True)) < 0.05
    assert not marked(analysis.read(tmp_path))
    write_run(tmp_path / "c", curves=(curves[0] + 50.0).tolist(), system="ppo/c")
    axes = analysis.learning_curves(analysis.read([tmp_path / "a", tmp_path / "c"]), test="welch")
    assert axes.lines[-1].get_label() == "welch: p < 0.05, corrected over points by fdr_bh"


def test_marks_of_a_grid_are_those_of_a_paired_test(tmp_path):
    """Seeds differ by 50, settings by 10: an unpaired test sees no difference."""
    write_grid(tmp_path / "grid", [0.0, 10.0])
    assert len(marked(analysis.read(tmp_path))) == 1


def test_profiles_of_best_policies_leave_out_unfinished_runs(tmp_path, capsys):
    for seed in range(3):
        write_run(tmp_path / str(seed), (10.0 + seed,), seed=seed, finished=seed > 0)
    (line,) = analysis.performance_profiles(analysis.read(tmp_path), kind="best").lines
    assert line.get_xdata()[0] == 11.0
    assert "1 member(s) without a best return are left out" in capsys.readouterr().err


def test_profiles_are_the_shares_above_each_return(two):
    axes = analysis.performance_profiles(analysis.read(two))
    lines = {line.get_label(): line for line in axes.lines}
    shares = np.interp(20.0, *lines["ppo/ff_ppo"].get_data()), np.interp(20.0, *lines["q_learning/ff_dqn"].get_data())
    assert shares == (1.0, 0.0)
    assert np.interp(102.0, *lines["ppo/ff_ppo"].get_data()) == pytest.approx(0.4)


def test_sample_efficiency_of_several_environments_ends_and_is_scaled_with_the_shortest(tmp_path, capsys):
    write_run(tmp_path / "a", curves=[[0.0, 0.0], [4.0, 4.0]])
    write_run(tmp_path / "b", curves=[[-500.0, -500.0], [-100.0, -100.0]], env="Acrobot-v1")
    line = analysis.sample_efficiency(analysis.read(tmp_path)).lines[0]
    assert line.get_ydata()[[0, -1]].tolist() == [0.0, 1.0]
    assert capsys.readouterr().err == ""
    write_run(tmp_path / "c", curves=[[0.0], [4.0]], seed=2)
    analysis.sample_efficiency(analysis.read(tmp_path))
    assert "ppo/ff_ppo: 2 to 3 seeds per task, aggregates use the first 2" in capsys.readouterr().err
    write_run(tmp_path / "d", curves=[[0.0, 0.0], [50.0, 50.0], [100.0, 100.0]], env="MountainCar-v0")
    line = analysis.sample_efficiency(analysis.read([tmp_path / "a", tmp_path / "d"])).lines[0]
    # Up to 100 steps, the highest returns are 4 and 50; the 100 of the longer one comes later.
    assert line.get_xydata()[[0, -1]].tolist() == [[0.0, 0.0], [100.0, 1.0]]
    note = "of ppo/ff_ppo is shown up to 100 of 200 env_steps: gymnax/CartPole-v1 ends there"
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seeds", "envs", "bands", "text"),
    [
        (1, ["CartPole-v1"], 0, "one seed"),
        (1, ["CartPole-v1", "Acrobot-v1"], 0, "line: mean over environments, one seed of each: no band"),
        (3, ["CartPole-v1"], 1, f"line: mean over seeds; {BAND} mean"),
        # An interquartile mean needs four scores, of 2 x 2 runs.
        (2, ["CartPole-v1", "Acrobot-v1"], 1, f"line: IQM over seeds and environments; {BAND} IQM"),
    ],
)
def test_sample_efficiency_has_bands_over_several_seeds(tmp_path, seeds, envs, bands, text):
    for env in envs:
        write_run(tmp_path / env, [1.0 + seed for seed in range(seeds)], env=env)
    axes = analysis.sample_efficiency(analysis.read(tmp_path))
    assert len(axes.collections) == bands
    assert [each.get_text() for each in axes.texts] == [text]
