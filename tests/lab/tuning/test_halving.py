"""Sweeps by successive halving."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys

import pytest

from stoix_like.errors import ConfigError
from stoix_like.lab.tuning.halving import Halvings, divide
from stoix_like.lab.tuning.parameters import parse_space
from stoix_like.lab.tuning.runner import Runner
from stoix_like.lab.tuning.study import open_study
from support import killed_sweeps
from support.trained_runs import SMALL

SPACE = {"actor_lr": {"log_uniform": [1e-5, 1e-1]}, "gamma": {"choice": [0.9, 1]}, "epochs": {"choice": [1, 2]}}


def test_a_budget_is_divided_into_populations():
    # 64 trials in 16 slots are four rounds; of four shapes, one round, so that half the slots are used.
    assert divide(None, 64, 16, 1) == (16, 1)
    assert divide(None, 64, 16, 4) == (8, 1)
    assert divide(None, 9, 16, 4) == (2, 1)
    # Three populations of four slots per shape.
    assert divide(4, 100, 24, 2) == (4, 3)
    with pytest.raises(
        ConfigError, match="less than one whole trial in each of 32 slots, 4 shape.s. × 8: use at least"
    ):
        divide(8, 31, 16, 4)


def searching(directory, trials=32, copies=1):
    parameters = parse_space(SPACE, [f"system.{name}" for name in SPACE], ["actor_lr", "gamma"])
    shapes = [{"system.epochs": 1}, {"system.epochs": 2}]
    study = open_study(directory / "study.db")
    runner = Runner(directory, [])
    sizes = {"trials": trials, "size": 4, "copies": copies, "seeds": 2, "seed": 7}
    return Halvings(study, parameters, shapes, runner, **sizes), study


def test_runs_have_the_ranges_of_their_shape(tmp_path):
    search, _ = searching(tmp_path, copies=2)
    jobs = search.next_jobs()
    assert [job.run for job in jobs] == ["runs/00000", "runs/00001", "runs/00002", "runs/00003"]
    # 32 trials in 2 × 2 runs of 4 slots.
    assert "arch.population.halving.rounds=2.0" in jobs[0].overrides
    assert {"arch.population.size=8", "arch.population.seeds=2", "system.epochs=1"} <= set(jobs[0].overrides)
    # No run repeats the seeds and settings of another one, or those on which nothing is selected.
    seeds = [one for job in jobs for one in job.overrides if one.startswith("arch.seed")]
    assert seeds == ["arch.seed=7", "arch.seed=3000007", "arch.seed=4000007", "arch.seed=5000007"]
    assert "system.epochs=1" in jobs[1].overrides
    assert "system.epochs=2" in jobs[2].overrides
    (varied,) = [word for word in jobs[0].overrides if word.startswith("arch.population.hyperparams")]
    assert "log_uniform" in varied
    assert "choice" in varied


def test_trials_are_written_once_and_in_order(tmp_path):
    trials = [
        {
            "number": 0,
            "hyperparameters": {"actor_lr": 1e-5 - 1e-15, "gamma": 1.0},
            "evaluations": [1.0],
            "state": "stopped",
        },
        {
            "number": 1,
            "hyperparameters": {"actor_lr": 1e-3, "gamma": 0.9},
            "evaluations": [2.0, 3.0],
            "state": "complete",
        },
        {"number": 2, "hyperparameters": {"actor_lr": 1e-2, "gamma": 0.9}, "evaluations": [None], "state": "diverged"},
    ]
    search, study = searching(tmp_path)
    first, second = search.next_jobs()
    for job, count in ((second, 1), (first, 3)):
        (tmp_path / job.run).mkdir(parents=True)
        (tmp_path / job.run / "summary.json").write_text(json.dumps({"population/trials": trials[:count]}))
        search.tell(job)
        # The second run, which ended first, waits for the first one.
        assert len(study.trials) == (0 if job is second else 4)
    found = study.trials
    assert [trial.state.name for trial in found] == ["PRUNED", "COMPLETE", "FAIL", "PRUNED"]
    assert found[0].params == {"system.actor_lr": 1e-5, "system.gamma": 1, "system.epochs": 1}
    assert (found[1].value, found[1].intermediate_values) == (3.0, {1: 2.0, 2: 3.0})
    assert found[3].params["system.epochs"] == 2
    # A process that was killed had written two of them.
    (tmp_path / "again").mkdir()
    again, study = searching(tmp_path / "again")
    for trial in found[:2]:
        study.add_trial(trial)
    os.rename(tmp_path / "runs", tmp_path / "again/runs")
    assert again.next_jobs() == []
    assert [trial.user_attrs for trial in study.trials] == [trial.user_attrs for trial in found]


@pytest.mark.slow
def test_a_process_that_is_killed_at_random_moments_leaves_the_same_study(tmp_path):
    run = [word for word in SMALL if not word.startswith("arch.compile_cache")]
    run += ["env=gymnax/cartpole", "arch.total_timesteps=1152", "arch.num_evaluation=9", "checkpoint.every_evals=2"]
    command = [sys.executable, "-m", "stoix_like", "sweep", "system=ppo/ff_ppo", *run, "sweep.trials=48"]
    command += ["sweep.parallel=4", "sweep.sampler=halving", "sweep.fresh_seeds=2"]
    command += ["sweep.space={actor_lr: {log_uniform: [1e-5, 1e-1]}, epochs: {choice: [1, 2]}}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([*command, f"sweep.dir={tmp_path / 'whole'}"], env=environment, check=True, capture_output=True)
    expected, kills, rng = killed_sweeps.table(tmp_path / "whole"), 0, random.Random("halving")
    assert {state for _, state, *_ in expected} >= {"COMPLETE", "PRUNED"}
    for number in itertools.count():
        directory = tmp_path / str(number)
        while not (directory / "fresh").is_dir() or not list(directory.glob("fresh/*/*/summary.json")):
            with subprocess.Popen(
                [*command, f"sweep.dir={directory}"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as process:
                try:
                    process.wait(rng.uniform(0.0, 20.0) if kills < 10 else 300)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
        assert killed_sweeps.table(directory) == expected
        if kills >= 10:
            break
