import json
import math
from types import SimpleNamespace

import pytest

import stoix_like
from stoix_like.callbacks import EvaluatePolicy, StopAtReturn, StopWithoutImprovement
from stoix_like.errors import ConfigError
from support.comparisons import recorded, without_times
from support.trained_runs import SMALL

RUN = [*SMALL, "env=probe/policy", "arch.total_timesteps=256", "arch.num_evaluation=4"]


def train(run_dir, *overrides, callbacks=()):
    return stoix_like.train("ppo/ff_ppo", [*RUN, *overrides], run_dir=run_dir, callbacks=callbacks)


@pytest.mark.slow
def test_a_return_that_is_reached_stops_the_run(tmp_path):
    result = train(tmp_path, "arch.stop_at_return=-1e6")
    assert (result.summary["env_steps"], result.summary["stopped_by"]) == (0, "StopAtReturn")


@pytest.mark.slow
def test_a_stopped_run_without_checkpoints_is_complete(tmp_path, capsys):
    stopped = train(tmp_path, "arch.stop_at_return=-1e6", "checkpoint.keep=0")
    again = stoix_like.resume(tmp_path)
    assert again.summary == stopped.summary
    assert "is complete, and keeps no checkpoint" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stopped_run_is_complete_until_its_conditions_change(tmp_path, capsys):
    whole = train(tmp_path / "whole")
    number = [
        *RUN,
        "callbacks=[{_target_: stoix_like.callbacks.StopWithoutImprovement, evaluations: 2, min_improvement: 1e9}]",
    ]
    stopped = stoix_like.train("ppo/ff_ppo", number, run_dir=tmp_path / "stopped")
    assert (stopped.summary["env_steps"], stopped.summary["stopped_by"]) == (128, "StopWithoutImprovement")
    again = stoix_like.resume(tmp_path / "stopped")
    assert again.summary["env_steps"] == 128
    assert "StopWithoutImprovement stopped it; change callbacks" in capsys.readouterr().out
    # Of a process that was killed before it wrote the summary.
    (tmp_path / "stopped/summary.json").unlink()
    again = stoix_like.resume(tmp_path / "stopped", ["arch.compile_cache=false"])
    assert (again.summary["env_steps"], again.summary["stopped_by"]) == (128, "StopWithoutImprovement")
    assert without_times(again.history) == without_times(stopped.history)
    stoix_like.resume(tmp_path / "stopped", ["callbacks=[]"])
    # Bit-identical to a run that never stopped.
    assert recorded(tmp_path / "stopped") == recorded(tmp_path / "whole") == without_times(whole.history)


def test_a_callback_starts_anew_with_each_run_that_does_not_resume():
    stop, calls = StopWithoutImprovement(1), []
    evaluate = EvaluatePolicy(lambda policy: calls.append(policy) or {}, every_evals=2)
    for history, stops, called in (((), [None, False], 1), ((), [None, False], 2), (({},), [False], 2)):
        for callback in (stop, evaluate):
            callback.on_start(SimpleNamespace(history=history))
        records = [{"eval/episode_return_mean": 1.0}] * len(stops)
        assert [stop.on_evaluation(record, None) for record in records] == stops
        for record in records[:1]:
            evaluate.on_evaluation(record, "policy")
        assert len(calls) == called


@pytest.mark.parametrize("arguments", [{"callbacks": StopAtReturn(1.0)}, {"loggers": StopAtReturn(1.0)}])
def test_a_lone_callback_or_logger_is_no_list(tmp_path, arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=rf"{name}=StopAtReturn is not a list: pass {name}=\[…\]"):
        stoix_like.train("ppo/ff_ppo", RUN, run_dir=tmp_path, **arguments)


@pytest.mark.parametrize("count", [0, math.inf, math.nan, "abc", None])
def test_counts_that_cannot_be_reached_are_refused(count):
    with pytest.raises(ConfigError, match=f"evaluations={count} must be at least 1 and finite"):
        StopWithoutImprovement(count)
    with pytest.raises(ConfigError, match=f"every_evals={count} must be at least 1 and finite"):
        EvaluatePolicy(print, count)


def test_improvements_restart_the_count():
    callback = StopWithoutImprovement(2, min_improvement=1.0)
    returns = [0.0, 5.0, 5.5, 7.0, 7.5, 8.0]  # 5.5, 7.5 and 8.0 are no improvement by more than 1
    responses = [callback.on_evaluation({"eval/episode_return_mean": value}, None) for value in returns]
    assert responses == [None, None, None, None, None, False]
    other = StopWithoutImprovement(2, min_improvement=1.0)
    other.restore(json.loads(json.dumps(callback.state())))
    assert other.on_evaluation({"eval/episode_return_mean": 8.0}, None) is False
    assert StopAtReturn(1.0).on_evaluation({"eval/episode_return_mean": float("nan")}, None) is None
