"""Runs on object stores: checks of what is stored there, and local copies of it."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Set
from pathlib import Path, PurePosixPath

import filelock

from stoix_like.errors import ConfigError, naming, resume_command
from stoix_like.storage.files import locked, user_cache
from stoix_like.storage.run_files import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    FAILURE,
    LOCK,
    METRICS,
    SUMMARY,
    UPDATES,
    is_address,
)
from stoix_like.storage.store import UNREADABLE, Marker, Store, marker_name, normalised, reported

# What a directory ends with that holds an incomplete copy of a checkpoint.
PARTIAL = ".partial"
# Files of a run besides its checkpoints: what an earlier copy has of them would be taken for parts of a later one.
_OF_ONE_RUN = (CONFIG, ENVIRONMENT, METRICS, UPDATES, SUMMARY, FAILURE)
# A run may replace a checkpoint while it is copied.
_ATTEMPTS = 3

Wanted = Callable[[str], bool]
"""Predicate of the files to copy, by name in the run directory, such as `checkpoints/512/host_state/metadata`."""


class OtherRunError(ConfigError):
    """A store that holds another run, or a later state of the same one; the message names its address."""


class _ChangedError(Exception):
    """A checkpoint was replaced while it was copied."""


def identity(directory: Path) -> str:
    """Return what tells a checkpoint from others of the same step: a digest of its state of the host.

    That holds the checksums of all arrays, and times.
    """
    digest = hashlib.sha256()
    for path in sorted((directory / "host_state").rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def check_new(address: str | None) -> None:
    """Refuse an address that cannot be read, or holds a run. `address`: `checkpoint.mirror`; None for none."""
    if address is None:
        return
    with naming("checkpoint.mirror"):
        is_taken = holds_run(address)
    if is_taken:
        raise ConfigError(
            f"checkpoint.mirror={address} already holds a run: choose another address, or resume the run with:"
            f" {resume_command(address)}"
        )


def check_continues(address: str, run_dir: Path, start_step: int, record: bytes) -> None:
    """Refuse an address that holds another run, or a later state of this one: the mirror would remove it."""
    with reported(address):
        store = Store(address)
        if not store.exists(CONFIG):
            return
        if not _is_same_run(store, record):
            raise OtherRunError(f"checkpoint.mirror={address} holds another run than {run_dir}: choose another address")
        if later := _from(store, start_step + 1):
            raise OtherRunError(
                f"checkpoint.mirror={address} holds the checkpoint {max(later)}, which is later than those of"
                f" {run_dir}: resume the run with: {resume_command(address)}"
            )


def first_record(run_dir: Path) -> bytes:
    """Return the first record of a run, which contains a time and so tells it from other runs; empty without any."""
    path = run_dir / METRICS
    return path.read_bytes().partition(b"\n")[0] if path.is_file() else b""


def _is_same_run(store: Store, record: bytes) -> bool:
    """Return whether a store holds the run with a first record, or nothing was trained in one of them yet."""
    found = store.read(METRICS).partition(b"\n")[0] if store.exists(METRICS) else b""
    return found == record or not found or not record


def _from(store: Store, first: int) -> list[int]:
    """Return the complete checkpoints on a store of at least `first` environment steps."""
    return [step for step, marker in store.checkpoints().items() if marker is not None and step >= first]


def newest(run_dir: Path) -> int:
    """Return the environment steps of the newest checkpoint of a directory; -1 without any."""
    from stoix_like.storage import checkpoint  # imports jax, which commands that only read runs do not need

    return max(checkpoint.steps(run_dir), default=-1)


def holds_run(address: str) -> bool:
    """Return whether a store holds a run."""
    with reported(address):
        return Store(address).exists(CONFIG)


def fetch(address: str | Path, target: Path, wanted: Wanted = lambda name: True) -> None:
    """Make a local directory hold the files of a run on a store; what it holds already is not copied again.

    Complete checkpoints come first and the configuration, without which there is no run, comes last.
    """
    with reported(address):
        store = Store(address)
        names = store.sizes().keys()
        if not any(PurePosixPath(name).name == CONFIG for name in names):
            raise ConfigError(f"{store.address} holds no run: {CONFIG} is missing")
        _remove_others(target, names, _fetch_checkpoints(store, target, wanted))
        plain = [name for name in names if CHECKPOINTS not in PurePosixPath(name).parts and wanted(name)]
        for name in sorted(plain, key=lambda name: PurePosixPath(name).name == CONFIG):
            store.download(name, target / name)


def _fetch_checkpoints(store: Store, target: Path, wanted: Wanted) -> set[int]:
    """Copy the checkpoints of a run; report those that are damaged, and return the others; refuse if there are none."""
    stored, failed = dict[int, Marker | None](), set[int]()
    for _ in range(_ATTEMPTS):
        stored, failed = store.checkpoints(), set()
        for step, marker in sorted(stored.items(), reverse=True):
            try:
                if marker is not None:
                    _fetch_checkpoint(store, step, marker, target, wanted)
            except (*UNREADABLE, _ChangedError):
                failed.add(step)
        if not failed:
            break
    found = {step for step, marker in stored.items() if marker is not None} - failed
    incomplete = [step for step, marker in stored.items() if marker is None]
    damaged = sorted(failed.union(step for step in incomplete if store.exists(marker_name(step))))
    # A command that only reads records wants no checkpoint.
    if not found and any(wanted(f"{CHECKPOINTS}/{step}/host_state") for step in damaged):
        raise ConfigError(
            f"every checkpoint of {store.address} is damaged or keeps changing: {', '.join(map(str, damaged))}: try"
            " again when no process copies there, or resume the run in its own directory"
        )
    for step in damaged:
        print(
            f"{store.address} holds a damaged checkpoint, {step}: its files are not those that its marker lists; it is"
            " left out",
            file=sys.stderr,
        )
    return found


def local_copy(run_dir: str | Path, items: tuple[str, ...] = ()) -> Path:
    """Return the local directory of runs, after copying what is to be read if they are on a store."""
    if not is_address(run_dir):
        return Path(run_dir).expanduser()
    inside = (*items, "host_state", "_CHECKPOINT_METADATA")

    def wanted(name: str) -> bool:
        parts = PurePosixPath(name).parts
        if parts[0] == CHECKPOINTS:
            return bool(items) and parts[2] in inside
        return parts[-1] in _OF_ONE_RUN

    target = _cache("read", run_dir)
    with _copying_to(target):
        fetch(run_dir, target, wanted)
    return target


def working_copy(address: str | Path) -> Path:
    """Return a local directory in which to resume a run on a store, made equal to it.

    A directory that is ahead of the store stays as it is: what is missing there was not copied the last time.
    """
    target = _cache("resumed", address)
    target.mkdir(parents=True, exist_ok=True)
    refusal = f"{address} is in use: another process trains it in {target}, or copies it there"
    # Whoever trains there has the same lock: a copy would remove its checkpoints.
    with locked(target / LOCK, refusal), _copying_to(target):
        with reported(address):
            store = Store(address)
            own = newest(target)
            is_ahead = (target / CONFIG).is_file() and own >= 0 and not _from(store, own)
            if is_ahead and store.exists(METRICS) and _is_same_run(store, first_record(target)):
                return target
        fetch(address, target)
    return target


def catch_up(address: str, run_dir: Path) -> None:
    """Copy what a store has of a run beyond a local directory, because the run continued elsewhere."""
    with reported(address):
        store = Store(address)
        if not (store.exists(CONFIG) and _is_same_run(store, first_record(run_dir))):
            return
        is_behind = bool(_from(store, newest(run_dir) + 1))
    if is_behind:
        fetch(address, run_dir)


def address_of(copy: Path) -> str | Path:
    """Return the address of what `local_copy` returned, from which more can be copied; any other path as it is."""
    try:
        place = (user_cache() / "read").resolve()
    except OSError:
        return copy  # without a cache, there are no copies
    if not copy.resolve().is_relative_to(place):
        return copy
    scheme, _, path = copy.resolve().relative_to(place).as_posix().partition("/")
    return normalised(f"{scheme}://{urllib.parse.unquote(path)}")


@contextlib.contextmanager
def _copying_to(target: Path) -> Iterator[None]:
    """Lock a directory of the cache, which others may want, too; remove what killed processes left there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_name(f"{target.name}.lock")):
        for path in target.rglob(".*.tmp"):
            path.unlink(missing_ok=True)
        for path in target.rglob(f".*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)
        yield


def _cache(purpose: str, address: str | Path) -> Path:
    scheme, _, path = normalised(address).partition("://")
    return user_cache() / purpose / scheme / urllib.parse.quote(path.lstrip("/"))


def _fetch_checkpoint(store: Store, step: int, marker: Marker, target: Path, wanted: Wanted) -> None:
    place = f"{CHECKPOINTS}/{step}"
    files = {name: size for name, size in marker.files.items() if wanted(f"{place}/{name}")}
    final = target / place
    if not files or _has(final, marker.identity, files):
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{step}.", suffix=PARTIAL, dir=target) as scratch:
        found = Path(scratch, str(step))
        store.download_all(place, list(files), found)
        if store.marker(step) != marker or not _has(found, marker.identity, files):
            raise _ChangedError(f"checkpoint {step} keeps changing")
        shutil.rmtree(final, ignore_errors=True)
        found.rename(final)


def _has(directory: Path, wanted: str, files: dict[str, int]) -> bool:
    """Return whether a directory holds these files of the checkpoint with this identity."""
    paths = {directory / name: size for name, size in files.items()}
    have_sizes = all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
    return have_sizes and identity(directory) == wanted


def _remove_others(target: Path, names: Set[str], steps: Set[int]) -> None:
    """Remove what an earlier copy holds, and would now be taken for a part of the run."""
    for path in [path for path in target.rglob("*") if path.name in _OF_ONE_RUN]:
        if path.relative_to(target).as_posix() not in names:
            path.unlink()
    directory = target / CHECKPOINTS
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.name not in map(str, steps):
            shutil.rmtree(path, ignore_errors=True)
