import json
import math

import pytest
from omegaconf import OmegaConf

import stoix_like
from stoix_like.errors import ConfigError, TrainingError
from stoix_like.run import experiment
from stoix_like.run.prepare import prepare
from stoix_like.storage.recorded_runs import members, read_run
from stoix_like.systems.ppo.anakin import ff_ppo
from support import toys
from support.comparisons import without_times
from support.set_ups import config_of
from support.trained_runs import TINY

STATISTICS = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
EVALUATION = {f"eval/episode_{name}" for name in STATISTICS}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return stoix_like.train("ppo/ff_ppo", [*TINY, "arch.seed=1"], run_dir=tmp_path_factory.mktemp("runs") / "run")


def test_the_result_and_its_directory_have_the_evaluations_the_configuration_and_the_summary(result):
    assert isinstance(result.eval_return, float)
    assert result.eval_return == result.history[-1]["eval/episode_return_mean"]
    # 5000 // (4 × 32) = 39 updates in 3 intervals of 13, after the evaluation at step 0.
    assert [record["env_steps"] for record in result.history] == [0, 1664, 3328, 4992]
    assert [record["updates"] for record in result.history] == [0, 13, 26, 39]
    config = OmegaConf.load(result.run_dir / "config.yaml")
    assert (config.arch.seed, config.system.gamma) == (1, 0.99)
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [0, 1664, 3328, 4992]
    for line in lines:
        assert {"env_steps", "updates", "wall_seconds", "steps_per_second"} | EVALUATION <= set(line)
    assert {"train/policy_loss", "train/value_loss", "train/episode_return_mean"} <= set(lines[1])
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert summary == json.loads(json.dumps(result.summary))
    names = "system environment seed env_steps absolute/episode_return_mean compile_seconds matmul_precision programs"
    names += " environment_matmul_precision steps_per_second wall_seconds versions devices"
    assert {*names.split()} <= set(summary)
    assert (summary["system"], summary["environment"], summary["seed"]) == ("ppo/ff_ppo", "gymnax/CartPole-v1", 1)
    assert summary["eval/episode_return_mean"] == result.eval_return
    assert any("5,000" in note and "4,992" in note for note in summary["notes"])
    # The absolute metric uses the best parameters that were evaluated after an update.
    best = max(result.history[1:], key=lambda record: record["eval/episode_return_mean"])
    assert summary["absolute/env_steps"] == best["env_steps"]
    returns = summary["absolute_episode_returns"]
    assert len(returns) == 10 * 3
    assert sum(returns) / 30 == pytest.approx(summary["absolute/episode_return_mean"])


def test_invalid_input_raises_a_value_error(tmp_path):
    for overrides in (["system.gamma=2"], ["env=gymnax/cartpol"], ["arch.num_devices=64"], ["network=mlp_continuous"]):
        with pytest.raises(ValueError, match="="):
            stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def toy(run_dir, *overrides, **fields):
    given = [*TINY[2:-1], *toys.overrides(rollout_length=32, **fields), "env=probe/value", "logger=silent", *overrides]
    return stoix_like.train("ppo/ff_ppo", given, run_dir=run_dir)


def test_a_diverged_run_stops_and_names_the_metric_and_the_last_good_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match=r"train/reward became non-finite in update 20; .*/1664; arch.on_nan"):
        toy(tmp_path / "run", nan_at=20)
    # The earlier records are kept: the evaluations at step 0 and after 13 updates, which say nothing of the end.
    (member,) = members(read_run(tmp_path / "run"))
    assert len(list(member.run.history)) == 2
    assert math.isnan(member.score("final"))


@pytest.mark.slow
def test_run_experiment_of_a_system_file_reproduces_the_run_of_a_written_configuration(result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ff_ppo.run_experiment(OmegaConf.load(result.run_dir / "config.yaml")) == result.eval_return
    (run_dir,) = (tmp_path / "runs/ppo/ff_ppo/CartPole-v1").iterdir()
    found = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert without_times([found]) == without_times(result.history[-1:])
    assert callable(ff_ppo.hydra_entry_point)
    other = stoix_like.train("ppo/ff_ppo", [*TINY, "arch.seed=2"], run_dir=tmp_path / "other")
    assert without_times(other.history) != without_times(result.history)


@pytest.mark.slow
def test_a_refusal_after_the_directory_was_created_does_not_block_a_retry(tmp_path):
    config = config_of(*TINY[2:-1], *toys.overrides(rollout_length=32), "logger=silent")
    prepared = prepare(config, tmp_path / "run")
    with pytest.raises(ConfigError, match="needs .* MiB per device"):
        experiment.run(prepared._replace(setup=prepared.setup._replace(device_memory=1)))
    assert toy(tmp_path / "run").summary["updates"] == 39


def test_resume_from_the_own_directory_starts_resumes_and_leaves_alone(tmp_path, capsys):
    own = f"arch.resume_from={tmp_path}/run"
    first = toy(tmp_path / "run", own)
    assert first.summary["updates"] == 39
    # The job is started again: the result is the same, and nothing is trained or written.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    again = toy(tmp_path / "run", own)
    assert "is complete" in capsys.readouterr().out
    assert again.history == json.loads(json.dumps(first.history))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    extended = toy(tmp_path / "unused", own, "arch.total_timesteps=6000", "logger.console.enabled=true")
    assert (extended.summary["updates"], extended.run_dir) == (46, tmp_path / "run")
    assert not (tmp_path / "unused").exists()
    # Before it compiles; its header follows the restored checkpoint.
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"resuming {tmp_path}/run: compiling takes")
    assert not any("compiling" in line for line in rest)
    with pytest.raises(ConfigError, match=r"checkpoint.keep=0 would leave the checkpoints of .*/run behind"):
        toy(tmp_path / "run", own, "arch.total_timesteps=7000", "checkpoint.keep=0")
    with pytest.raises(ConfigError, match="elsewhere holds no run"):
        toy(tmp_path / "run", f"arch.resume_from={tmp_path}/elsewhere")


@pytest.mark.slow
@pytest.mark.parametrize("population", [(), ("arch.population.size=2",)])
def test_a_finished_run_without_checkpoints_is_left_alone(tmp_path, capsys, population):
    own = [f"arch.resume_from={tmp_path}/run", "checkpoint.keep=0", *population]
    first = toy(tmp_path / "run", *own)
    again = toy(tmp_path / "run", *own)
    assert "is complete" in capsys.readouterr().out
    assert (again.history, again.summary) == (json.loads(json.dumps(first.history)), first.summary)
    assert (again.eval_return, again.members) == (first.eval_return, first.members)
    with pytest.raises(ConfigError, match="is complete, but has no checkpoint to continue from"):
        toy(tmp_path / "run", *own, "arch.total_timesteps=6000")
    # A summary alone does not make a run complete.
    (tmp_path / "run/metrics.jsonl").write_text('{"eval/episode_return_mean": {}}\n')
    with pytest.raises(ConfigError, match="is complete, but has no checkpoint to continue from"):
        toy(tmp_path / "run", *own)
