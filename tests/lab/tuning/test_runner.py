"""Runs of a sweep, here and as jobs of a launcher."""

import json

import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.config import parse_config
from stoix_like.errors import TrainingError
from stoix_like.lab.tuning.runner import FINALISTS, FRESH, Job, LostRunsError, Runner, population_overrides
from stoix_like.lab.tuning.study import open_study
from stoix_like.overrides import to_overrides
from stoix_like.run import experiment
from stoix_like.run.prepare import mirror_job
from stoix_like.storage import recorded_runs
from support.composed import compose_config
from support.killed_sweeps import KEYS, FakeRunner, trials_table, values
from support.recorded import write_run
from support.trained_runs import SMALL

RUN = [*SMALL, "env=probe/policy", "arch.total_timesteps=128", "arch.num_evaluation=2"]
LR, GAMMA, EPOCHS = KEYS


def test_settings_that_differ_in_traced_hyperparameters_are_one_population():
    settings = [{"system.gamma": gamma, "system.epochs": 4} for gamma in (0.9, 0.99)]
    assert population_overrides(settings, ["system.gamma"], 3, paired=True) == [
        "system.epochs=4",
        "arch.population.hyperparams={gamma:[0.9,0.99]}",
        "arch.population.mode=zip",
        "arch.population.seeds=3",
        "arch.population.paired=true",
    ]
    # Equal settings are further seeds.
    equal = population_overrides([{"network": "mlp"}] * 2, ["system.gamma"], 3)
    assert equal == ["network=mlp", "arch.population.size=6"]


@pytest.mark.parametrize("mirror", ["s3://bucket/sweep", "s3://bucket/sweep/"])
def test_the_runs_of_a_mirrored_sweep_have_places_of_their_own(mirror):
    run = mirror_job(parse_config(compose_config([f"checkpoint.mirror={mirror}"])), "runs/00000")
    assert run.checkpoint.mirror == run.resolved["checkpoint"]["mirror"] == "s3://bucket/sweep/runs/00000"


@pytest.mark.parametrize(("objective", "returns"), [("final", [[1.0, 2.0]]), ("best", [[3.0, 4.0]])])
def test_returns_are_those_of_the_objective(objective, returns, tmp_path):
    write_run(tmp_path / "run", (1.0, 2.0), bests=(3.0, 4.0))
    assert Runner(tmp_path, []).returns(Job("run", []), 1, 2, objective) == returns
    # A job that failed before it wrote its configuration has none.
    np.testing.assert_array_equal(Runner(tmp_path, []).returns(Job("other", []), 1, 2, objective), [[np.nan] * 2])


@pytest.mark.slow
def test_a_run_that_exhausts_the_memory_or_has_no_results_costs_no_other_its_own(tmp_path, monkeypatch):
    """As of a disk that takes no summary, or a job that was killed: neither says how it failed."""

    def run(prepared):
        if prepared.directory.path.name == "first":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        if prepared.directory.path.name == "third":
            write_run(prepared.directory.path, (1.0,))

    monkeypatch.setattr(experiment, "run", run)
    finished = []
    with pytest.raises(LostRunsError, match=r"2 of 3 runs failed, first .*first \(it left no results\)"):
        Runner(tmp_path, RUN).train([Job(name, []) for name in ("first", "second", "third")], finished.append)
    assert [job.run for job in finished] == ["third"]
    # They were tried twice then, and count as failed.
    Runner(tmp_path, RUN).train([Job(name, []) for name in ("first", "second", "third")], finished.append)
    assert [job.run for job in finished] == ["third", "first", "second", "third"]


def test_a_lost_device_ends_a_sweep(tmp_path, monkeypatch):
    def fail(_):
        raise jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS")

    def run(prepared):
        monkeypatch.setattr(jax, "block_until_ready", fail)
        fail(prepared)

    monkeypatch.setattr(experiment, "run", run)
    with pytest.raises(jax.errors.JaxRuntimeError, match="ILLEGAL_ADDRESS"):
        Runner(tmp_path, RUN).train([Job("run", [])], list)


def test_results_of_a_failed_run_without_its_last_checkpoint_are_no_results(tmp_path, monkeypatch):
    """They are those of parameters that were lost, so the run is trained once more."""
    write_run(tmp_path / "run", (1.0,))
    summary = tmp_path / "run/summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"env_steps": 2, "checkpoint/env_steps": 1}))
    (tmp_path / "run/failure.txt").write_text("TrainingError: the newest checkpoint is of 1 of 2 env steps")
    trained = []
    monkeypatch.setattr(experiment, "run", trained.append)
    runner = Runner(tmp_path, RUN)
    runner.train([Job("run", [])], lambda job: None)
    assert [prepared.directory.path.name for prepared in trained] == ["run"]
    # Without any checkpoint it could not go on, and its results count.
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"checkpoint/env_steps": None}))
    runner.train([Job("run", [])], lambda job: None)
    assert len(trained) == 1
    assert runner.returns(Job("run", []), 1, 1, "final") == [[1.0]]


@pytest.mark.slow
def test_a_run_that_fails_is_tried_once_more(tmp_path):
    settings = {"trials": 1, "fresh_seeds": 0, "dir": tmp_path / "sweep"}
    failing = {"_target_": "stoix_like.callbacks.EvaluatePolicy", "function": "pathlib.Path", "every_evals": 2}
    given = [*RUN, *to_overrides({"callbacks": [failing]})]
    with pytest.raises(LostRunsError, match=r"1 of 1 runs failed, first .*runs/00000 .*the same command tries them"):
        stoix_like.sweep("ppo/ff_ppo", given, {"gamma": {"choice": [0.9]}}, **settings)
    assert [trial.state.name for trial in open_study(tmp_path / "sweep/study.db").trials] == ["RUNNING"]
    with pytest.raises(TrainingError, match="none of the 1 trials"):
        stoix_like.sweep("ppo/ff_ppo", given, {"gamma": {"choice": [0.9]}}, **settings)


@pytest.mark.clusters
def test_a_launcher_trains_what_is_no_population_in_parallel(tmp_path):
    settings = {"trials": 3, "parallel": 3, "sampler": "grid", "launcher": "joblib", "dir": str(tmp_path / "sweep")}
    stoix_like.sweep("ppo/ff_ppo", ["experiment=ppo_acrobot", *RUN], {"epochs": {"int": [1, 2]}}, **settings)
    rows = trials_table(tmp_path / "sweep")
    assert [(row["state"], row["system.epochs"]) for row in rows] == [("complete", "1"), ("complete", "2")]
    for row in rows:
        run = recorded_runs.read_run(tmp_path / "sweep" / row["run"])
        assert run.config["system"]["epochs"] == int(row["system.epochs"])
        assert float(row["value"]) == run.summary["eval/episode_return_mean"]


@pytest.mark.clusters
def test_a_lost_job_costs_no_other_its_result(tmp_path, monkeypatch):
    def train(config):
        if config.system.epochs == 2:
            raise RuntimeError("a traceback\nthe process was killed")
        return run_experiment(config)

    run_experiment = experiment.run_experiment
    settings = {"trials": 2, "sampler": "grid", "launcher": "basic", "dir": str(tmp_path / "sweep")}
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "run_experiment", train)
        with pytest.raises(TrainingError, match=r"^a job failed: the process was killed$"):
            stoix_like.sweep("ppo/ff_ppo", RUN, {"epochs": {"choice": [1, 2]}}, **settings)
    trials = open_study(tmp_path / "sweep/study.db").trials
    states = {trial.params["system.epochs"]: trial.state.name for trial in trials}
    assert states == {1: "COMPLETE", 2: "RUNNING"}
    # The same sweep trains what is left.
    stoix_like.sweep("ppo/ff_ppo", RUN, {"epochs": {"choice": [1, 2]}}, **settings)
    assert [row["state"] for row in trials_table(tmp_path / "sweep")] == ["complete"] * 2


def test_settings_are_one_population(tmp_path):
    settings = [{LR: 0.01 * place, GAMMA: 0.9, EPOCHS: 2} for place in range(5)]
    jobs = []

    class Recording(FakeRunner):
        def returns(self, job, settings, seeds, objective):
            jobs.append(job)
            return super().returns(job, settings, seeds, objective)

    found = Recording(tmp_path, []).train_again("fresh/00003-2", settings, [LR, GAMMA], 2, FRESH + 42, "final")
    assert found == [[value] * 2 for value in values(settings)]
    assert [job.run for job in jobs] == ["fresh/00003-2/00"]
    assert all("arch.seed=2000042" in job.overrides and "arch.population.paired=true" in job.overrides for job in jobs)


@pytest.mark.slow
def test_settings_train_again_on_the_same_seeds(tmp_path, monkeypatch):
    run = [*SMALL, "system=ppo/ff_ppo", "env=probe/policy", "arch.total_timesteps=128", "arch.num_evaluation=2"]
    settings = [{LR: 0.01, EPOCHS: 2}, {LR: 0.02, EPOCHS: 2}]
    first, runner = FINALISTS + 42, Runner(tmp_path, run)
    found = runner.train_again("finalists", settings, [LR, GAMMA], 3, first, "final")
    assert [len(returns) for returns in found] == [3] * 2
    runs = [recorded_runs.read_run(directory) for directory in recorded_runs.find_runs([tmp_path / "finalists"])]
    seeds = [[member.seed for member in recorded_runs.members(run)] for run in runs]
    assert seeds == [[first, first + 1, first + 2] * 2]
    # What is complete is read.
    monkeypatch.setattr("stoix_like.run.experiment.run", None)
    assert runner.train_again("finalists", settings, [LR, GAMMA], 3, first, "final") == found
