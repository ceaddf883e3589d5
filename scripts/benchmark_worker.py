"""What a benchmark's process says: one line of json when it is ready, and one for every line that it reads.

Nothing but the standard library is imported here, so that it runs in the environment of a peer as well.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """Seconds of wall time, and of the processor over all threads of this process, since a block began."""

    wall: float
    cpu: float

    def stop(self, started: tuple[float, float]) -> None:
        self.wall, self.cpu = time.perf_counter() - started[0], time.process_time() - started[1]


@contextmanager
def timed() -> Iterator[Clock]:
    """A clock that stops at the end of the block."""
    clock, started = Clock(), (time.perf_counter(), time.process_time())
    yield clock
    clock.stop(started)


def serve(run: Callable[[], dict[str, Any]], **ready: Any) -> None:
    """Answer until standard input ends.

    Args:
        run: measures once, and returns numbers by name.
        **ready: what to say first, such as how long compiling took.
    """
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)
