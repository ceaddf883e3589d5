"""The mirror of a run directory on an object store: a copy after each evaluation, which training never waits for.

Written to a store directly, every record and every checkpoint would wait for the network; Hydra, TensorBoard and locks
need a file system; and stores have no rename, which makes a local checkpoint complete. The marker of a checkpoint is
written last: the names and sizes of its files, and a digest of its `host_state`, which tells it from local checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stoix_like.config import CheckpointConfig
from stoix_like.errors import ConfigError, resume_command
from stoix_like.storage import checkpoint, remote
from stoix_like.storage.contents import in_one_line
from stoix_like.storage.replaced import set_aside_steps
from stoix_like.storage.run_files import CHECKPOINTS, ENVIRONMENT, FAILURE, LOCK, METRICS, SUMMARY
from stoix_like.storage.store import Marker, Store, marker_name

SECONDS_BETWEEN_PASSES = 5.0
_SECONDS_OF_SILENCE = 2.0  # at the end
# A run that resumes removes them.
_REMOVABLE = (ENVIRONMENT, SUMMARY, FAILURE)
_OWN_TO_THE_MACHINE = (LOCK, ".shared")
_DIRECTORIES_TO_SKIP = (CHECKPOINTS, checkpoint.QUARANTINE)
# Size and time of the last change of each file.
_Version = dict[str, tuple[int, int]]


class Mirror:
    """A thread that copies what is new in a run directory to a store.

    The directory itself stays as it is without a mirror: its checkpoints appear under their names when they are
    complete, and are copied then. A failure is tried again in the next pass, and reported once per kind of error until
    the store is up to date.
    """

    def __init__(self, run_dir: Path, address: str) -> None:
        self._run_dir, self._store = run_dir, Store(address)
        if self._store.local is not None and self._store.local.resolve().is_relative_to(run_dir.resolve()):
            raise ConfigError(f"checkpoint.mirror={address} is in the run directory: choose a place outside of it")
        self._copied: dict[str, _Version] = {}  # by name of the file, or of the checkpoint's directory
        self._stored: dict[int, Marker | None] = {}  # checkpoints on the store, None for incomplete ones
        self._seen: object = None  # records and checkpoints at the last pass
        self._is_checked = False
        self._reported: set[str] = set()
        self._behind = False
        self._stopping, self._abandoned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def start(self) -> None:
        """Start to copy."""
        # Before training writes anything: the store may answer much later.
        self._origin = remote.newest(self._run_dir), remote.first_record(self._run_dir)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Copy the rest and stop."""
        if not self._thread.is_alive():
            return
        self._stopping.set()
        self._thread.join(min(seconds, _SECONDS_OF_SILENCE))
        if self._thread.is_alive() and seconds > _SECONDS_OF_SILENCE:
            print(f"copying the rest of the run to {self._store.address}, for up to {seconds:g} s", file=sys.stderr)
            self._thread.join(seconds - _SECONDS_OF_SILENCE)
        self._abandoned.set()
        if self._thread.is_alive() or self._behind:
            print(
                f"{self._store.address} lacks the latest files of the run after {seconds:g} s of waiting"
                f" (checkpoint.mirror_wait); {self._run_dir} has them all: copy them with:"
                f" {resume_command(self._run_dir)}",
                file=sys.stderr,
            )

    def _work(self) -> None:
        while not self._abandoned.is_set():
            is_last = self._stopping.is_set()  # before the pass, which then sees every file
            started = time.monotonic()
            self._behind = not self._copied_all(is_last)
            if is_last and not self._behind:
                return
            # A store that is slow is used half of the time.
            wait = max(SECONDS_BETWEEN_PASSES, time.monotonic() - started)
            (self._abandoned if is_last else self._stopping).wait(1.0 if is_last else wait)

    def _copied_all(self, is_last: bool) -> bool:
        """Copy what is new; return True once everything is copied; never raises."""
        try:
            # An evaluation, and the checkpoint that follows it, which is complete later.
            news = _files(self._run_dir / METRICS), list((self._run_dir / CHECKPOINTS).glob("[0-9]*"))
            if not (is_last or self._behind or news != self._seen):
                return True
            self._seen, complete = news, self._copy()
        except remote.OtherRunError as error:
            # It stays one, also when this run has checkpoints of the same steps.
            print(f"{error}; training continues, and nothing is copied", file=sys.stderr)
            self._abandoned.set()
            return True
        except Exception as error:
            self._report(error)
            return False
        if complete and self._reported and self._behind:
            print(f"{self._store.address} is up to date again", file=sys.stderr)
            self._reported.clear()
        return complete

    def _copy(self) -> bool:
        if not self._is_checked:
            remote.check_continues(self._store.address, self._run_dir, *self._origin)
            self._stored, self._is_checked = self._store.checkpoints(), True
        # Those that are complete before the records are copied: no copy has a checkpoint that is ahead of them.
        aside, present = set_aside_steps(self._run_dir / CHECKPOINTS), checkpoint.steps(self._run_dir)
        copies = {name: functools.partial(self._copy_file, name) for name in _plain_files(self._run_dir)}
        copies |= {f"{CHECKPOINTS}/{n}": functools.partial(self._copy_checkpoint, n) for n in reversed(present)}
        complete = True
        for name, copy in copies.items():
            version = _files(self._run_dir / name)
            if self._abandoned.is_set():
                return False
            if not version or version == self._copied.get(name):
                continue
            try:
                copy()
                self._copied[name] = version
            except Exception as error:  # Each store has errors of its own.
                # The run may have replaced or removed the files meanwhile: another pass comes.
                complete = False
                if version == _files(self._run_dir / name):
                    self._report(error)
        self._remove_others([*aside, *present])
        return complete

    def _copy_file(self, name: str) -> None:
        path = self._run_dir / name
        if path.suffix == ".jsonl":
            # A line may be half written.
            lines = path.read_bytes()
            self._store.write(name, lines[: lines.rfind(b"\n") + 1])
        else:
            self._store.upload(path, name)

    def _copy_checkpoint(self, step: int) -> None:
        """Copy a checkpoint, and write its marker once all files are there."""
        place, stored = f"{CHECKPOINTS}/{step}", self._stored
        with _held(self._run_dir, place) as (directory, version):
            marker = Marker(remote.identity(directory), {name: size for name, (size, _) in version.items()})
            if stored.get(step) == marker:
                return  # copied before this process started
            if stored.get(step) is not None:
                self._store.remove_checkpoint(step)
            stored[step] = None
            self._store.upload_all(directory, list(version), place)
            if _files(directory) != version:
                raise FileNotFoundError(f"{directory} changed while it was copied")
        self._store.write(marker_name(step), json.dumps(marker._asdict()).encode())
        stored[step] = marker

    def _remove_others(self, present: list[int]) -> None:
        """Remove from the store what the run has removed."""
        for name in _REMOVABLE:
            if not (self._run_dir / name).exists() and self._copied.get(name) != {}:
                self._store.remove(name)
                self._copied[name] = {}
        stored = self._stored
        # Until a local checkpoint is complete on the store, older ones there are the only ones.
        is_replaced = any(stored.get(step) is not None for step in present)
        for step in stored.keys() - set(present) if is_replaced else ():
            self._store.remove_checkpoint(step)
            del stored[step]

    def _report(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind not in self._reported:
            print(
                f"cannot copy the run to {self._store.address}: {in_one_line(error)}; training continues, and it is"
                " tried again",
                file=sys.stderr,
            )
        self._reported.add(kind)


@contextlib.contextmanager
def mirrored(run_dir: Path, config: CheckpointConfig) -> Iterator[Callable[[], None]]:
    """Keep a mirror of a run directory, if the configuration names one; at exit, wait for it."""
    if config.mirror is None:
        yield lambda: None
        return
    mirror = Mirror(run_dir, config.mirror)
    try:
        yield mirror.start
    finally:
        mirror.close(config.mirror_wait)


def _plain_files(run_dir: Path) -> Iterator[str]:
    """Yield the names of the files of a run that belong to no checkpoint."""
    for place, directories, names in os.walk(run_dir):
        above = Path(place).relative_to(run_dir)
        if above == Path():
            whole = [name for name in directories if not name.endswith(remote.PARTIAL)]
            directories[:] = [name for name in whole if not name.startswith(_DIRECTORIES_TO_SKIP)]
        for name in sorted(names):
            if name not in _OWN_TO_THE_MACHINE and not name.endswith(".tmp"):
                yield (above / name).as_posix()


@contextlib.contextmanager
def _held(run_dir: Path, place: str) -> Iterator[tuple[Path, _Version]]:
    """Yield a directory that keeps the files of a checkpoint when the run removes them, and their version.

    A store may be slower than the run: all checkpoints would be gone before they are copied.
    """
    checkpoint_dir, held = run_dir / place, run_dir / f".mirror{remote.PARTIAL}"
    version = _files(checkpoint_dir)
    # A killed process may have left it.
    shutil.rmtree(held, ignore_errors=True)
    try:
        shutil.copytree(checkpoint_dir, held, copy_function=os.link)
    except OSError:
        yield checkpoint_dir, version  # no hard links on this file system
    else:
        yield held, version
    finally:
        shutil.rmtree(held, ignore_errors=True)


def _files(path: Path) -> _Version:
    """Return the version of a regular file, or of those below a directory."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                found[file.relative_to(path).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found
