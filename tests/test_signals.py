import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from stoix_like.processes import ALONE
from stoix_like.run import experiment
from stoix_like.run.prepare import prepare
from stoix_like.signals import Signals, received, stop_if_received
from stoix_like.storage import checkpoint
from support import toys
from support.set_ups import config_of
from support.toy_runs import TOY_RUN

RUN = [*TOY_RUN, "arch.total_timesteps=64", "arch.num_evaluation=1", "logger=silent"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_the_trace_of_a_program_is_not_swallowed(tmp_path, number, capsys):
    """Like jax, this trace drops every exception that a signal handler raises."""
    prepared = prepare(config_of(*RUN), tmp_path / "run")
    setup = prepared.setup

    def build(config, spec):
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            signal.raise_signal(number)
        return toys.build(config, spec)

    previous = [signal.signal(each, signal.default_int_handler) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            experiment.run(prepared._replace(setup=setup._replace(config=setup.config._replace(build=build))))
    finally:
        for each, handler in zip((signal.SIGINT, signal.SIGTERM), previous, strict=True):
            signal.signal(each, handler)
    assert "stopped before training" in capsys.readouterr().err
    assert checkpoint.steps(tmp_path / "run") == []


def test_an_inner_context_shares_the_record_of_the_outer_one():
    with contextlib.suppress(KeyboardInterrupt), Signals() as outer:
        with Signals() as inner:
            signal.raise_signal(signal.SIGINT)
        assert inner.received == outer.received == received() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            stop_if_received(ALONE)
    assert received() is None


def test_a_signal_that_no_check_answered_goes_to_the_caller():
    # A shell starts background processes with the signal ignored.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Signals():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)


PROGRAM = """
import signal, sys, time
from stoix_like.processes import ALONE
from stoix_like.signals import Signals
with Signals(owns_process=True):
    with Signals() as signals:
        signal.raise_signal(signal.SIGINT)
        print("recorded", flush=True)
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            print("swallowed", flush=True)
"""


@pytest.mark.slow
def test_a_second_interrupt_ends_a_program_although_exceptions_are_swallowed():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (130, "recorded\n", "")


BUSY = """
import hashlib
from stoix_like.signals import Signals
with Signals(owns_process=True), Signals():
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # like a compilation: no handler runs
"""


@pytest.mark.slow
def test_signals_are_acknowledged_while_no_handler_runs_and_a_second_interrupt_ends_the_program():
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=-1, stderr=-1, text=True, env=dict(os.environ)) as done:
        assert done.stdout.readline() == "busy\n"
        for number, line in (
            (signal.SIGTERM, "stopping after the current compilation or call\n"),
            (signal.SIGINT, "stopping after the current compilation or call; again: at once\n"),
        ):
            done.send_signal(number)
            assert done.stderr.readline() == line
        done.send_signal(signal.SIGINT)
        assert done.wait() == 130


COMPILES = """
import hashlib
from stoix_like.processes import ALONE
from stoix_like.signals import Signals, expendable
with Signals(owns_process=True){inner}:
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "said"), [(", Signals(), expendable(ALONE)", "stopped before training\n"), ("", "stopped\n")]
)
def test_a_signal_ends_a_program_that_has_nothing_to_save(inner, said):
    program = [sys.executable, "-c", COMPILES.format(inner=inner)]
    with subprocess.Popen(program, stdout=-1, stderr=-1, text=True, env=dict(os.environ)) as done:
        assert done.stdout.readline() == "busy\n"
        time.sleep(1.0)  # until it is busy
        done.send_signal(signal.SIGTERM)
        assert (done.wait(), done.stderr.read()) == (128 + signal.SIGTERM, said)


SAVES = """
import signal, sys, time
from stoix_like.processes import ALONE
from stoix_like.signals import Signals
with Signals(owns_process=True), Signals() as signals:
    signal.raise_signal(signal.SIGINT)
    signals.agree(ALONE)
    time.sleep(1.5)
    signals.leave("saved")
"""


@pytest.mark.slow
def test_signals_are_acknowledged_while_a_run_is_saved():
    done = subprocess.run([sys.executable, "-c", SAVES], capture_output=True, text=True, env=dict(os.environ))
    assert done.stderr.startswith("saving; again: at once\nsaved\n")


FORKS = """
import os, signal, time
from stoix_like.signals import Signals
reading, writing = os.pipe()
with Signals() as signals:
    if (child := os.fork()) == 0:
        os.write(writing, b"forked")
        time.sleep(60)
        os._exit(0)
    os.read(reading, 6)
    os.kill(child, signal.SIGTERM)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]), signals.waiting())
"""


def test_a_signal_of_a_forked_process_ends_it_and_is_not_one_of_its_parent():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, "15 None\n"), done.stderr
