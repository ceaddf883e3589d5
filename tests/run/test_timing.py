"""Where the time of a run goes, and its profile."""

import gzip
import json
import time

import pytest
import toys
from trained_runs import SMALL

import stoix_like
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.loggers.formats import format_timing
from stoix_like.run import experiment
from stoix_like.run.clock import Clock
from stoix_like.run.setup import set_up
from stoix_like.run.summary import ENVIRONMENT, LEARNING, LOGGING_MEANWHILE


def test_phases_within_others_are_not_counted_twice(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 20.0, 21.0, 25.0, 30.0, 40.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    with clock("a"), clock("b"):  # a from 0 to 1, b from 1 to 3, a from 3 to 6
        pass
    with clock("a"), clock.beside("c"):  # c from 20 to 21, as part of a from 10 to 25
        pass
    clock.add({"a": 100.0})
    assert clock.read() == {"a": 100.0 + 1.0 + 3.0 + 15.0, "b": 2.0, "c": 1.0}


def test_the_timing_names_the_longest_phases_first():
    timing = {"startup": 3.14, "training": 12.0, "logging": 0.01, LOGGING_MEANWHILE: 5.0, "total": 15.2}
    assert format_timing(timing) == "15.2 s: training 12.0, startup 3.1"
    estimated = {**timing, ENVIRONMENT: 4.0, LEARNING: 8.0}
    assert format_timing(estimated) == "15.2 s: training 12.0 (environment 4.0, learning 8.0), startup 3.1"


def test_phases_add_up_to_the_time_of_the_run_and_continue_on_resume(tmp_path):
    start = time.perf_counter()
    run = [*toys.overrides(rollout_length=4), "env=probe/observed_value", "arch.total_num_envs=4", "logger=silent"]
    config = parse_config(compose_config([*run, "arch.total_timesteps=64", "arch.num_evaluation=2"]))
    first = experiment.run(set_up(config, start), tmp_path / "run").summary["timing"]
    took = time.perf_counter() - start
    assert sum(value for name, value in first.items() if name not in ("total", LOGGING_MEANWHILE)) == pytest.approx(
        first["total"]
    )
    assert 0.5 * took < first["total"] <= took
    assert min(first.values()) >= 0
    assert all(first[name] > 0 for name in ("startup", "compilation", "training", "evaluation", "checkpoints"))
    again = experiment.resume(tmp_path / "run", ["arch.total_timesteps=96"], trust=True).summary["timing"]
    # The checkpoint has no time of the evaluation that followed it.
    assert all(again[name] > first[name] for name in ("startup", "compilation", "training", "total"))


@pytest.mark.slow
def test_a_profiled_run_that_stops_before_training_measures_nothing(tmp_path):
    run = [*SMALL, "env=probe/policy", "arch.profile=true", "arch.stop_at_return=-1000"]
    summary = stoix_like.train("ppo/ff_ppo", run, run_dir=tmp_path / "run").summary
    assert (summary["updates"], summary["stopped_by"]) == (0, "StopAtReturn")
    assert not {"training", "profile", ENVIRONMENT, LEARNING} & set(summary["timing"])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], ["arch.num_devices=2", "arch.population.size=2"]])
def test_a_profile_has_a_trace_and_changes_no_result(tmp_path, overrides):
    run = [*SMALL, *overrides, "env=gymnax/cartpole", "arch.total_timesteps=512", "arch.num_evaluation=2"]
    profiled = stoix_like.train("ppo/ff_ppo", [*run, "arch.profile=true"], run_dir=tmp_path / "profiled")
    plain = stoix_like.train("ppo/ff_ppo", run, run_dir=tmp_path / "plain")
    returns = [[record["eval/episode_return_mean"] for record in result.history] for result in (profiled, plain)]
    assert returns[0] == returns[1]
    assert profiled.history[-1]["train/policy_loss"] == plain.history[-1]["train/policy_loss"]
    timing = profiled.summary["timing"]
    assert timing[ENVIRONMENT] > 0
    assert timing[ENVIRONMENT] + timing[LEARNING] == pytest.approx(timing["training"])
    assert ENVIRONMENT not in plain.summary["timing"]
    trace = json.loads(gzip.decompress((profiled.run_dir / profiled.summary["profile"]).read_bytes()))
    modules = {event.get("args", {}).get("hlo_module") for event in trace["traceEvents"]}
    # The training program, and the evaluator.
    assert {"jit_train", "jit_evaluate"} <= modules
