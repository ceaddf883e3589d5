"""Settings of the interpreter: garbage collection, and where it looks for the user's own modules."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from stoix_like.errors import ConfigError


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


def exempt_from_collection() -> None:
    """Let later collections skip all objects that exist, in a process that needs nearly all of them until it ends.

    Searching the modules of a run twice more takes a tenth of the start.
    """
    gc.freeze()


def make_importable() -> None:
    """Append the working directory to the import path, for the user's own modules."""
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise ConfigError("the working directory was deleted: change to a directory that exists") from error
    if here not in sys.path:
        sys.path.append(here)


RUN_AGAIN = 87
"""Exit code of a worker that ran the user's script again."""
UNGUARDED = (
    "the processes that multiprocessing starts run your script again: put what it does below if __name__ == '__main__':"
)


def exit_if_run_again() -> None:
    """End a worker in which multiprocessing runs the user's script again, which has no `__main__` guard."""
    main = sys.modules["__main__"]
    if sys.modules.get("__mp_main__", main) is main:
        return
    # The process that started environments says it once.
    sys.exit(RUN_AGAIN if multiprocessing.current_process().name.startswith("Worker<") else UNGUARDED)


def on_first_use(package: str, *modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, which imports the names of `__all__` on first use."""

    def get(name: str) -> Any:
        for module in modules if name in importlib.import_module(package).__all__ else ():
            found = vars(importlib.import_module(f"{package}.{module}"))
            if name in found:
                return found[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(importlib.import_module(package).__all__)
