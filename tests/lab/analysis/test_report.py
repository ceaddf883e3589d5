import json
import shutil

import numpy as np
import pytest

from stoix_like.lab.analysis.selection import SelectedMember
from support.lazily import Lazy
from support.recorded import set_key, write_run

plots, report = map(Lazy, ("stoix_like.lab.analysis.plots", "stoix_like.lab.analysis.report"))
pytestmark = pytest.mark.usefixtures("few_resamples")


def page_of(*paths, out):
    report.write([*paths], out / "report.html", animation=False)
    return (out / "report.html").read_text()


def test_the_report_is_one_page_with_all_parts(two):
    text = page_of(two, out=two)
    for part in ("Summary", "Learning curves", "Final returns", "Differences", "Runs and timing", "Versions", "0.11.2"):
        assert part in text
    assert "ppo/ff_ppo is better than q_learning/ff_dqn" in text
    # Cells break between the parts of names and paths, not within words.
    assert "<td>q_learning/<wbr>ff_dqn</td>" in text
    # Nothing is loaded, neither from a network nor from a file.
    assert not [word for word in ('src="http', 'href="http', "<script", "<link", "@import", "url(http") if word in text]


def test_the_seconds_of_a_resumed_run_are_those_of_all_processes_and_the_best_policy_is_named_by_its_member(tmp_path):
    """The seed of the best one, 7 + 2, is no argument of `load_policy`."""
    run = write_run(tmp_path / "run", (1.0, 2.0, 3.0), seed=7)
    summary = json.loads((run / "summary.json").read_text())
    summary["timing"] = {"compilation": 40.5, "training": 20.0, "total": 62.25}
    (run / "summary.json").write_text(json.dumps(summary))
    text = page_of(tmp_path, out=tmp_path)
    assert "<td>62.25</td><td>40.5</td>" in text
    assert ": member=2, seed 9 of <code>" in text


@pytest.mark.slow
def test_the_report_of_a_grid_shows_colours_and_tests_no_single_seeds(tmp_path):
    varied = {"actor_lr": [1e-4, 1e-4, 1e-2, 1e-2], "gamma": [0.9, 0.99, 0.9, 0.99]}
    write_run(tmp_path / "a", (1.0, 3.0, 5.0, 7.0), varied=varied)
    text = page_of(tmp_path, out=tmp_path)
    assert "undecided" not in text
    assert "6 pair(s) of algorithms are not tested" in text
    # Curves, profiles, a heat map and two slices.
    assert text.count("<figure>") == 5


def ladder_of(name, values, of):
    players = [
        {name: value, "env_steps": value, "elo": elo, "elo_ci_low": elo - 20, "elo_ci_high": elo + 20, "score": 0.25}
        for value, elo in zip(values, (0.0, 123.4), strict=True)
    ]
    return json.dumps({"of": of, "players": players})


def test_ladders_are_drawn(tmp_path):
    """Those of two runs with the same name, too."""
    folder = write_run(tmp_path / "a") / "evaluations"
    folder.mkdir()
    texts = {
        "checkpoints-seed0-100games": ladder_of("env_steps", [100, 200], "checkpoints"),
        "members-seed0-100games": ladder_of("member", [0, 1], "members"),
        **{"torn": "{", "deep": "[" * 100_000, "other": '{"of": "checkpoints", "players": [{"env_steps": "x"}]}'},
    }
    for name, text in texts.items():
        (folder / f"ladder-{name}.json").write_text(text)
    shutil.copytree(folder, write_run(tmp_path / "b/a", seed=1) / "evaluations")
    text = page_of(tmp_path, out=tmp_path)
    assert [f"Members of <code>{tmp_path / name}</code>" in text for name in ("a", "b/a")] == [True, True]
    assert "<h2>Ladder</h2>" in text
    assert "Elo above the first checkpoint" in text
    assert "<td>123 [103, 143]</td><td>25.0%</td>" in text
    ax = plots.elo({"a": json.loads(texts["checkpoints-seed0-100games"])})
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[100, 0.0], [200, 123.4]])


def test_the_best_policy_is_that_of_each_environment(tmp_path):
    for seed, (cart_pole, acrobot) in enumerate(((400.0, -80.0), (500.0, -90.0))):
        write_run(tmp_path / f"cart_pole{seed}", (cart_pole,), seed=seed)
        write_run(tmp_path / f"acrobot{seed}", (acrobot,), seed=seed, env="Acrobot-v1")
    text = page_of(tmp_path, out=tmp_path)
    for env, seed, value in (("CartPole-v1", 1, 500), ("Acrobot-v1", 0, -80)):
        run = tmp_path / f"{'cart_pole' if env[0] == 'C' else 'acrobot'}{seed}"
        assert f"<p>gymnax/{env}: seed {seed} of <code>{run}</code>, mean episode return {value}.</p>" in text


def test_what_tune_selected_has_its_return_on_fresh_seeds(tmp_path):
    tuned, params = tmp_path / "tuned", {"system.actor_lr": 0.1}
    for name, value in (("search/runs/00000", 9.0), ("fresh/0/00", 5.0)):
        write_run(tuned / name, (value,), seed=int(value))
    (tuned / "tune.json").touch()
    SelectedMember(20, 3, 9.0, params).write(tuned / "search")
    SelectedMember(20, 3, 7.0, params, [5.0] * 4).write(tuned)
    text = page_of(tuned, out=tmp_path)
    # Of four returns of 5, each mean is 5.
    assert "<td>7</td><td>IQM 5 [5, 5] on 4 fresh seed(s)</td>" in text
    assert "mean episode return 5.</p>" in text
    text = page_of(tuned / "search", out=tmp_path).replace("<wbr>", "")
    assert f"<td>9</td><td>see {tuned}: tune trains the best ones again</td>" in text


def test_the_best_setting_is_that_of_a_search_and_not_of_fresh_seeds(tmp_path):
    """Where the directory is a copy without the files of `tune`, too."""
    point = {"actor_lr": 0.1, "seeds": [0, 1], **{f"eval/episode_return_{name}": 7.0 for name in ("iqm", "ci_low")}}
    points = [point | {"eval/episode_return_ci_high": 8.0}] * 2
    for name in ("search/runs/00000", "fresh/0/00"):
        run = write_run(tmp_path / name, (7.0, 7.0), varied={"actor_lr": [0.1, 0.2]})
        summary = json.loads((run / "summary.json").read_text())
        added = {"population/best_point": points[0], "population/points": points}
        (run / "summary.json").write_text(json.dumps(summary | added))
        text = page_of(run, out=tmp_path)
        for words in ("Best of 2 hyperparameter settings", " 7 [7, 8] over 2 seed(s), the return that selected it."):
            assert (words in text) == name.startswith("search")


def test_the_absolute_metric_of_offline_runs_is_that_of_the_last_parameters(tmp_path):
    for name, arch, measured in (
        ("first", "anakin", "best"),
        ("second", "offline", "best parameters, of offline runs the last"),
    ):
        set_key(write_run(tmp_path / name, actor_lr=len(name)), "arch.architecture_name", arch)
        assert f"return of the {measured} parameters, once more" in page_of(tmp_path, out=tmp_path)
    assert "return of the last parameters, once more" in page_of(tmp_path / "second", out=tmp_path)


def test_text_of_runs_cannot_leave_its_place_in_the_report(tmp_path):
    write_run(tmp_path / "a", env="<img src=x onerror=alert(1)>")
    assert "<img src=x" not in page_of(tmp_path, out=tmp_path)
