import time

import pytest

from stoix_like.run import experiment
from stoix_like.run.prepare import prepare
from stoix_like.run.records.clock import Clock
from stoix_like.run.summary import LOGGING_MEANWHILE
from support.set_ups import config_of
from support.toy_runs import TOY_RUN


def test_phases_within_others_are_not_counted_twice(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 25.0, 40.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    with clock("a"), clock("b"):  # a from 0 to 1, b from 1 to 3, a from 3 to 6
        pass
    with clock("a"):
        clock.add({"c": 1.0})  # as part of a from 10 to 25
    clock.add({"a": 100.0})
    assert clock.read() == {"a": 100.0 + 1.0 + 3.0 + 15.0, "b": 2.0, "c": 1.0}


@pytest.mark.slow
def test_phases_add_up_to_the_time_of_the_run_and_continue_on_resume(tmp_path):
    start = time.perf_counter()
    config = config_of(*TOY_RUN, "arch.total_timesteps=64", "arch.num_evaluation=2", "logger=silent")
    first = experiment.run(prepare(config, tmp_path / "run", start)).summary["timing"]
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
