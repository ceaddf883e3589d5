"""Processes of a run on several hosts that do not find each other."""

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
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


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
