"""Checkpoints: written in the background, atomically, and verified bit by bit when they are read.

A checkpoint is a directory `checkpoints/<env_steps>` in Orbax's format, with an item for each part of the run's state.
The item `host_state` holds the state of the host in JSON, and a checksum of every array: the array format itself
detects a truncated file, but not a flipped bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.errors import ConfigError, DamagedError, first_line
from stoix_like.processes import ALONE, Processes
from stoix_like.storage import orbax, replaced
from stoix_like.storage.checksums import checksums
from stoix_like.storage.contents import parse_json
from stoix_like.storage.files import check_directory
from stoix_like.storage.run_files import CHECKPOINTS
from stoix_like.utils.jax_utils import named

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

DIRECTORY = CHECKPOINTS
QUARANTINE = "checkpoints-damaged"
HOST_STATE = "host_state"
# Larger items of the first checkpoint are opened, but not read back: a replay buffer may fill half of the memory.
MAX_BYTES_READ_BACK = 2**28
# Orbax gives up a write after these and the seconds by its size; a process that cannot write blocks others so long.
_SECONDS_ALONE, _SECONDS_WITH_OTHERS, _SLOWEST_BYTES_PER_SECOND = 1200, 120, 10_000_000
T = TypeVar("T")
Arrays = Mapping[str, Any]
"""Trees of arrays by the name of their item."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    step: int  # environment steps of each member; the name of its directory
    items: dict[str, Any]  # trees of arrays by item, on the devices and in the layout of the targets
    host_state: dict[str, Any]  # the state of the host


class Writer:
    """A writer of checkpoints that keeps the newest ones.

    A failed write is reported once; older checkpoints stay, and later writes are tried again. The first checkpoint is
    read back once, and reported if it differs from what was written.
    """

    def __init__(self, run_dir: Path, keep: int, processes: Processes = ALONE) -> None:
        self._processes = processes
        self.run_dir = run_dir.absolute()
        self.directory = self.run_dir / DIRECTORY
        self._keep = keep
        self._manager: ocp.CheckpointManager | None = None
        self._open_path = contextlib.ExitStack()
        self._pending: int | None = None
        self._failing = False
        self._clean = True
        self._shapes: dict[str, Any] = {}
        self._usable: bool | None = None  # unknown before the first checkpoint was read back

    def save(self, step: int, items: Arrays, host_state: Mapping[str, Any]) -> None:
        """Start to write a checkpoint; return as soon as the arrays may be donated."""
        ocp = orbax.load()
        self.wait()
        with self._reported():
            present = {name: leaves for name, tree in items.items() if (leaves := named(tree))}
            text = json.dumps({HOST_STATE: host_state, "checksums": checksums(present)})
            num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(present)) + len(text)
            manager = self._open(num_bytes)
            self._processes.first(lambda: self._check_room(num_bytes))
            self._shapes = jax.tree.map(_shape, present)
            self._pending = step
            if step in manager.all_steps():
                # The run stopped here between two evaluations; with the new budget, one of them is at this step.
                self._processes.first(lambda: replaced.set_aside(self.directory, step))
                manager.reload()
            args = ocp.args.Composite(
                **{name: ocp.args.StandardSave(leaves) for name, leaves in present.items()},
                **{HOST_STATE: ocp.args.JsonSave({"text": text, "crc32": zlib.crc32(text.encode())})},
            )
            self._processes.together(lambda: manager.save(step, args=args, force=True))

    def wait(self) -> None:
        """Wait until the pending checkpoint is complete."""
        step = self._pending
        if step is not None:
            with self._reported():
                manager = self._open()
                self._processes.together(manager.wait_until_finished)
                self._pending, self._failing = None, False
                self._processes.first(lambda: replaced.settle(self.directory))
                if not self._usable:
                    self._read_back(step)

    def abandon(self) -> None:
        """Leave a pending checkpoint unfinished, because a process that writes its part has ended."""
        self._pending = self._manager = None

    def restart(self) -> None:
        """Forget a pending checkpoint, and what is known of the directory, which was deleted."""
        self._pending, self._failing = None, False
        # Threads of the pending write may still create files there, on which a removal fails.
        self._clean = False
        self._close_manager()

    def close(self) -> None:
        """Wait, and stop the threads of the writer."""
        self.wait()
        self._close_manager()

    @property
    def newest(self) -> int | None:
        """Environment steps of the newest complete checkpoint."""
        return self._processes.first(self._newest)

    def _newest(self) -> int | None:
        try:
            present = steps(self.run_dir)
        except ConfigError:  # reported when a checkpoint is written
            return None
        paths = {step: self.directory / str(step) for step in present}
        return max((step for step, path in paths.items() if path.is_dir() and not path.is_symlink()), default=None)

    @property
    def usable(self) -> bool:
        """True if there is a complete checkpoint, and none is known to be unreadable."""
        return self.newest is not None and self._usable is not False

    def _open(self, num_bytes: int = 0) -> ocp.CheckpointManager:
        ocp = orbax.load()
        if self._manager is None:
            self._processes.first(self._prepare)
            # Removes partial checkpoints left by a killed process or a full disk.
            options = ocp.CheckpointManagerOptions(max_to_keep=self._keep, cleanup_tmp_directories=self._clean)
            patience = _SECONDS_WITH_OTHERS if self._processes.count > 1 else _SECONDS_ALONE
            options.async_options = ocp.AsyncOptions(timeout_secs=patience + num_bytes // _SLOWEST_BYTES_PER_SECOND)
            place = self._open_path.enter_context(orbax.plain_path(self.directory))
            self._manager = ocp.CheckpointManager(place, options=options)
        return self._manager

    def _prepare(self) -> None:
        check_directory(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        replaced.settle(self.directory)

    def _close_manager(self) -> None:
        manager, self._manager = self._manager, None
        with contextlib.suppress(Exception):
            if manager is not None:
                manager.close()
        with contextlib.suppress(OSError):
            self._open_path.close()

    def _read_back(self, step: int) -> None:
        """Verify the first checkpoint, so that a run with unreadable checkpoints is reported while it trains."""
        known, self._usable = self._usable is not None, False
        small = {
            name: leaves
            for name, leaves in self._shapes.items()
            if sum(leaf.size * leaf.dtype.itemsize for leaf in leaves.values()) <= MAX_BYTES_READ_BACK
        }
        try:
            read(self.run_dir, step, small, self._processes)
            large = {name: self._shapes[name] for name in self._shapes.keys() - small.keys()}
            self._processes.together(lambda: _check_shapes(self.run_dir, step, large))
            self._usable = True
        except (DamagedError, ConfigError) as error:
            if not known:
                self._processes.say(
                    f"WARNING: the checkpoint that was just written cannot be read back: {error}; training continues,"
                    " but this run may be impossible to resume or to evaluate"
                )

    def _check_room(self, num_bytes: int) -> None:
        """Reserve the space first, so that a full disk raises one error instead of one per Orbax thread."""
        reserve = getattr(os, "posix_fallocate", None)
        with tempfile.TemporaryFile(dir=self.directory) as file:
            if reserve is not None:
                reserve(file.fileno(), 0, num_bytes)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            try:
                yield
            except BaseException:
                self._close_manager()
                raise
        except Exception as error:  # A failed checkpoint must not stop training.
            self._pending = None
            if self._processes.is_first:
                replaced.settle(self.directory)
            if not self._failing:
                self._processes.say(
                    f"cannot write a checkpoint to {self.directory}: {first_line(error)}; training continues, and the"
                    " last good checkpoint stays"
                )
            self._failing = True


def steps(run_dir: Path) -> list[int]:
    """List the checkpoints of a run."""
    directory = run_dir / DIRECTORY
    try:
        check_directory(directory)
        names = os.listdir(directory) if directory.exists() else []
    except OSError as error:
        raise ConfigError(f"{directory} {error.strerror}: no checkpoint can be read there") from error
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def read_host_state(run_dir: Path, step: int, processes: Processes = ALONE) -> dict[str, Any]:
    """Read the state of the host from a checkpoint."""
    return processes.together(lambda: _read_text(run_dir, step))[HOST_STATE]


def read_shapes(run_dir: Path, step: int, item: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Read the shapes of an item's arrays, without the arrays."""
    ocp = orbax.load()
    directory = (run_dir / DIRECTORY / str(step) / item).absolute()
    try:
        leaves = ocp.StandardCheckpointHandler().metadata(directory).tree
        return {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()}
    except Exception as error:  # Orbax raises errors of any type for wrong bytes.
        raise orbax.unreadable(directory, error) from error


def read(
    run_dir: Path, step: int, targets: Arrays | Callable[[dict[str, Any]], Arrays], processes: Processes = ALONE
) -> Checkpoint:
    """Read a checkpoint, and verify its checksums."""
    ocp = orbax.load()
    text = processes.together(lambda: _read_text(run_dir, step))
    written = text["checksums"]
    trees = targets(text[HOST_STATE]) if callable(targets) else targets
    shapes = {name: leaves for name, tree in trees.items() if (leaves := named(tree)) and name in written}
    args = {name: ocp.args.StandardRestore(leaves) for name, leaves in shapes.items()}
    restored = processes.together(lambda: _restore(run_dir, step, args))
    items, damaged = dict[str, Any](), list[str]()

    def compare_shapes() -> None:
        try:
            for name, leaves in shapes.items():
                for leaf, shape in leaves.items():
                    _compare_shape(f"{name}.{leaf}", restored[name][leaf], shape)
        except Exception as error:  # What wrong bytes were restored to can have any type.
            raise _damaged(run_dir, step, first_line(error)) from error

    processes.together(compare_shapes)
    for name, leaves in shapes.items():
        found = checksums({name: restored[name]})[name]
        damaged += [f"{name}.{leaf}" for leaf, value in found.items() if value != written[name].get(leaf)]
        rest = map(restored[name].get, leaves)
        items[name] = jax.tree.map(lambda leaf, rest=rest: next(rest) if leaf.size else _empty(leaf), trees[name])

    def report() -> None:
        if damaged:
            raise _damaged(run_dir, step, f"{damaged[0]} differs from what was written")

    # A replicated array may be read wrongly by only one process.
    processes.together(report)
    return Checkpoint(step, items, text[HOST_STATE])


def newest_readable(run_dir: Path, read_step: Callable[[int], T], processes: Processes = ALONE) -> T | None:
    """Read the newest undamaged checkpoint, and quarantine the damaged ones after it.

    Returns the result of `read_step`; None if there are no checkpoints.
    """
    damaged: list[tuple[int, DamagedError]] = []
    processes.first(lambda: replaced.settle(run_dir / DIRECTORY))
    for step in reversed(processes.first(lambda: steps(run_dir))):
        try:
            found = read_step(step)
        except DamagedError as error:
            damaged.append((step, error))
            continue
        for bad, reason in damaged:
            place = processes.first(lambda bad=bad: str(quarantine(run_dir, bad)))  # type: ignore[misc]
            processes.say(f"the checkpoint after {bad:,} steps is damaged: {reason}; moved to {place}")
        return found
    if damaged:
        reasons = "; ".join(str(error) for _, error in damaged)
        raise ConfigError(f"every checkpoint of {run_dir} is damaged or of another version: {reasons}")
    return None


def quarantine(run_dir: Path, step: int) -> Path:
    """Move a damaged checkpoint to the directory `checkpoints-damaged`, or to a new one if the name is taken there."""
    place = run_dir / QUARANTINE
    is_plain = not os.path.lexists(place) or (place.is_dir() and not place.is_symlink())
    if not is_plain or os.path.lexists(place / str(step)):
        place = Path(tempfile.mkdtemp(prefix=f"{QUARANTINE}-", dir=run_dir))
    place.mkdir(exist_ok=True)
    return (run_dir / DIRECTORY / str(step)).rename(place / str(step))


def _damaged(run_dir: Path, step: int, reason: str) -> DamagedError:
    return DamagedError(f"{run_dir / DIRECTORY / str(step)}: {reason}")


def _shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _compare_shape(name: str, restored: Any, target: Any) -> None:
    """Refuse a restored array of another shape or type than its target."""
    found, expected = (f"{getattr(x, 'dtype', None)}{getattr(x, 'shape', None)}" for x in (restored, target))
    if found != expected:
        raise ValueError(f"{name} is {found} instead of {expected}")


def _check_shapes(run_dir: Path, step: int, items: Arrays) -> None:
    """Open every array of some items without reading it, and compare the shapes."""
    with _reading(run_dir, step) as manager:
        for item, leaves in items.items():
            found = orbax.load().StandardCheckpointHandler().metadata(manager.directory / str(step) / item).tree
            # Keys are stored as words along one more axis.
            wrong = [name for name, leaf in leaves.items() if found[name].shape[: leaf.ndim] != leaf.shape]
            if wrong:
                raise _damaged(run_dir, step, f"{item}.{wrong[0]} has the shape {found[wrong[0]].shape}")


def _read_text(run_dir: Path, step: int) -> dict[str, Any]:
    stored = _restore(run_dir, step, {HOST_STATE: orbax.load().args.JsonRestore()})[HOST_STATE]
    if not isinstance(stored, dict) or zlib.crc32(str(stored.get("text")).encode()) != stored.get("crc32"):
        raise _damaged(run_dir, step, f"{HOST_STATE} differs from what was written")
    try:
        return parse_json(stored["text"], {HOST_STATE: {}, "checksums": {}})
    except (ValueError, TypeError) as error:
        raise _damaged(run_dir, step, f"{HOST_STATE} is not that of a run") from error


def _restore(run_dir: Path, step: int, args: dict[str, Any]) -> dict[str, Any]:
    with _reading(run_dir, step) as manager:
        return dict(manager.restore(step, args=orbax.load().args.Composite(**args)).items())


@contextlib.contextmanager
def _reading(run_dir: Path, step: int) -> Iterator[ocp.CheckpointManager]:
    """Open one checkpoint, and translate whatever goes wrong while it is read."""
    ocp = orbax.load()
    directory = run_dir.absolute() / DIRECTORY
    options = ocp.CheckpointManagerOptions(read_only=True)
    if (count := jax.process_count()) > 1:
        # Each process reads on its own, so that none waits for one that fails.
        own = jax.process_index()
        options.multiprocessing_options = ocp.options.MultiprocessingOptions(
            primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process-{own}-of-{count}"
        )
    try:
        with orbax.alone(directory, step) as place, ocp.CheckpointManager(place, options=options) as manager:
            yield manager
    except (ConfigError, DamagedError):
        raise
    except Exception as error:  # Orbax and its array store raise errors of any type for wrong bytes.
        raise orbax.unreadable(run_dir / DIRECTORY / str(step), error) from error


def _empty(target: jax.ShapeDtypeStruct) -> jax.Array:
    """Return an array without elements."""
    return jnp.zeros(target.shape, target.dtype, device=target.sharding)
