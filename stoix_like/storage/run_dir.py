"""The directory of a run: its files, its lock and its checks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
from omegaconf import OmegaConf

from stoix_like.errors import ConfigError
from stoix_like.storage.files import read_bytes, write_text

# pathlib turns the two slashes into one. A single letter is a drive.
ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+?)/*")
CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
UPDATES = "updates.jsonl"
SUMMARY = "summary.json"
FAILURE = "failure.txt"
# Shows that all processes of a run see one directory.
_TOKEN = ".shared"
_MAX_SUMMARY_BYTES = 2**28
_MAX_FAILURE_BYTES = 2**20
_MAX_METRICS_BYTES = 2**32
_FILES_OF_A_RUN = (CONFIG, METRICS, SUMMARY, "multirun.yaml")


def check_new(run_dir: Path) -> None:
    """Refuse a run directory that cannot be written or already holds a run.

    Args:
        run_dir: the directory; it need not exist yet.

    Raises:
        ConfigError: names the directory.
    """
    if is_address(run_dir):
        raise ConfigError(
            f"hydra.run.dir={run_dir} is an address, but run directories are local: choose a directory, and"
            " checkpoint.mirror to copy the run to an address while it trains"
        )
    present = run_dir.absolute()
    while not present.exists() and present != present.parent:
        present = present.parent
    try:
        # Permissions alone do not reveal read-only and special file systems.
        tempfile.TemporaryDirectory(dir=present).cleanup()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"hydra.run.dir={run_dir} cannot be written: {present}: {reason}") from error
    for name in _FILES_OF_A_RUN:
        if os.path.lexists(run_dir / name):
            raise ConfigError(
                f"hydra.run.dir={run_dir} already holds a run ({name}): choose another directory, or resume the run"
                f" with: stoix-like resume {run_dir}"
            )


def check_is_run(run_dir: Path) -> None:
    """Refuse a directory that holds no run.

    Args:
        run_dir: the directory.

    Raises:
        ConfigError: names the directory.
    """
    path = run_dir / CONFIG
    if not os.path.lexists(path):
        raise ConfigError(f"{run_dir} holds no run: {CONFIG} is missing")
    if path.is_symlink() or not path.is_file():
        raise ConfigError(f"{path} is not a regular file: copy the run's own configuration to it")


def is_address(place: str | Path) -> bool:
    """Return whether a text is the address of a run on an object store, `s3://bucket/run`, and no local path.

    Args:
        place: an address or a path; pathlib may have turned its two slashes into one.
    """
    return ADDRESS.fullmatch(str(place)) is not None and not os.path.lexists(place)


def write_token(run_dir: Path) -> str:
    """Write a random text that the other processes of the run must find.

    Args:
        run_dir: the directory, locked by the first process.

    Returns:
        The text.

    Raises:
        ConfigError: the directory cannot be written.
    """
    token = secrets.token_hex()
    with _refused_if_unwritable(run_dir):
        write_text(run_dir / _TOKEN, token)
    return token


def remove_token(run_dir: Path) -> None:
    """Remove the text of `write_token`.

    Args:
        run_dir: the directory.
    """
    with contextlib.suppress(OSError):
        (run_dir / _TOKEN).unlink()


def check_token(run_dir: Path, token: str) -> None:
    """Refuse a run directory that is not that of the first process.

    Args:
        run_dir: the directory.
        token: from `write_token`.

    Raises:
        ConfigError: names the directory.
    """
    try:
        found = read_bytes(run_dir / _TOKEN, 2 * len(token)).decode(errors="replace")
    except OSError:
        found = ""
    if found != token:
        raise ConfigError(
            f"hydra.run.dir={run_dir} is not on a file system that all processes of the run share: choose a directory"
            " that is"
        )


def holds_run(run_dir: Path) -> bool:
    """Return whether a directory holds a run.

    Args:
        run_dir: the directory.
    """
    return (run_dir / CONFIG).exists()


def discard(run_dir: Path) -> None:
    """Remove the files that keep another run from starting in a directory where nothing was trained.

    Args:
        run_dir: the directory, locked by this process.
    """
    for name in (METRICS, CONFIG):
        with contextlib.suppress(OSError):
            (run_dir / name).unlink()


def create(run_dir: Path) -> None:
    """Create a run directory.

    Args:
        run_dir: the directory; it may exist.

    Raises:
        ConfigError: it cannot be created.
    """
    with _refused_if_unwritable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes from training in a run directory; the operating system releases the lock at exit.

    Args:
        run_dir: the directory.

    Raises:
        ConfigError: another process holds the lock, or the directory cannot be written.
    """
    path = run_dir / ".lock"
    # The lock would be created at the target of a link.
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ConfigError(f"{path} is not a regular file: remove it")
    # `is_locked` holds it for a moment.
    lock = filelock.FileLock(path, timeout=0.2, poll_interval=0.02)
    with _refused_if_unwritable(run_dir):
        try:
            lock.acquire()
        except filelock.Timeout:  # an OSError, too
            raise ConfigError(f"{run_dir} is in use: another process is training there") from None
    try:
        yield
    finally:
        lock.release()


def is_locked(run_dir: Path) -> bool:
    """Return whether a process is training in a run directory.

    Args:
        run_dir: the directory; nothing is created in it.
    """
    path = run_dir / ".lock"
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with filelock.FileLock(path, timeout=0):
            return False
    except filelock.Timeout:
        return True
    except OSError:
        return False  # A directory that cannot be written is not trained in.


def write_failure(run_dir: Path, error: BaseException) -> None:
    """Write why a run failed, as far as the directory can be written.

    Args:
        run_dir: the directory.
        error: the error that ends the run.
    """
    with contextlib.suppress(OSError):
        write_text(run_dir / FAILURE, f"{type(error).__name__}: {error}\n")


def read_failure(run_dir: Path) -> str:
    """Read why a run failed.

    Args:
        run_dir: the directory.

    Returns:
        The error; empty if the run did not fail.
    """
    try:
        return read_bytes(run_dir / FAILURE, _MAX_FAILURE_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def write_new_config(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write the configuration of a new run.

    Args:
        run_dir: the directory.
        config: the resolved configuration as plain values.

    Raises:
        ConfigError: it cannot be written, or another process wrote one first.
    """
    with _refused_if_unwritable(run_dir):
        # The lock keeps other processes away in between.
        if os.path.lexists(run_dir / CONFIG):
            raise FileExistsError(errno.EEXIST, "holds a run already", str(run_dir / CONFIG))
        write_text(run_dir / CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(config))))


def reopen(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Replace the configuration of a run that resumes, and remove how it ended.

    Args:
        run_dir: the directory.
        config: the resolved configuration as plain values.

    Raises:
        ConfigError: it cannot be written.
    """
    with _refused_if_unwritable(run_dir):
        (run_dir / SUMMARY).unlink(missing_ok=True)
        (run_dir / FAILURE).unlink(missing_ok=True)
        write_text(run_dir / CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(config))))


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Read the summary of a complete run.

    Args:
        run_dir: the directory.

    Returns:
        The summary; empty if it does not exist or cannot be read.
    """
    try:
        found = json.loads(read_bytes(run_dir / SUMMARY, _MAX_SUMMARY_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_history(run_dir: Path) -> list[dict[str, Any]]:
    """Read the metrics file of a run.

    Args:
        run_dir: the directory.

    Returns:
        One record per evaluation; empty if the file does not exist or cannot be read.
    """
    return _read_records(run_dir / METRICS)


def read_updates(run_dir: Path) -> list[dict[str, Any]]:
    """Read the training metrics between the evaluations of a run.

    Args:
        run_dir: the directory.

    Returns:
        One record per `logger.every_updates` updates; empty if the file does not exist or cannot be read.
    """
    return _read_records(run_dir / UPDATES)


def _read_records(path: Path) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in read_bytes(path, _MAX_METRICS_BYTES).splitlines()]
    except (OSError, ValueError, RecursionError):
        return []
    return records if all(isinstance(record, dict) for record in records) else []


@contextlib.contextmanager
def _refused_if_unwritable(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"hydra.run.dir={run_dir} cannot be written: {error}") from error
