import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoix_like import callbacks

SCRIPTS = Path(__file__).parent.parent / "scripts/soak"
KINDS = ("kills", "disks", "faults", "sweeps", "sebulba", "fuzz", "hostile")


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


def test_every_callback_of_the_package_is_fuzzed(modules):
    names = {
        one.__name__ for one in vars(callbacks).values() if isinstance(one, type) and one.__base__ is callbacks.Callback
    }
    assert set(modules["fuzz"].CALLBACKS) == names


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_try_of_each_kind_survives(kind):
    command = [sys.executable, str(SCRIPTS), "--only", f"{kind}/0", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}  " in done.stdout
