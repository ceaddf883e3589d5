import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from support.commands import variables, wait_until
from support.comparisons import recorded
from support.set_ups import config_of

SECONDS = 240
PPO = ("arch.total_num_envs=16", "system.rollout_length=16", "arch.total_timesteps=4096", "arch.num_evaluation=4")
DQN = (
    *("system=q_learning/ff_dqn", "arch.total_num_envs=16", "system.warmup_steps=32"),
    *("system.total_buffer_size=4096", "arch.total_timesteps=3072", "arch.num_evaluation=3"),
)
HOST = (
    *("env=gymnasium", "env.scenario.name=support.scripted:Scripted-v0", "arch.total_num_envs=4"),
    *("system.rollout_length=4", "arch.total_timesteps=640", "arch.num_evaluation=2"),
)
SHORT = ("arch.num_eval_episodes=4", "arch.max_eval_steps=60", "logger.console.progress_bar=false")


def start(*args, processes=1, only_last=(), fault=None):
    """Start the processes of a run, with further arguments, and a fault of the environments, of the last one."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    started = []
    for index in range(processes):
        is_last = index == processes - 1
        place = f"{{coordinator: '{address}', num_processes: {processes}, process_id: {index}}}"
        own = [f"arch.distributed={place}"] if processes > 1 else []
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "stoix_like", *args, *own, *(only_last if is_last else ())],
                env=variables(
                    JAX_NUM_CPU_DEVICES="1" if processes > 1 else "4",
                    **({"SCRIPTED_FAULT": fault} if fault and is_last else {}),
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return started


def finish(started):
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def train(run_dir, *args, processes=1):
    found = finish(start("train", *SHORT, *args, f"hydra.run.dir={run_dir}", processes=processes))
    assert [code for code, _ in found] == [0] * processes, found
    return [output for _, output in found]


def start_until_checkpoint(run_dir, *args):
    started = start("train", *SHORT, *args, f"hydra.run.dir={run_dir}", processes=2)
    try:
        wait_until(lambda: any(path.name.isdigit() for path in (run_dir / "checkpoints").glob("*")), SECONDS)
    except BaseException:
        for process in started:
            process.kill()
        raise
    return started


@pytest.mark.clusters
@pytest.mark.parametrize("args", [PPO, HOST], ids=["compiled environments", "environments on the hosts"])
def test_two_processes_train_as_one_with_two_devices(tmp_path, args):
    first, second = train(tmp_path / "two", *args, processes=2)
    train(tmp_path / "one", *args, "arch.num_devices=2")

    assert recorded(tmp_path / "two") == recorded(tmp_path / "one")
    assert "2 × cpu of 2 processes" in first
    assert "last evaluation" in first
    assert "evaluation" not in second, "the first process alone logs"


@pytest.mark.clusters
@pytest.mark.parametrize(
    "args",
    [
        DQN,
        (*PPO, "arch.population.size=4"),
        (*PPO, "arch.population.size=3", "logger.every_updates=2"),
        (
            *PPO,
            "arch.population.size=4",
            "arch.population.hyperparams={actor_lr: {log_uniform: [1e-4, 1e-2]}}",
            "arch.population.pbt.every_evals=1",
            "arch.stop_at_return=1e9",
        ),
        HOST,
    ],
    ids=["replay", "members on hosts", "members on all hosts", "population-based training and callbacks", "host"],
)
def test_four_processes_train_as_one_with_four_devices(tmp_path, args):
    train(tmp_path / "four", *args, processes=4)
    train(tmp_path / "one", *args, "arch.num_devices=4")

    assert recorded(tmp_path / "four") == recorded(tmp_path / "one")


@pytest.mark.clusters
def test_every_process_places_its_data_and_its_teacher(tmp_path):
    """A mapped file and a restored policy are copied to the devices of each process, and are the same in all."""
    teacher, data, mapped = tmp_path / "teacher", tmp_path / "data.npz", tmp_path / "mapped.npz"
    train(teacher, *PPO)
    (collected,) = finish(start("collect", str(teacher), "--steps=200", f"--out={data}"))
    assert collected[0] == 0, collected
    with np.load(data) as arrays:
        np.savez(mapped, **arrays)
    for index, args in enumerate([(*DQN, f"system.data={mapped}"), (*PPO, f"system.teacher={teacher}")]):
        train(tmp_path / f"two{index}", *args, processes=2)
        train(tmp_path / f"one{index}", *args, "arch.num_devices=2")
        assert recorded(tmp_path / f"two{index}") == recorded(tmp_path / f"one{index}")


@pytest.mark.clusters
def test_lost_process_ends_the_others_and_the_run_resumes_with_another_number_of_processes(tmp_path):
    args = (*DQN, "arch.total_timesteps=49152", "arch.num_evaluation=12")
    train(tmp_path / "whole", *args, "arch.num_devices=2")
    run_dir = tmp_path / "killed"
    started = start_until_checkpoint(run_dir, *args)
    started[1].kill()
    killed = time.monotonic()
    (code, output), _ = finish(started)

    assert code not in (0, None)
    assert time.monotonic() - killed < 60
    assert "lost another one" in output or "another task died" in output, output
    assert not (run_dir / "summary.json").exists()
    code, output = finish(start("resume", str(run_dir), "arch.num_devices=2"))[0]
    assert code == 0, output
    assert recorded(run_dir) == recorded(tmp_path / "whole")


@pytest.mark.clusters
@pytest.mark.parametrize("index", [0, 1])
def test_stopped_process_ends_the_others_in_one_line(tmp_path, index):
    started = start_until_checkpoint(tmp_path / "run", *PPO, "arch.total_timesteps=1e8", "arch.num_evaluation=5000")
    started[index].send_signal(signal.SIGSTOP)
    try:
        output = started[1 - index].communicate(timeout=120)[0]
    finally:
        for process in started:
            process.kill()
            process.communicate()

    assert started[1 - index].returncode == 1, output
    last = output.splitlines()[-1]
    assert f"process {1 - index} of 2 has lost another one: process {index} has not been heard of for 60 s" in last


@pytest.mark.clusters
def test_a_signal_to_one_process_saves_and_stops_all(tmp_path):
    args = (*PPO, "arch.total_timesteps=200000", "arch.num_evaluation=20")
    train(tmp_path / "whole", *args, "arch.num_devices=2")
    run_dir = tmp_path / "stopped"
    started = start_until_checkpoint(run_dir, *args)
    started[1].send_signal(signal.SIGTERM)
    found = finish(started)

    assert [code for code, _ in found] == [128 + signal.SIGTERM] * 2, found
    assert f"continue with: stoix-like resume {run_dir}" in found[0][1]
    found = finish(start("resume", str(run_dir), processes=2))
    assert [code for code, _ in found] == [0, 0], found
    assert recorded(run_dir) == recorded(tmp_path / "whole")


@pytest.mark.clusters
def test_an_environment_that_fails_in_one_process_stops_all_with_a_checkpoint(tmp_path):
    run_dir = tmp_path / "run"
    settings = ("env.vectorization=sync", "env.timeout=3", f"hydra.run.dir={run_dir}")
    found = finish(start("train", *SHORT, *HOST, *settings, processes=2, fault="hang"))

    assert [code for code, _ in found] == [1, 1], found
    assert all("Scripted-v0 failed: no answer within 3 seconds" in output for _, output in found)
    assert all(f"saved; continue with: stoix-like resume {run_dir}" in output for _, output in found)
    found = finish(start("resume", str(run_dir), processes=2))
    assert [code for code, _ in found] == [0, 0], found


@pytest.mark.clusters
def test_a_signal_is_answered_by_all_while_the_run_starts(tmp_path):
    started = start("train", *SHORT, *PPO, f"hydra.run.dir={tmp_path / 'run'}", processes=2)
    assert started[1].stdout is not None
    # Printed once the processes have connected.
    while "Gloo" not in started[1].stdout.readline():
        assert started[1].poll() is None
    started[1].send_signal(signal.SIGTERM)
    found = finish(started)

    assert [code for code, _ in found] == [128 + signal.SIGTERM] * 2, found
    assert "stopped" in found[0][1]


@pytest.mark.clusters
def test_the_processes_wait_for_the_mirror_of_the_first_one(tmp_path):
    run_dir, mirror = tmp_path / "run", tmp_path / "mirror"
    args = (*PPO, "arch.total_timesteps=400000", f"checkpoint.mirror=file://{mirror}")
    started = start_until_checkpoint(run_dir, *args)
    started[1].send_signal(signal.SIGTERM)
    found = finish(started)

    assert [code for code, _ in found] == [128 + signal.SIGTERM] * 2, found
    steps = {path.name for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit()}
    assert steps
    assert {path.stem for path in (mirror / "checkpoints").glob("*.complete")} == steps


@pytest.mark.clusters
@pytest.mark.parametrize(
    ("args", "only_last", "message"),
    [
        ((), ("arch.seed=1",), "process 1 has other values of arch.seed than process 0"),
        ((), ("logger.every_updates=2",), "process 1 has other values of logger.every_updates than process 0"),
        (("arch.num_devices=3",), (), "arch.num_devices=3 counts the devices of all 2 processes"),
    ],
    ids=["other seed", "other records", "odd number of devices"],
)
def test_what_does_not_fit_is_refused_by_all_processes(tmp_path, args, only_last, message: str):
    run_dir = tmp_path / "run"
    found = finish(start("train", *args, f"hydra.run.dir={run_dir}", processes=2, only_last=only_last))

    assert [code for code, _ in found] == [2, 2], found
    assert all(message in output for _, output in found)
    assert not (run_dir / "config.yaml").exists()


def test_how_processes_are_started_is_not_recorded():
    place = "{coordinator: 'host:1', num_processes: 2, process_id: 1}"
    config = config_of(f"arch.distributed={place}", "arch.num_devices=4")

    assert "distributed" not in config.resolved["arch"]
    assert config.arch.devices_needed == 2
