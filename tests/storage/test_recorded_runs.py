import json
import math

import pytest
import yaml
from omegaconf import OmegaConf

from stoix_like import cli
from stoix_like.errors import ConfigError
from stoix_like.storage.recorded_runs import Run, find_runs, identity, members, read_run, read_runs, samples, settings
from support.composed import compose_config
from support.recorded import set_key, write_run


def change_summary(run, change):
    path = run / "summary.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def diverge(summary):
    summary["population/members"][1]["failure"] = "train/loss became non-finite"
    return summary


def test_lists_of_callbacks_make_no_population(tmp_path):
    run_dir = write_run(tmp_path / "run", (3.0,), finished=False)
    *lines, last = (run_dir / "metrics.jsonl").read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | {"my/list": [1.0, 2.0]}))
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert len(members(read_run(run_dir))) == 1


def test_the_progress_of_a_search_is_no_setting(tmp_path):
    run_dir, own = write_run(tmp_path / "run"), {"_target_": "my_module.Own"}
    progress = {"_target_": "stoix_like.lab.tuning.progress.TuningProgress", "stage": "search"}
    for callbacks, left in (([own, progress], [own]), ([progress], []), (None, [])):
        set_key(run_dir, "callbacks", callbacks)
        assert settings(*members(read_run(run_dir)))["callbacks"] == left


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


def test_damaged_runs_and_those_of_earlier_versions_do_not_end_a_listing(tmp_path, capsys):
    good, torn, older = (write_run(tmp_path / name, seed=seed) for seed, name in enumerate(("good", "torn", "older")))
    (torn / "metrics.jsonl").write_text((torn / "metrics.jsonl").read_text()[:-30])
    (torn / "summary.json").write_text('{"system": "ppo/ff')
    (older / "config.yaml").write_text((older / "config.yaml").read_text().replace("scenario:", "scene:"))
    (write_run(tmp_path / "empty", seed=3) / "config.yaml").write_text("")
    config = write_run(tmp_path / "listed", seed=4) / "config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"arch": {"population": [1]}}))
    cli.main(["runs", str(good), str(tmp_path)])
    listed = capsys.readouterr().out.splitlines()
    assert [line.rpartition("/")[2] for line in listed[1:3]] == ["good", "torn"]
    assert " 0  " in listed[2]  # steps of the last complete record
    assert sorted(line.partition(" ")[0] for line in listed[3:]) == ["unreadable:"] * 3
    assert f"{older} cannot be read as a run of this version (KeyError: 'scenario')" in "\n".join(listed)
    cli.main(["plot", str(tmp_path), "--out", str(tmp_path / "curves.svg")])
    said = capsys.readouterr()
    assert "leaving out a run: " in said.err
    with pytest.raises(ConfigError, match="older cannot be read"):
        read_runs([older])


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("population/members", [], "it has no members"),
        ("population/members", [{"seed": 1, "actor_lr": "high"}], "could not convert string to float: 'high'"),
        ("population/varied", ["clip_eps"], "KeyError: 'clip_eps'"),
    ],
)
def test_summaries_of_another_form_are_named_and_left_out(tmp_path, key, value, problem):
    run = write_run(tmp_path / "run", (1.0, 2.0), varied={"actor_lr": [0.1, 0.2]})
    change_summary(run, lambda summary: {**summary, key: value})
    with pytest.raises(ConfigError, match=rf"run cannot be read as a run of this version \(.*{problem}"):
        read_run(run)


def test_nulls_of_a_summary_are_missing_values_and_unfinished_runs_have_the_environment_of_finished_ones(tmp_path):
    run = write_run(tmp_path / "run")
    change_summary(run, dict.fromkeys)
    assert (read_run(run).summary, read_run(run).environment) == ({}, "gymnax/CartPole-v1")
    scenario = {"name": "A-v1", "task_name": "A-blind"}
    path = write_run(tmp_path / "unfinished", finished=False, env_keys={"scenario": scenario})
    assert read_run(path).environment == "gymnax/A-blind"


def test_runs_are_not_searched_for_below_the_parts_of_runs(tmp_path):
    outer = write_run(tmp_path / "outer")
    write_run(outer / "inner")
    write_run(outer / "checkpoints/128/not")
    assert find_runs([tmp_path]) == [outer, outer / "inner"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no run: a run is a directory with a config.yaml and a metrics.jsonl"):
        find_runs([tmp_path / "empty"])


def test_members_have_their_seeds_hyperparameters_and_values(tmp_path):
    run = read_run(write_run(tmp_path / "run", (1.0, None), seed=3, varied={"actor_lr": [0.1, 0.2]}))
    first, second = found = members(run)
    assert [(member.seed, member.hyperparams) for member in found] == [(3, {"actor_lr": 0.1}), (4, {"actor_lr": 0.2})]
    assert (first.failure, second.failure) == (None, "train/loss became non-finite")
    last = run.last
    assert first.value(last, "eval/episode_return_mean") == 1.0
    assert math.isnan(second.value(last, "eval/episode_return_mean"))
    assert math.isnan(first.value(last, "train/missing"))
    # Shared by the population.
    assert second.value(last, "env_steps") == 100.0
    assert samples(run) == found


def test_the_last_evaluation_of_what_diverged_is_no_score(tmp_path):
    """Its policy is the one before, which was evaluated all the same."""
    done = write_run(tmp_path / "done", (1.0, 2.0), bests=[4.0, 5.0])
    change_summary(done, diverge)
    config = OmegaConf.to_container(compose_config(["arch.population.size=2"]))
    last = {"env_steps": 100, "eval/episode_return_mean": [1.0, 2.0], "population/failed": [1]}
    for run in (read_run(done), Run(tmp_path / "under_way", config, last, {})):
        assert [member.score("final") for member in members(run)] == pytest.approx([1.0, math.nan], nan_ok=True)
    assert [member.score("best") for member in members(read_run(done))] == [4.0, 5.0]
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended/failure.txt").write_text("TrainingError: training diverged: all 2 members; the last good\n")
    ended = members(Run(tmp_path / "ended", config, last | {"population/failed": []}, {}))
    assert [math.isnan(member.score("final")) for member in ended] == [True, True]
    lone = write_run(tmp_path / "lone", (3.0,), finished=False)
    diverged = "TrainingError: training diverged: train/loss became non-finite in update 3\n"
    for failure, score in ((None, 3.0), ("OSError: disk full\n", 3.0), (diverged, math.nan)):
        if failure:
            (lone / "failure.txt").write_text(failure)
        assert members(read_run(lone))[0].score("final") == pytest.approx(score, nan_ok=True)


def test_settings_are_those_that_determine_the_results(tmp_path):
    runs = [read_run(write_run(tmp_path / str(seed), seed=seed, gamma=0.9)) for seed in (0, 1)]
    one, other = (settings(*members(run)) for run in runs)
    assert identity(one) == identity(other)
    assert (one["system.gamma"], one["env.scenario.name"]) == (0.9, "CartPole-v1")
    assert not any(key.startswith(("arch.seed", "logger", "checkpoint")) for key in one)
    varied = read_run(write_run(tmp_path / "varied", (1.0, 2.0), varied={"gamma": [0.9, 0.8]}, gamma=0.9))
    first, second = map(settings, members(varied))
    assert (first["system.gamma"], second["system.gamma"]) == (0.9, 0.8)
    assert "system.gamma" not in settings(members(runs[0])[0], without=["system"])
