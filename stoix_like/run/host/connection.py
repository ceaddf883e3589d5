"""The connection between the processes of a run on several hosts."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from stoix_like import signals
from stoix_like.arch_config import DistributedConfig
from stoix_like.errors import ConfigError, first_line

# All processes of a run start within this time.
_SECONDS_TO_CONNECT = 300.0
# Of one that is lost, `heartbeat` tells the others before jax ends them.
_SECONDS_OF_SILENCE = 120
# At the end, the others wait while the first one closes its loggers and copies the run to its mirror.
_SECONDS_TO_LEAVE = 3600
_SECONDS_BETWEEN_WORDS = 30.0
_SECONDS_BETWEEN_ATTEMPTS = 1.0
_REFUSED = 2  # the exit code of `ConfigError` on the command line


def connect(distributed: DistributedConfig | str) -> None:
    """Connect this process with the others of its run."""
    # The run agrees on signals itself, and jax's service would take SIGTERM away from it.
    jax.config.update("jax_enable_preemption_service", False)
    place: dict[str, Any] = {"local_device_ids": _own_gpus()}
    if isinstance(distributed, DistributedConfig):
        place = {
            "coordinator_address": distributed.coordinator,
            "num_processes": distributed.num_processes,
            "process_id": distributed.process_id,
            "cluster_detection_method": "deactivate",
        }
    waiting = _Waiting(distributed)
    if isinstance(distributed, DistributedConfig) and distributed.process_id > 0:
        _find_coordinator(distributed.coordinator, waiting)
    try:
        with signals.unhandled(), waiting.ended_at_deadline():
            jax.distributed.initialize(
                **place,
                # It would end the process with a stack trace of C++.
                initialization_timeout=2 * int(_SECONDS_TO_CONNECT) + 60,
                heartbeat_timeout_seconds=_SECONDS_OF_SILENCE,
                shutdown_timeout_seconds=_SECONDS_TO_LEAVE,
            )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(waiting.problem(first_line(error))) from error
    signals.defer()


def _own_gpus() -> list[int] | None:
    """Return the numbers of the GPUs of a task that sees no others; None where jax finds them.

    On SLURM and Open MPI, jax gives each process one GPU, the one with its number on the host.
    """
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    alone = (
        "SLURM_GPUS_PER_TASK" in os.environ
        or re.fullmatch(r"1(\(x\d+\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
    )
    return list(range(len(visible))) if alone and visible and "JAX_LOCAL_DEVICE_IDS" not in os.environ else None


class _Waiting:
    """Wait for the other processes, which is reported from time to time."""

    def __init__(self, distributed: DistributedConfig | str) -> None:
        self._distributed = distributed
        self._start = time.monotonic()
        self._words = 0
        print(f"arch.distributed={distributed}: waiting for the other processes of the run", file=sys.stderr)

    def say(self, what: str) -> bool:
        """Name what is awaited every 30 s; return False once the time is over."""
        elapsed = time.monotonic() - self._start
        if elapsed >= (self._words + 1) * _SECONDS_BETWEEN_WORDS:
            self._words += 1
            print(f"arch.distributed={self._distributed}: waiting for {what} for {elapsed:.0f} s", file=sys.stderr)
        return elapsed < _SECONDS_TO_CONNECT

    def problem(self, reason: str) -> str:
        """Return the message for the user, given why the processes are not connected."""
        return (
            f"arch.distributed={self._distributed}: the processes of the run cannot be connected ({reason}): start all"
            " of them, with the address of the first one as coordinator, or use arch.distributed=null for one process"
        )

    @contextlib.contextmanager
    def ended_at_deadline(self) -> Iterator[None]:
        """End the process where it waits within jax, which no exception interrupts."""
        connected = threading.Event()

        def watch() -> None:
            while not connected.wait(_SECONDS_BETWEEN_ATTEMPTS):
                if not self.say("the others, which have not all started"):
                    reason = f"not all of them have started within {_SECONDS_TO_CONNECT:g} s"
                    print(f"stoix-like: {self.problem(reason)}", file=sys.stderr, flush=True)
                    os._exit(_REFUSED)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            connected.set()


def _find_coordinator(address: str, waiting: _Waiting) -> None:
    """Wait until the first process listens."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_BETWEEN_WORDS).close()
            return
        except (OSError, OverflowError) as error:
            if not waiting.say(f"the first one at {address} ({error})"):
                reason = f"nothing answers at {address} within {_SECONDS_TO_CONNECT:g} s: {error}"
                raise ConfigError(waiting.problem(reason)) from error
        time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
