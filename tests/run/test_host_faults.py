import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import variables, wait_until

SMALL = [
    *("env=gymnasium", "env.scenario.name=support.scripted:Scripted-v0", "logger=silent", "arch.compile_cache=false"),
    *("network.actor_network.pre_torso.layer_sizes=[8]", "arch.absolute_metric=false", "arch.max_eval_steps=100"),
    *("arch.num_evaluation=1", "arch.num_eval_episodes=2", "arch.total_num_envs=2", "arch.total_timesteps=160"),
    "system.rollout_length=4",
]
PPO = ["system=ppo/ff_ppo", "system.num_minibatches=2", "network.critic_network.pre_torso.layer_sizes=[8]"]
DQN = ["system=q_learning/ff_dqn", "system.warmup_steps=16", "system.total_batch_size=16"]


def start(*arguments, fault=None):
    command = [sys.executable, "-m", "stoix_like", *map(str, arguments)]
    env = variables() if fault is None else variables(SCRIPTED_FAULT=fault)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, start_new_session=True, **streams)


def processes(session):
    """List the processes of a session that are not zombies, by id, with their command lines."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, sid = (directory / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state != "Z":
                found[int(directory.name)] = (directory / "cmdline").read_text()
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize(
    ("system", "vectorization", "fault", "message"),
    [
        (PPO, "sync", "hang", "no answer within 3 seconds (env.timeout)"),
        ([*PPO, "arch=sebulba"], "sync", "exit", "SystemExit: 0"),
        ([*PPO, "arch=sebulba"], "sync", "interrupt", "KeyboardInterrupt"),
        (DQN, "async", "die", "the process of environment 0 died (killed by signal 9)"),
    ],
)
def test_a_fault_ends_the_run_with_a_checkpoint(tmp_path, system, vectorization, fault, message):
    run_dir = tmp_path / "run"
    settings = [f"env.vectorization={vectorization}", f"env.timeout={3 if fault == 'hang' else 300}"]
    run = start("train", *system, *SMALL, *settings, f"hydra.run.dir={run_dir}", fault=fault)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 1, errors
    assert f"gymnasium/support.scripted:Scripted-v0 failed: {message}; stopped after " in errors.splitlines()[-1]
    assert errors.splitlines()[-1].endswith(f"saved; continue with: stoix-like resume {run_dir}")
    assert "Traceback" not in errors
    wait_until(lambda: not processes(run.pid), 10)
    resumed = start("resume", run_dir)
    _, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    assert (run_dir / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_no_worker_outlives_a_run_that_is_killed_even_if_it_hangs(tmp_path):
    run = start("train", *PPO, *SMALL, "env.vectorization=async", f"hydra.run.dir={tmp_path / 'run'}", fault="hang")
    try:
        assert any("hanging" in line for line in run.stderr)
        assert sum("spawn_main" in line for line in processes(run.pid).values()) == 2
        run.send_signal(signal.SIGKILL)
        run.wait()
        wait_until(lambda: not processes(run.pid), 10)
    finally:
        for pid in processes(run.pid):
            os.kill(pid, signal.SIGKILL)
        run.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["anakin", "sebulba"])
def test_sigterm_is_answered_while_an_environment_hangs(tmp_path, architecture):
    run_dir = tmp_path / "run"
    run = start("train", *PPO, f"arch={architecture}", *SMALL, f"hydra.run.dir={run_dir}", fault="hang")
    assert any("hanging" in line for line in run.stderr)
    run.send_signal(signal.SIGTERM)
    wait_until(lambda: any((run_dir / "checkpoints").glob("[0-9]*")), 25)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 143
    assert f"saved; continue with: stoix-like resume {run_dir}" in errors
    assert "Traceback" not in errors


SCRIPT = """
import stoix_like
stoix_like.train("ppo/ff_ppo", {overrides}, run_dir={run_dir!r})
"""


@pytest.mark.slow
def test_a_script_that_workers_would_run_again_is_told_which_line_it_lacks(tmp_path):
    settings = [*PPO[1:], *SMALL, "env.vectorization=async", "env.scenario.name=CartPole-v1"]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(overrides=settings, run_dir=str(tmp_path / "run")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 1
    assert "put what it does below if __name__ == '__main__':" in done.stderr.splitlines()[-1]
    assert "ConnectionReset" not in done.stderr.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "script.py"]


GUARDED = """
import multiprocessing
from stoix_like.envs import EnvConfig, ScenarioConfig, make
env = make(EnvConfig("gymnax", ScenarioConfig("CartPole-v1")))
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print, args=("works",))
    process.start()
    process.join()
"""


@pytest.mark.slow
def test_a_script_may_build_environments_in_processes_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(GUARDED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("works\n", "")
