"""The protocol of a benchmark process: one line of JSON when it is ready, and one for every line of standard input.

This module imports only the standard library, so that it runs in the virtual environment of a peer as well.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """Seconds of wall time and of CPU time, over all threads of this process, that a block took."""

    wall: float
    cpu: float

    def stop(self, started: tuple[float, float]) -> None:
        """Set the durations since `started`, a wall time and a CPU time."""
        self.wall, self.cpu = time.perf_counter() - started[0], time.process_time() - started[1]


@contextmanager
def timed() -> Iterator[Clock]:
    """Yield a clock that stops at the end of the block."""
    clock, started = Clock(), (time.perf_counter(), time.process_time())
    yield clock
    clock.stop(started)


def serve(run: Callable[[], dict[str, Any]], **ready: Any) -> None:
    """Answer every line of standard input with one run.

    Args:
        run: measures once and returns numbers by name.
        **ready: the content of the first line, such as the compile time.
    """
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)
