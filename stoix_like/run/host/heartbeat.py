"""A sign of life between the processes of a run on several hosts.

A stopped process, or one on a host that hangs, breaks no connection, so the collective operations of the others wait
for it, until jax's own service ends them with a stack trace of C++. Here, every process is connected with the first
one, and both sides send a byte per second; whoever hears nothing for too long says so and ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import select
import socket
import sys
import threading
import time

from stoix_like.processes import Processes

# Counted in a loop, because a job that a scheduler suspends as a whole has lost no process.
_SECONDS_OF_SILENCE = 60
# A process that ends in time with the others does not report them.
_SECONDS_TO_END = 10.0
_SECONDS_TO_CONNECT = 60.0
_FAILED = 1  # the exit code of `TrainingError` on the command line


@functools.cache
def start(processes: Processes, host: str) -> None:
    """Start to listen to the other processes, once, in threads that last as long as this process."""
    server: list[socket.socket] = []

    def listen() -> tuple[int, str]:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server.append(socket.create_server(("", 0), family=family, backlog=processes.count, dualstack_ipv6=both))
        return server[0].getsockname()[1], secrets.token_hex()

    port, token = processes.first(listen)
    if server:
        threading.Thread(target=_accept, args=(processes, server[0], token), daemon=True).start()
    else:
        threading.Thread(target=_join, args=(processes, (host, port), token), daemon=True).start()


def _accept(processes: Processes, server: socket.socket, token: str) -> None:
    """Watch every process that connects and knows the token."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # of one connection, or of too many open files for a while
            time.sleep(1.0)
            continue
        threading.Thread(target=_greet, args=(processes, connection, token), daemon=True).start()


def _greet(processes: Processes, connection: socket.socket, token: str) -> None:
    connection.settimeout(_SECONDS_TO_CONNECT)
    with contextlib.suppress(OSError, ValueError), connection:
        found, _, index = connection.makefile().readline(len(token) + 10).partition(" ")
        if secrets.compare_digest(found.encode(), token.encode()):
            _watch(processes, connection, int(index))


def _join(processes: Processes, address: tuple[str, int], token: str) -> None:
    """Watch the first process; where its port is closed to others, only jax does."""
    with contextlib.suppress(OSError), socket.create_connection(address, _SECONDS_TO_CONNECT) as connection:
        connection.sendall(f"{token} {processes.index}\n".encode())
        _watch(processes, connection, 0)


def _watch(processes: Processes, connection: socket.socket, other: int) -> None:
    """Exchange signs of life until one of the two ends; end this process if the other one is lost."""
    silent = 0
    while silent < _SECONDS_OF_SILENCE:
        time.sleep(1.0)
        try:
            connection.sendall(b".")
            is_heard = bool(select.select([connection], [], [], 0)[0])
            if is_heard and not connection.recv(4096):
                raise ConnectionResetError
        except OSError:
            time.sleep(_SECONDS_TO_END)
            break
        silent = 0 if is_heard else silent + 1
    why = "has ended" if silent < _SECONDS_OF_SILENCE else f"has not been heard of for {silent} s"
    print(
        f"stoix-like: process {processes.index} of {processes.count} has lost another one: process {other} {why}; see"
        " the output of that one, and continue from the last checkpoint with: stoix-like resume RUN_DIR",
        file=sys.stderr,
        flush=True,
    )
    os._exit(_FAILED)
