"""The command line as processes that tests start, and waiting for what they do."""

import os
import sys
import time
from pathlib import Path

COMMAND = str(Path(sys.executable).parent / "stoix-like")


def variables(**changes):
    """Return the variables of this process with changes; processes that have them find `support`."""
    paths = filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}


def wait_until(condition, seconds=20, process=None):
    """Wait until a condition holds, while the process, if there is one, still runs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, "the process ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.001)
