import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoix_like import callbacks, composition

SCRIPTS = Path(__file__).parent.parent / "scripts/soak"
KINDS = ("kills", "disks", "faults", "sweeps", "sebulba", "fuzz", "hostile")

# Choices of the groups for a quick test.
SOME = {
    "system": ["ppo/ff_ppo", "q_learning/ff_dqn"],
    "network": ["mlp"],
    "arch": ["anakin", "sebulba"],
    "checkpoint": ["default"],
    "logger": ["silent"],
    "env": ["gymnax/cartpole", "own"],
}


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    names = ("soak", "tiny_runs", *KINDS)
    yield {name: __import__(name) for name in names}
    for name in names:
        sys.modules.pop(name)


@pytest.mark.parametrize(
    ("code", "err", "problem"),
    [
        (0, "", None),
        (2, "stoix-like: arch.seed=x is no number\n", None),
        (2, "usage: soak\n", "exit 2 without its line"),
        (1, "Traceback (most recent call last):\n  …\nTypeError: no\n", "TRACEBACK (exit 1): TypeError: no"),
        (-6, "terminate called\n", "EXIT -6: terminate called"),
        (0, "again\n" * 21, "21 lines on standard error"),
    ],
)
def test_the_end_of_a_process_is_judged(modules, code, err, problem):
    runs = modules["tiny_runs"]
    found = runs.complaints(runs.Done(code, "", err, 1.0))
    assert len(found) == (problem is not None)
    assert all(text.startswith(problem) for text in found)
    assert runs.complaints(runs.Done(-9, "", "", 240.0, hung=True))[0].startswith("HANG")


def test_a_signal_may_stop_a_run_but_not_be_ignored(modules):
    runs, kills = modules["tiny_runs"], modules["kills"]
    reference = runs.Reference(Path(), 10.0, {})

    def judged(code, seconds, number=signal.SIGTERM):
        return kills.killed_badly(runs.Done(code, "", "", seconds), number, 2.0, reference)

    assert judged(143, 2.5) == judged(-signal.SIGTERM, 2.1) == []
    assert judged(-signal.SIGKILL, 2.1, signal.SIGKILL) == []
    assert judged(0, 4.0) == []  # it had almost finished
    assert judged(0, 9.0) == ["IGNORED: ran on for 7.0 s"]
    assert judged(1, 2.5) == ["EXIT 1: "]


@pytest.mark.slow
def test_a_wrong_value_goes_to_every_key_in_turn(modules, monkeypatch):
    fuzz = modules["fuzz"]
    monkeypatch.setattr(composition, "group_choices", SOME.get)
    found = list(fuzz.places())
    assert len(found) == len(set(found))
    last = [words[-1].partition("=")[0] for words in found]
    assert last.count("system.gamma") == 2
    for key in ("arch.seed", "arch.pipeline_queue_size", "network.actor_network.pre_torso.layer_sizes", "env.timeout"):
        assert key in last, key
    for words in ("hyperparams: {gamma: VALUE}", "bounds: {gamma: VALUE}", "every_evals: VALUE}]"):
        assert sum(words in one[-1] for one in found) == 1, words
    drawn = [fuzz.draw(random.Random(seed), found[0]) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(fuzz.keys({"a": {"b": 1}, "c": [2]})) == {"a", "a.b", "c"}


def test_every_callback_of_the_package_is_fuzzed(modules):
    names = {
        one.__name__ for one in vars(callbacks).values() if isinstance(one, type) and one.__base__ is callbacks.Callback
    }
    assert set(modules["fuzz"].CALLBACKS) == names


def test_a_killed_sweep_may_not_differ_in_a_record(modules, tmp_path):
    runs, sweeps = modules["tiny_runs"], modules["sweeps"]
    digests = []
    for directory, returned in ((tmp_path / "whole", 1.0), (tmp_path / "killed", 2.0)):
        (directory / "runs/00000").mkdir(parents=True)
        (directory / "trials.csv").write_text("trial\n0\n")
        (directory / "best.json").write_text("{}")
        record = {"return": returned, "wall_seconds": returned}
        (directory / "runs/00000/metrics.jsonl").write_text(json.dumps(record) + "\n")
        digests.append(sweeps.trials(directory))
    reference = runs.Reference(tmp_path, 1.0, digests[0])
    assert runs.differences(digests[0], reference) == []
    assert runs.differences(digests[1], reference) == ["DIFFERENCE: 00000.0 differ from the uninterrupted run"]


def test_rounds_hold_every_kind_and_figures_add_up(modules):
    soak, runs = modules["soak"], modules["tiny_runs"]
    plan = list(soak.planned(list(KINDS), 2))
    assert len(plan) == len(set(plan)) == 2 * sum(soak.ROUND.values())
    assert {kind for kind, _ in plan} == set(KINDS)
    problems = [[], ["DIFFERENCE: x"], ["TRACEBACK: y"], ["HANG: z"]]
    tries = [soak.Try(5, "fuzz", n, runs.Outcome(f"try {n}", found, ["cmd"]), 1.0) for n, found in enumerate(problems)]
    lines = soak.report(tries)
    assert lines[-1].split() == ["fuzz", "4", "1", "1", "1", "1", "4"]
    assert "  again: python scripts/soak --seed 5 --only fuzz/3" in lines


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_try_of_each_kind_survives(kind):
    command = [sys.executable, str(SCRIPTS), "--only", f"{kind}/0", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}  " in done.stdout
