"""The files of a run directory, and what can be read there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from stoix_like.errors import ConfigError, listed
from stoix_like.storage.contents import MAX_RECORD_BYTES, NUMBER, parse_json, read_json
from stoix_like.storage.files import open_regular, read_bytes

# pathlib turns the two slashes into one. A single letter is a drive.
ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+?)/*")
CONFIG = "config.yaml"
LOCK = ".lock"
LAYOUT_NUMBER = 2
"""The form of the files of a run, see `config.LAYOUT`."""
ENVIRONMENT = "environment.json"
"""Description of the environments for policies, see `envs.described`; missing where they need more."""
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
UPDATES = "updates.jsonl"
SUMMARY = "summary.json"
FAILURE = "failure.txt"
PARAMETERS = "parameters.npz"
"""The parameters and statistics of a run that could not write its checkpoints."""
EVALUATIONS = "evaluations"
LADDER = "ladder"
"""The first part of the names of ladders in `EVALUATIONS`."""
_PLAYER = {"elo": int | float, "elo_ci_low": int | float, "elo_ci_high": int | float, "score": int | float}
_LADDER = (
    {"of": str, "players": [{"env_steps": int, **_PLAYER}]},
    {"of": str, "players": [{"member": int, **_PLAYER}]},
)
_RECORD = {"env_steps?": int, "wall_seconds?": NUMBER}
_MAX_SUMMARY_BYTES = 2**28
_MAX_LADDER_BYTES = 2**26
_MAX_FAILURE_BYTES = 2**20
_MAX_ENVIRONMENT_BYTES = 2**26


def check_is_run(run_dir: Path) -> None:
    """Refuse a directory that holds no run."""
    path = run_dir / CONFIG
    if not os.path.lexists(path):
        runs = [found.parent for found in sorted(run_dir.glob(f"*/{METRICS}")) if (found.parent / CONFIG).is_file()]
        below = f"; use a run below it, such as {listed([str(run) for run in runs[:2]], 'or')}" if runs else ""
        raise ConfigError(f"{run_dir} holds no run: {CONFIG} is missing{below}")
    if path.is_symlink() or not path.is_file():
        raise ConfigError(f"{path} is not a regular file: copy the run's own configuration to it")


def is_address(place: str | Path) -> bool:
    """Return whether a text is the address of a run on an object store, `s3://bucket/run`, and no local path."""
    return ADDRESS.fullmatch(str(place)) is not None and not os.path.lexists(place)


def holds_run(run_dir: Path) -> bool:
    """Return whether a directory holds a run."""
    return (run_dir / CONFIG).exists()


def read_ladders(run_dir: Path) -> list[dict[str, Any]]:
    """Read the newest ladder of checkpoints and the newest one of members."""
    found: dict[str, dict[str, Any]] = {}
    paths = [path for path in (run_dir / EVALUATIONS).glob(f"{LADDER}-*.json") if path.is_file()]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        with contextlib.suppress(OSError, ValueError):
            record = read_json(path, _MAX_LADDER_BYTES, _LADDER)
            found[record["of"]] = record
    return list(found.values())


def is_locked(run_dir: Path) -> bool:
    """Return whether a process is training in a run directory."""
    path = run_dir / LOCK
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with filelock.FileLock(path, timeout=0):
            return False
    except filelock.Timeout:
        return True
    except PermissionError:
        return _is_locked_by_another_user(path)
    except OSError:
        return False  # A file system that cannot be written is not trained in.


def _is_locked_by_another_user(path: Path) -> bool:
    """Return whether a lock file that can only be read is locked; False where that cannot be known."""
    try:
        import fcntl  # which Windows does not have

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


def read_failure(run_dir: Path) -> str:
    """Read why a run failed."""
    try:
        return read_bytes(run_dir / FAILURE, _MAX_FAILURE_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Read the summary of a complete run."""
    try:
        return read_json(run_dir / SUMMARY, _MAX_SUMMARY_BYTES, {})
    except (OSError, ValueError):
        return {}


def read_environment(run_dir: Path) -> dict[str, Any] | None:
    """Read what policies know of the environments of a run.

    Returns the description, which may be malformed; None if there is none.
    """
    path = run_dir / ENVIRONMENT
    if not os.path.lexists(path):
        return None
    try:
        return read_json(path, _MAX_ENVIRONMENT_BYTES, {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it, and the environment is built") from error


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file of records line by line."""
    try:
        with _opened(path) as file:
            damaged = 0
            for number, line in enumerate(iter(partial(file.readline, MAX_RECORD_BYTES), b""), 1):
                if damaged:
                    raise ConfigError(f"{path}: line {damaged} is damaged: delete it, or leave the run out")
                if (record := _record(line)) is not None:
                    yield record
                elif line.endswith(b"\n"):
                    damaged = number
                else:
                    return  # The last line, which may be written at this moment.
    except OSError:
        return


def read_last_record(path: Path) -> dict[str, Any]:
    """Read the last complete record of a file, from its end."""
    try:
        with _opened(path) as file:
            size, block = file.seek(0, os.SEEK_END), 2**14
            while True:
                file.seek(max(size - block, 0))
                lines = file.read(block).splitlines()
                # The first line of a block may start before it.
                for line in reversed(lines if block >= size else lines[1:]):
                    if (record := _record(line)) is not None:
                        return record
                if block >= min(size, MAX_RECORD_BYTES):
                    return {}
                block *= 4
    except OSError:
        return {}


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        return parse_json(line, _RECORD)
    except ValueError:
        return None
