import multiprocessing
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest

from stoix_like.envs import host_batches, make, make_eval
from stoix_like.envs.host_batches import BatchThread
from stoix_like.errors import ConfigError, HostEnvironmentError
from stoix_like.signals import Signals
from support.commands import wait_until
from support.conformance import rollout
from support.scripted import Scripted, config
from support.selections import first

N, ASYNC = 3, {"vectorization": "async", "timeout": 60.0}


def test_released_environments_are_reused_and_all_are_closed():
    Scripted.open_environments = 0
    env = make_eval(config())

    @jax.jit
    def play(key):
        state, timestep = env.reset(jax.random.split(key, N))
        env.release(state)
        return timestep.observation.agent_view

    first, second = play(jax.random.key(0)), play(jax.random.key(1))
    again = play(jax.random.key(0))
    assert Scripted.open_environments == N
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(second)).any()
    env.close()
    assert Scripted.open_environments == 0


FAULTS = [
    ("raise", {}, "gymnasium/support.scripted:Scripted-v0 failed: RuntimeError"),
    ("observation", {}, "Scripted-v0 failed: environment 0 of 3 returned NaN in its observation"),
    ("array", {}, r"Scripted-v0 failed: ValueError: reward has shape \(1,\), and \(\) is declared: make them agree"),
    ("number", {}, r"Scripted-v0 failed: ValueError: observation has shape \(\), and \(4,\) is declared"),
    ("hang", {"timeout": 0.5}, r"Scripted-v0 failed: no answer within 0.5 seconds \(env.timeout\)"),
    ("exit", {}, "Scripted-v0 failed: SystemExit: 0"),
    # What is raised in a worker arrives.
    ("unpicklable", ASYNC, "Scripted-v0 failed: SimulatorError: exploded"),
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of gymnasium, with the traceback
@pytest.mark.parametrize(("fault", "options", "message"), first(4, FAULTS))
def test_a_faulty_environment_is_reported_by_check_and_ends_its_episodes(fault, options, message):
    """Episode 1, the first of at least 4 steps, starts after the first step."""
    env = make(config(kwargs={"fail_at": 4, "fault": fault}, **options))
    _, _, steps = rollout(env, 8)
    with pytest.raises(HostEnvironmentError, match=message):
        env.check()
    assert not steps.terminated[:4].all()
    assert steps.terminated[4:].all()
    env.check()
    env.close()


@pytest.mark.parametrize("fault", ["exit", "interrupt"])
def test_an_exit_in_an_environment_that_no_program_calls_is_an_error_of_it(fault):
    env = make(config(kwargs={"fail_at": 1, "fault": fault}))
    batch = env.unwrapped.open(N)
    batch.reset(env.unwrapped.seeds(jax.random.split(jax.random.key(0), N)))
    with pytest.raises(HostEnvironmentError, match="Scripted-v0 failed: (SystemExit: 0|KeyboardInterrupt)"):
        batch.step(np.zeros(N, np.int32))
    env.close()


@pytest.mark.slow
def test_an_interrupt_of_the_program_is_no_error_of_the_environment():
    """Ctrl-C while the main thread waits for a step, as it does while an episode is rendered."""
    env = make(config(kwargs={"fail_at": 1, "fault": "hang"}, timeout=8.0))
    batch = env.unwrapped.open(N)
    batch.reset(env.unwrapped.seeds(jax.random.split(jax.random.key(0), N)))
    # Shells start processes in the background with the signal ignored.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            batch.step(np.zeros(N, np.int32))
    finally:
        signal.signal(signal.SIGINT, previous)
    env.close()


def test_seeds_are_not_negative_with_64_bits_either():
    with jax.enable_x64(True):
        seeds = make(config()).unwrapped.seeds(jax.random.split(jax.random.key(0), 64))
    assert (np.asarray(seeds) >= 0).all()


def test_a_batch_that_is_built_too_late_is_closed():
    closed = threading.Event()

    class Late:
        close = staticmethod(closed.set)

    def build(num_envs):
        time.sleep(0.2)
        return Late()

    with pytest.raises(HostEnvironmentError, match=r"no answer within 0.05 seconds \(env.timeout\)"):
        BatchThread(build, N, 0.05)
    assert closed.wait(10)


@pytest.mark.slow
def test_a_signal_shortens_a_call_that_hangs(monkeypatch):
    monkeypatch.setattr(host_batches, "_SIGNAL_SECONDS", 0.4)
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    failures, killed = [], threading.Event()

    class Hanging:
        kill = staticmethod(killed.set)

        def step(self):
            threading.Event().wait()

    def play():
        try:
            BatchThread(lambda num_envs: Hanging(), N, 300.0).call(Hanging.step)
        except HostEnvironmentError as failure:
            failures.append(str(failure))

    try:
        with Signals():
            waiting = threading.Thread(target=play)
            waiting.start()
            waiting.join(1.2)
            arrived = time.monotonic()
            signal.raise_signal(signal.SIGTERM)
            waiting.join(10)
            assert time.monotonic() - arrived >= 0.4
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert failures == ["no answer within 0.4 seconds of a signal that stops the run"]
    assert killed.is_set()


@pytest.mark.slow
def test_an_example_that_hangs_is_left():
    env = make(config(kwargs={"close_hangs": True}, timeout=0.2))
    env.close()
    with pytest.raises(ConfigError, match=r"env.timeout=0.2: building support.scripted:Scripted-v0 takes longer"):
        make(config(kwargs={"build_seconds": 30.0}, timeout=0.2))


@pytest.mark.slow
def test_workers_that_are_built_too_slowly_end():
    # The example and the batch's own are built in the process.
    env = make(config(kwargs={"build_seconds": 3.0}, vectorization="async", timeout=5.0))
    jax.block_until_ready(jax.jit(env.reset)(jax.random.split(jax.random.key(0), N)))
    with pytest.raises(HostEnvironmentError, match=r"no answer within 5 seconds \(env.timeout\)"):
        env.check()
    wait_until(lambda: not any(child.name.startswith("Worker<") for child in multiprocessing.active_children()), 60)
    env.close()
