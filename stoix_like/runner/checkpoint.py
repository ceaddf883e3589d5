"""Checkpoints: written while training goes on, whole or not at all, and checked bit by bit when they are read.

A checkpoint is a directory `checkpoints/<env_steps>` in Orbax's format: an item for each part of the run's state, and
`session`, the host's side in JSON. Sums over the bits of every array lie beside them: the array format itself notices a
file that is cut short, but not a bit that has flipped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from stoix_like.errors import ConfigError

DIRECTORY = "checkpoints"
SET_ASIDE = "checkpoints-damaged"
SESSION = "session"
WORDS_PER_BLOCK = 2**20

Arrays = Mapping[str, Any]
"""Trees of arrays by the name of their item."""


class Checkpoint(NamedTuple):
    """What was read.

    Attributes:
        step: environment steps of each member; the name of its directory.
        items: the arrays, on the devices and in the layout that was asked for.
        session: the host's side.
    """

    step: int
    items: dict[str, Any]
    session: dict[str, Any]


class DamagedError(Exception):
    """A checkpoint that cannot be read, or that does not hold what was written."""


class Writer:
    """Writes the checkpoints of a run, and keeps the newest few.

    A write that fails is reported once, and the older checkpoints stay; the next one is tried again.

    Args:
        run_dir: the directory of the run.
        keep: how many to keep; the oldest goes when a new one is complete.
    """

    def __init__(self, run_dir: Path, keep: int) -> None:
        self.run_dir = run_dir.absolute()
        self.directory = self.run_dir / DIRECTORY
        self._keep = keep
        self._manager: ocp.CheckpointManager | None = None
        self._pending: int | None = None
        self._failing = False

    def save(self, step: int, items: Arrays, session: Mapping[str, Any]) -> None:
        """Begin to write a checkpoint; returns as soon as the arrays may be donated.

        Args:
            step: environment steps of each member.
            items: trees of arrays; empty ones are left out.
            session: what JSON can hold.
        """
        self.wait()
        with self._reported():
            present = {name: _named(tree) for name, tree in items.items() if jax.tree.leaves(tree)}
            text = json.dumps({"session": session, "bit_sums": _bit_sums(present)})
            manager = self._open()
            self._check_room(sum(leaf.nbytes for leaf in jax.tree.leaves(present)) + len(text))
            self._pending = step
            if step in manager.all_steps():
                # Stopped here between two evaluations, and with another budget one of them now falls on this step.
                manager.delete(step)
            manager.save(
                step,
                args=ocp.args.Composite(
                    **{name: ocp.args.StandardSave(leaves) for name, leaves in present.items()},
                    **{SESSION: ocp.args.JsonSave({"text": text, "crc32": zlib.crc32(text.encode())})},
                ),
                force=True,
            )

    def wait(self) -> None:
        """Wait until what was begun is complete."""
        if self._pending is not None:
            with self._reported():
                self._open().wait_until_finished()
                self._pending, self._failing = None, False

    def close(self) -> None:
        """Wait, and end the threads of the writer."""
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
            # What a process that was killed, or a disk that was full, left half-written is cleared away.
            options = ocp.CheckpointManagerOptions(max_to_keep=self._keep, cleanup_tmp_directories=True)
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        return self._manager

    def _check_room(self, num_bytes: int) -> None:
        """Ask for the room first: a full disk is then one error, and not one from each of Orbax's threads."""
        reserve = getattr(os, "posix_fallocate", None)
        with tempfile.TemporaryFile(dir=self.directory) as file:
            if reserve is not None:
                reserve(file.fileno(), 0, num_bytes)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Whatever it is, training is worth more than a checkpoint of it.
            self._pending, failed = None, self._manager
            self._manager = None
            with contextlib.suppress(Exception):
                if failed is not None:
                    failed.close()
            if not self._failing:
                print(
                    f"no checkpoint can be written to {self.directory}: {_reason(error)}; training goes on, and the"
                    " last good checkpoint stays",
                    file=sys.stderr,
                )
            self._failing = True


def steps(run_dir: Path) -> list[int]:
    """The checkpoints of a run that were written to their end.

    Args:
        run_dir: the directory of the run.

    Returns:
        Their environment steps, the newest last.
    """
    found = (run_dir / DIRECTORY).glob("*") if (run_dir / DIRECTORY).is_dir() else ()
    return sorted(int(path.name) for path in found if re.fullmatch("[0-9]+", path.name) and path.is_dir())


def read_session(run_dir: Path, step: int) -> dict[str, Any]:
    """The host's side of a checkpoint.

    Args:
        run_dir: the directory of the run.
        step: one of `steps`.

    Returns:
        What was given to `Writer.save`.

    Raises:
        DamagedError: it cannot be read, or does not hold what was written.
    """
    return _read_text(run_dir, step)["session"]


def read(run_dir: Path, step: int, targets: Arrays) -> Checkpoint:
    """Read a checkpoint, and see that it holds what was written.

    Args:
        run_dir: the directory of the run.
        step: one of `steps`.
        targets: trees of `jax.ShapeDtypeStruct` by the name of their item, with the layout to restore to; items that
            the checkpoint does not have are left out.

    Returns:
        The checkpoint.

    Raises:
        DamagedError: it cannot be read, or does not hold what was written.
        ConfigError: the file system or the memory is at fault.
    """
    text = _read_text(run_dir, step)
    written = text["bit_sums"]
    wanted = {name: tree for name, tree in targets.items() if name in written}
    restored = _restore(run_dir, step, {name: ocp.args.StandardRestore(_named(tree)) for name, tree in wanted.items()})
    for name in wanted:
        sums = _bit_sums({name: restored[name]})[name]
        bad = [leaf for leaf, value in sums.items() if value != written[name].get(leaf)]
        if bad:
            raise DamagedError(f"{run_dir / DIRECTORY / str(step)}: {name}.{bad[0]} is not what was written")
    items = {
        name: jax.tree.unflatten(jax.tree.structure(tree), [restored[name][leaf] for leaf in _named(tree)])
        for name, tree in wanted.items()
    }
    return Checkpoint(step, items, text["session"])


def set_aside(run_dir: Path, step: int) -> Path:
    """Move a damaged checkpoint out of the way, for whoever wants to look at it.

    Args:
        run_dir: the directory of the run.
        step: one of `steps`.

    Returns:
        Where it is now.
    """
    place = run_dir / SET_ASIDE
    place.mkdir(exist_ok=True)
    names = (place / (str(step) if not number else f"{step}-{number}") for number in itertools.count())
    target = next(name for name in names if not name.exists())
    return (run_dir / DIRECTORY / str(step)).rename(target)


def _read_text(run_dir: Path, step: int) -> dict[str, Any]:
    stored = _restore(run_dir, step, {SESSION: ocp.args.JsonRestore()})[SESSION]
    if not isinstance(stored, dict) or zlib.crc32(str(stored.get("text")).encode()) != stored.get("crc32"):
        raise DamagedError(f"{run_dir / DIRECTORY / str(step)}: {SESSION} is not what was written")
    return json.loads(stored["text"])


def _restore(run_dir: Path, step: int, args: dict[str, Any]) -> dict[str, Any]:
    options = ocp.CheckpointManagerOptions(read_only=True)
    hook = sys.unraisablehook
    try:
        with ocp.CheckpointManager((run_dir / DIRECTORY).absolute(), options=options) as manager:
            return dict(manager.restore(step, args=ocp.args.Composite(**args)).items())
    except Exception as error:  # Orbax, its array store and its JSON raise what they like where bytes are wrong.
        if _may_pass(error):
            raise ConfigError(f"{run_dir / DIRECTORY / str(step)} cannot be read: {_reason(error)}") from error
        # One array that cannot be read ends the loop that the threads of the others still report to.
        sys.unraisablehook = lambda left: None if "loop is closed" in str(left.exc_value) else hook(left)
        time.sleep(0.5)
        raise DamagedError(f"{run_dir / DIRECTORY / str(step)}: {_reason(error)}") from error
    finally:
        sys.unraisablehook = hook


def _may_pass(error: Exception) -> bool:
    """Whether it is not the checkpoint that is at fault, but its surroundings."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return False
    passing = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED")
    return isinstance(error, (OSError, MemoryError)) or any(status in str(error) for status in passing)


def _named(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their path: `params.actor_params.params.Dense_0.kernel`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _bit_sums(items: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, dict[str, int]]:
    """Of each array, the sum of its words, each times an odd number of its own: one changed word changes it."""

    def add(leaf: jax.Array) -> int:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        # A program for every shape would take longer to make than most arrays to fetch.
        return int(_sum_on_host(np.asarray(leaf)) if leaf.size <= WORDS_PER_BLOCK else _sum_on_device(leaf))

    return jax.tree.map(add, items)


def _sum_on_host(leaf: np.ndarray) -> np.uint32:
    words = leaf.reshape(-1).view(np.dtype(f"uint{8 * min(leaf.dtype.itemsize, 4)}"))
    words = words.reshape(leaf.size, max(1, leaf.dtype.itemsize // 4)).sum(-1, dtype=np.uint32)
    return np.sum(words * (2 * np.arange(words.size, dtype=np.uint32) + 1), dtype=np.uint32)


@jax.jit
def _sum_on_device(leaf: jax.Array) -> jax.Array:
    """In blocks, since all words at once would take several times the memory of a replay of bytes."""
    # No array is spread over devices along other axes than its first two.
    lead = leaf.shape[:2]
    count = math.prod(lead)
    rows = leaf.reshape(*lead, -1)
    length = rows.shape[-1]
    block = min(length, max(1, WORDS_PER_BLOCK // count))
    row = jnp.arange(count, dtype=jnp.uint32).reshape(*lead, 1)

    def add(index: jax.Array, total: jax.Array) -> jax.Array:
        # The last block reaches back to be as long as the others.
        start = jnp.minimum(index * block, length - block)
        words = jax.lax.dynamic_slice_in_dim(rows, start, block, axis=-1)
        if words.dtype != jnp.bool_:
            words = jax.lax.bitcast_convert_type(words, jnp.dtype(f"uint{min(8 * words.dtype.itemsize, 32)}"))
        words = words.reshape(*lead, block, -1).sum(-1, dtype=jnp.uint32)
        position = start + jnp.arange(block).reshape(*(1 for _ in lead), block)
        odd = 2 * (row * np.uint32(length) + position.astype(jnp.uint32)) + 1
        return total + jnp.sum(jnp.where(position >= index * block, words * odd, 0), dtype=jnp.uint32)

    return jax.lax.fori_loop(0, -(-length // block), add, jnp.zeros((), jnp.uint32))


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class _Quiet(logging.Filter):
    """Orbax tells of every step of its work, and its threads of errors that are raised, and reported here, as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "/orbax/" not in record.pathname:
            return True
        return record.levelno >= logging.ERROR and not record.pathname.endswith("/_src/futures/future.py")


logging.getLogger("absl").addFilter(_Quiet())
