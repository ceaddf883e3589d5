"""A profile of a run: a trace of one update and one evaluation, and the speed of rollouts on their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from stoix_like.processes import Processes

DIRECTORY = "profile"
_TRACE = "perfetto_trace.json.gz"
_SECONDS = 1.0
_MAX_ROLLOUTS = 1000


class Profile:
    """A profile, written into the run directory."""

    def __init__(self, run_dir: Path, processes: Processes) -> None:
        self._processes = processes
        self.trace: Path | None = None
        self.rollout_seconds: float | None = None
        self._run_dir, self._directory = run_dir, run_dir / DIRECTORY
        self._calls = 0
        self._tracing = False

    @property
    def pending(self) -> bool:
        """True if the trace is still to be written: until then, each call of the program is one update."""
        return self.trace is None

    def measure_rollouts(self, rollouts: Callable[[int], Any]) -> None:
        """Measure how long a rollout takes."""

        def timed(number: int) -> float:
            start = time.perf_counter()
            jax.block_until_ready(rollouts(number))
            return time.perf_counter() - start

        timed(1)
        number = max(1, min(_MAX_ROLLOUTS, int(_SECONDS / self._processes.largest(timed(1)))))
        self.rollout_seconds = timed(number) / number

    def start(self, is_last: bool) -> bool:
        """Start the trace before the second call of the program: the first one includes the costs of a start."""
        self._calls += 1
        if not self.pending or (self._calls == 1 and not is_last):
            return False
        if self._processes.is_first:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # the host's calls would hide the program's
            jax.profiler.start_trace(self._directory, create_perfetto_trace=True, profiler_options=options)
        self._tracing = True
        return True

    def stop(self) -> None:
        """Write the trace."""
        if self._processes.is_first:
            jax.profiler.stop_trace()
        self._tracing = False
        self.trace = max(self._directory.rglob(_TRACE), key=lambda path: path.stat().st_mtime, default=self._directory)

    def summary(self) -> dict[str, str]:
        """Return the path of the trace in the run directory, for `summary.json`; empty without a trace."""
        return {} if self.trace is None else {"profile": str(self.trace.relative_to(self._run_dir))}

    def close(self) -> None:
        """End a trace that an error interrupted."""
        if self._tracing:
            self.stop()
