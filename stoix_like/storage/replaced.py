"""Checkpoints that another one of the same step replaces: kept until the new one is complete."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

_ENDING = ".replaced"


def set_aside(directory: Path, step: int) -> None:
    """Give a checkpoint another name, under which it is none."""
    (directory / str(step)).rename(directory / f"{step}{_ENDING}")


def settle(directory: Path) -> None:
    """Delete what was set aside where its replacement is complete, and give it its name back where it is not."""
    # A file system that fails here fails again where checkpoints are read or written, which is reported.
    with contextlib.suppress(OSError):
        for aside in () if directory.is_symlink() else list(directory.glob(f"*{_ENDING}")):
            if aside.with_suffix("").exists():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.rename(aside.with_suffix(""))


def set_aside_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints that are set aside."""
    return [int(aside.stem) for aside in directory.glob(f"*{_ENDING}") if aside.stem.isdecimal()]
