"""Names in Python that have moved; `docs/stability.md` says how long their old paths are answered.

The module that a name has left answers it from here, at the end of the file:

    if not TYPE_CHECKING:

        def __getattr__(name: str) -> Any:
            return moved_names.resolve(__name__, name)
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

# Old path: the new one, and the version from which on the old one is unknown. Both are paths `stoix_like.module.name`.
MOVED: dict[str, tuple[str, str]] = {}


def resolve(module: str, name: str) -> Any:
    """Return what a name that has moved stands for, with a `DeprecationWarning` at the line that imports it."""
    old = f"{module}.{name}"
    if old not in MOVED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new, removed = MOVED[old]
    message = f"{old} has moved: import {new} (stoix_like {removed} no longer knows the old path)"
    # The caller of `__getattr__`, which calls this function.
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    new_module, _, new_name = new.rpartition(".")
    return getattr(importlib.import_module(new_module), new_name)
