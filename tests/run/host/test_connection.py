import os
import socket
import subprocess
import sys
import time

import pytest

from stoix_like.arch_config import DistributedConfig
from stoix_like.errors import ConfigError
from stoix_like.run.host import connection


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_GPUS_PER_TASK": "4"}, [0, 1, 2, 3]),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, [0, 1, 2, 3]),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, [0, 1, 2, 3]),
        # All tasks of a host see all GPUs: each takes that with its number, as jax does by itself.
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2),4"}, None),
        ({"SLURM_GPUS_PER_TASK": "4", "JAX_LOCAL_DEVICE_IDS": "0,1"}, None),
        ({"SLURM_GPUS_PER_TASK": "4", "CUDA_VISIBLE_DEVICES": ""}, None),
        ({}, None),
    ],
)
def test_a_task_takes_all_gpus_that_it_alone_sees(environment, expected, monkeypatch):
    for name in ("SLURM_GPUS_PER_TASK", "SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("JAX_LOCAL_DEVICE_IDS", raising=False)
    for name, value in {"CUDA_VISIBLE_DEVICES": "4,5,6,7", **environment}.items():
        monkeypatch.setenv(name, value)
    assert connection._own_gpus() == expected


@pytest.mark.slow
def test_a_coordinator_that_is_never_there_is_refused(address, monkeypatch, capsys):
    for name, seconds in (("TO_CONNECT", 1.0), ("BETWEEN_WORDS", 0.4), ("BETWEEN_ATTEMPTS", 0.1)):
        monkeypatch.setattr(connection, f"_SECONDS_{name}", seconds)
    place = DistributedConfig(address, 2, 1)
    with pytest.raises(ConfigError, match=rf"process 1 of 2.: .*nothing answers at {address} within 1 s: .* start all"):
        connection.connect(place)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert f"waiting for the first one at {address} (" in lines[1]


PROGRAM = """
import sys
from stoix_like.run.host import connection
connection._SECONDS_TO_CONNECT, connection._SECONDS_BETWEEN_WORDS = 6.0, 2.0
from stoix_like import cli
place = f"{{coordinator: '{sys.argv[1]}', num_processes: 2, process_id: 0}}"
cli.main(["train", "logger=silent", f"arch.distributed={place}"])
"""


@pytest.mark.clusters
def test_processes_that_never_start_end_the_first_one_in_one_line(address, tmp_path):
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address], capture_output=True, text=True, env=dict(os.environ), cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    first, *waiting, last = done.stderr.splitlines()
    assert "waiting for the other processes" in first
    assert all("waiting for the others, which have not all started" in line for line in waiting)
    assert waiting
    assert "not all of them have started within 6 s" in last
    assert time.monotonic() - start < 60
    assert list(tmp_path.iterdir()) == []
