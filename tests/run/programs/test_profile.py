import gzip
import json

import pytest

import stoix_like
from stoix_like.run.summary import ENVIRONMENT, LEARNING
from support.trained_runs import SMALL


@pytest.mark.slow
def test_a_profiled_run_that_stops_before_training_measures_nothing(tmp_path):
    run = [*SMALL, "env=probe/policy", "arch.profile=true", "arch.stop_at_return=-1000"]
    summary = stoix_like.train("ppo/ff_ppo", run, run_dir=tmp_path / "run").summary
    assert (summary["updates"], summary["stopped_by"]) == (0, "StopAtReturn")
    assert not {"training", "profile", ENVIRONMENT, LEARNING} & set(summary["timing"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "overrides"),
    [
        ("ppo/ff_ppo", [*SMALL, "env=gymnax/cartpole"]),
        ("ppo/ff_ppo", [*SMALL, "env=gymnax/cartpole", "arch.num_devices=2", "arch.population.size=2"]),
        # Its rollouts carry random keys.
        ("ddpg/ff_ddpg", ["env=gymnax/pendulum", "arch.total_num_envs=4", "system.warmup_steps=64"]),
    ],
)
def test_a_profile_has_a_trace_and_changes_no_result(tmp_path, system, overrides):
    run = [*overrides, "arch.total_timesteps=512", "arch.num_evaluation=2"]
    profiled = stoix_like.train(system, [*run, "arch.profile=true"], run_dir=tmp_path / "profiled")
    plain = stoix_like.train(system, run, run_dir=tmp_path / "plain")
    learned = [
        [{name: value for name, value in record.items() if name.startswith(("eval/", "train/"))} for record in run]
        for run in (profiled.history, plain.history)
    ]
    assert learned[0] == learned[1]
    timing = profiled.summary["timing"]
    assert timing[ENVIRONMENT] > 0
    assert timing[ENVIRONMENT] + timing[LEARNING] == pytest.approx(timing["training"])
    assert ENVIRONMENT not in plain.summary["timing"]
    trace = json.loads(gzip.decompress((profiled.run_dir / profiled.summary["profile"]).read_bytes()))
    modules = {event.get("args", {}).get("hlo_module") for event in trace["traceEvents"]}
    # The training program, and the evaluator.
    assert {"jit_train", "jit_evaluate"} <= modules
