"""Garbage collection, which the start of a run does without."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause garbage collection while modules are imported or programs traced: nearly all that they create stays.

    Searching it again and again takes a sixth of the start.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
