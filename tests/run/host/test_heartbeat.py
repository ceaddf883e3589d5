import os
import socket
import subprocess
import sys
import threading

import pytest

from stoix_like.processes import Processes
from stoix_like.run.host import heartbeat

PROGRAM = """
import socket, sys, threading
from stoix_like.processes import Processes
from stoix_like.run.host import heartbeat
heartbeat._SECONDS_OF_SILENCE, heartbeat._SECONDS_TO_END = 2, 0.1
own, other = socket.socketpair()
if sys.argv[1] == "ends":
    threading.Timer(0.5, other.close).start()
heartbeat._watch(Processes(2, 0), own, 1)
"""


@pytest.mark.parametrize(("how", "message"), [("ends", "has ended"), ("hangs", "has not been heard of for 2 s")])
@pytest.mark.slow
def test_a_process_that_has_lost_another_one_ends_in_one_line(how, message):
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1
    lost = f"stoix-like: process 0 of 2 has lost another one: process 1 {message}; see the output"
    assert done.stderr.startswith(lost)
    assert done.stderr.count("\n") == 1


def test_strangers_are_not_watched():
    own, other = socket.socketpair()
    listening = threading.Thread(target=heartbeat._greet, args=(Processes(2, 0), own, "token"))
    listening.start()
    other.sendall(b"guess 1\n")
    listening.join(10)
    assert not listening.is_alive()
    assert other.recv(1) == b""
    other.close()
