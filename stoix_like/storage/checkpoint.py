"""Checkpoints: written in the background, atomically, and verified bit by bit when they are read.

A checkpoint is a directory `checkpoints/<env_steps>` in Orbax's format, with an item for each part of the run's state.
The item `host_state` holds the state of the host in JSON, and a checksum of every array: the array format itself
detects a truncated file, but not a flipped bit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp

from stoix_like.errors import ConfigError
from stoix_like.storage.checksums import checksums

DIRECTORY = "checkpoints"
QUARANTINE = "checkpoints-damaged"
HOST_STATE = "host_state"

T = TypeVar("T")
Arrays = Mapping[str, Any]
"""Trees of arrays by the name of their item."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read.

    Attributes:
        step: environment steps of each member; the name of its directory.
        items: trees of arrays by item, on the devices and in the layout of the targets.
        host_state: the state of the host.
    """

    step: int
    items: dict[str, Any]
    host_state: dict[str, Any]


class DamagedError(Exception):
    """A checkpoint that cannot be read, or differs from what was written."""


class Writer:
    """A writer of checkpoints that keeps the newest ones.

    A failed write is reported once; older checkpoints stay, and later writes are tried again.

    Args:
        run_dir: the directory of the run.
        keep: number of checkpoints to keep; the oldest is deleted when a new one is complete.
    """

    def __init__(self, run_dir: Path, keep: int) -> None:
        self.run_dir = run_dir.absolute()
        self.directory = self.run_dir / DIRECTORY
        self._keep = keep
        self._manager: ocp.CheckpointManager | None = None
        self._pending: int | None = None
        self._failing = False

    def save(self, step: int, items: Arrays, host_state: Mapping[str, Any]) -> None:
        """Start to write a checkpoint; return as soon as the arrays may be donated.

        Args:
            step: environment steps of each member.
            items: trees of arrays; empty ones are left out.
            host_state: JSON values.
        """
        self.wait()
        with self._reported():
            present = {name: _named(tree) for name, tree in items.items() if jax.tree.leaves(tree)}
            text = json.dumps({HOST_STATE: host_state, "checksums": checksums(present)})
            manager = self._open()
            self._check_room(sum(leaf.nbytes for leaf in jax.tree.leaves(present)) + len(text))
            self._pending = step
            if step in manager.all_steps():
                # The run stopped here between two evaluations; with the new budget, one of them is at this step.
                manager.delete(step)
            manager.save(
                step,
                args=ocp.args.Composite(
                    **{name: ocp.args.StandardSave(leaves) for name, leaves in present.items()},
                    **{HOST_STATE: ocp.args.JsonSave({"text": text, "crc32": zlib.crc32(text.encode())})},
                ),
                force=True,
            )

    def wait(self) -> None:
        """Wait until the pending checkpoint is complete."""
        if self._pending is not None:
            with self._reported():
                self._open().wait_until_finished()
                self._pending, self._failing = None, False

    def close(self) -> None:
        """Wait, and stop the threads of the writer."""
        self.wait()
        manager, self._manager = self._manager, None
        if manager is not None:
            with contextlib.suppress(Exception):
                manager.close()

    @property
    def newest(self) -> int | None:
        """Environment steps of the newest complete checkpoint."""
        return max(steps(self.run_dir), default=None)

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Removes partial checkpoints left by a killed process or a full disk.
            options = ocp.CheckpointManagerOptions(max_to_keep=self._keep, cleanup_tmp_directories=True)
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        return self._manager

    def _check_room(self, num_bytes: int) -> None:
        """Reserve the space first, so that a full disk raises one error instead of one per Orbax thread."""
        reserve = getattr(os, "posix_fallocate", None)
        with tempfile.TemporaryFile(dir=self.directory) as file:
            if reserve is not None:
                reserve(file.fileno(), 0, num_bytes)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # A failed checkpoint must not stop training.
            self._pending, failed = None, self._manager
            self._manager = None
            with contextlib.suppress(Exception):
                if failed is not None:
                    failed.close()
            if not self._failing:
                print(
                    f"cannot write a checkpoint to {self.directory}: {_reason(error)}; training continues, and the last"
                    " good checkpoint stays",
                    file=sys.stderr,
                )
            self._failing = True


def steps(run_dir: Path) -> list[int]:
    """List the complete checkpoints of a run.

    Args:
        run_dir: the directory of the run.

    Returns:
        Their environment steps, the newest last.
    """
    found = (run_dir / DIRECTORY).glob("*") if (run_dir / DIRECTORY).is_dir() else ()
    return sorted(int(path.name) for path in found if re.fullmatch("[0-9]+", path.name) and path.is_dir())


def read_host_state(run_dir: Path, step: int) -> dict[str, Any]:
    """Read the state of the host from a checkpoint.

    Args:
        run_dir: the directory of the run.
        step: one of `steps`.

    Returns:
        The value that was passed to `Writer.save`.

    Raises:
        DamagedError: it cannot be read, or differs from what was written.
    """
    return _read_text(run_dir, step)[HOST_STATE]


def read(run_dir: Path, step: int, targets: Arrays) -> Checkpoint:
    """Read a checkpoint, and verify its checksums.

    Args:
        run_dir: the directory of the run.
        step: one of `steps`.
        targets: trees of `jax.ShapeDtypeStruct` by item, with the layout to restore to; items that the checkpoint does
            not have are left out.

    Returns:
        The checkpoint.

    Raises:
        DamagedError: it cannot be read, or differs from what was written.
        ConfigError: the file system or the memory failed.
    """
    text = _read_text(run_dir, step)
    written = text["checksums"]
    wanted = {name: tree for name, tree in targets.items() if name in written}
    restored = _restore(run_dir, step, {name: ocp.args.StandardRestore(_named(tree)) for name, tree in wanted.items()})
    for name in wanted:
        found = checksums({name: restored[name]})[name]
        bad = [leaf for leaf, value in found.items() if value != written[name].get(leaf)]
        if bad:
            raise DamagedError(f"{run_dir / DIRECTORY / str(step)}: {name}.{bad[0]} differs from what was written")
    items = {
        name: jax.tree.unflatten(jax.tree.structure(tree), [restored[name][leaf] for leaf in _named(tree)])
        for name, tree in wanted.items()
    }
    return Checkpoint(step, items, text[HOST_STATE])


def newest_readable(run_dir: Path, read_step: Callable[[int], T]) -> T | None:
    """Read the newest undamaged checkpoint, and quarantine the damaged ones after it.

    Args:
        run_dir: the directory of the run.
        read_step: reads the checkpoint of a step.

    Returns:
        The result of `read_step`; None if there are no checkpoints.

    Raises:
        ConfigError: every checkpoint is damaged; none of them is moved.
    """
    damaged: list[tuple[int, DamagedError]] = []
    for step in reversed(steps(run_dir)):
        try:
            found = read_step(step)
        except DamagedError as error:
            damaged.append((step, error))
            continue
        for bad, reason in damaged:
            place = quarantine(run_dir, bad)
            print(f"the checkpoint after {bad:,} env steps is damaged: {reason}; moved to {place}", file=sys.stderr)
        return found
    if damaged:
        raise ConfigError(f"every checkpoint of {run_dir} is damaged: {'; '.join(str(error) for _, error in damaged)}")
    return None


def quarantine(run_dir: Path, step: int) -> Path:
    """Move a damaged checkpoint to the directory `checkpoints-damaged`.

    Args:
        run_dir: the directory of the run.
        step: one of `steps`.

    Returns:
        Its new path.
    """
    place = run_dir / QUARANTINE
    place.mkdir(exist_ok=True)
    names = (place / (str(step) if not number else f"{step}-{number}") for number in itertools.count())
    target = next(name for name in names if not name.exists())
    return (run_dir / DIRECTORY / str(step)).rename(target)


def _read_text(run_dir: Path, step: int) -> dict[str, Any]:
    stored = _restore(run_dir, step, {HOST_STATE: ocp.args.JsonRestore()})[HOST_STATE]
    if not isinstance(stored, dict) or zlib.crc32(str(stored.get("text")).encode()) != stored.get("crc32"):
        raise DamagedError(f"{run_dir / DIRECTORY / str(step)}: {HOST_STATE} differs from what was written")
    return json.loads(stored["text"])


def _restore(run_dir: Path, step: int, args: dict[str, Any]) -> dict[str, Any]:
    options = ocp.CheckpointManagerOptions(read_only=True)
    hook = sys.unraisablehook
    try:
        with ocp.CheckpointManager((run_dir / DIRECTORY).absolute(), options=options) as manager:
            return dict(manager.restore(step, args=ocp.args.Composite(**args)).items())
    except Exception as error:  # Orbax and its array store raise errors of any type for wrong bytes.
        if _is_transient(error):
            raise ConfigError(f"cannot read {run_dir / DIRECTORY / str(step)}: {_reason(error)}") from error
        # The first array that fails closes the event loop to which the threads of the others still report.
        sys.unraisablehook = lambda left: None if "loop is closed" in str(left.exc_value) else hook(left)
        time.sleep(0.5)
        raise DamagedError(f"{run_dir / DIRECTORY / str(step)}: {_reason(error)}") from error
    finally:
        sys.unraisablehook = hook


def _is_transient(error: Exception) -> bool:
    """Return whether the file system or the memory failed rather than the checkpoint."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return False
    transient = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED")
    return isinstance(error, (OSError, MemoryError)) or any(status in str(error) for status in transient)


def _named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their path, such as `params.actor_params.params.Dense_0.kernel`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class _Quiet(logging.Filter):
    """A filter for Orbax's progress messages, and for errors of its threads that are reported here."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "/orbax/" not in record.pathname:
            return True
        return record.levelno >= logging.ERROR and not record.pathname.endswith("/_src/futures/future.py")


logging.getLogger("absl").addFilter(_Quiet())
