"""The directory of a run, which all of its processes share and the first one writes."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from omegaconf import OmegaConf

from stoix_like.config import LAYOUT, CheckpointConfig, flatten
from stoix_like.errors import ConfigError, LostDirectoryError, naming, resume_command
from stoix_like.processes import ALONE, Processes
from stoix_like.signals import Signals
from stoix_like.storage import mirror, remote, run_files, trust
from stoix_like.storage.config_file import plain_config
from stoix_like.storage.files import check_directory, check_place, line_of, locked, read_bytes, write_json, write_text
from stoix_like.storage.run_files import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    FAILURE,
    LAYOUT_NUMBER,
    LOCK,
    METRICS,
    SUMMARY,
)

# Shows that all processes of a run see one directory.
_TOKEN = ".shared"
P = ParamSpec("P")
T = TypeVar("T")
_FILES_OF_A_RUN = (CONFIG, METRICS, SUMMARY, "multirun.yaml")


def by_first(method: Callable[P, T]) -> Callable[P, T]:
    """Let only the first process call a method of `RunDirectory`, with its result and its errors in all of them."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        directory = args[0]
        assert isinstance(directory, RunDirectory)
        return directory.processes.first(lambda: method(*args, **kwargs))

    return call


class RunDirectory:
    """The directory of a run.

    All processes of the run call each method; the first one acts, and all of them fail if it fails.
    """

    def __init__(self, path: Path, processes: Processes = ALONE) -> None:
        # An address is kept as it is, to be refused.
        own = path if run_files.is_address(path) else path.absolute()
        self.path, self.processes = Path(processes.first(lambda: str(own))), processes

    def resumed(self, resume_from: str | None, address: str | None) -> RunDirectory | None:
        """Return the directory of the run to resume, copied from its store if it is only there; None for a new run."""
        found = self._find(resume_from, address)
        return None if found is None else RunDirectory(Path(found), self.processes)

    @by_first
    def _find(self, resume_from: str | None, address: str | None) -> str | None:
        if resume_from is None:
            return None
        if run_files.is_address(resume_from):
            with naming("arch.resume_from"):
                return str(remote.working_copy(resume_from))
        if Path(resume_from).resolve() == self.path.resolve():
            if not run_files.holds_run(self.path) and (address is None or not remote.holds_run(address)):
                return None
            if address is not None:
                # Of a command that was started twice, the second one must not remove what the first one writes.
                with self.locked():
                    if run_files.holds_run(self.path):
                        self._catch_up(address)
                    else:
                        remote.fetch(address, self.path)
        return str(Path(resume_from).absolute())

    def _catch_up(self, address: str) -> None:
        """Copy what the run did on another machine."""
        try:
            remote.catch_up(address, self.path)
        except ConfigError as error:
            print(f"{error}; the run continues from what is in {self.path}", file=sys.stderr)

    def check_is_run(self) -> None:
        """Refuse a directory that holds no run, in any process."""
        self.processes.together(lambda: run_files.check_is_run(self.path))

    @by_first
    def check_new(self, address: str | None = None, key: str = "hydra.run.dir") -> None:
        """Refuse places of a new run that cannot be written, or hold a run."""
        path = self.path
        if run_files.is_address(path):
            raise ConfigError(
                f"{key}={path} is an address, but run directories are local: choose a directory, and"
                " checkpoint.mirror to copy the run to an address while it trains"
            )
        check_place(path, key)
        for name in _FILES_OF_A_RUN:
            if os.path.lexists(path / name):
                raise ConfigError(
                    f"{key}={path} already holds a run ({name}): choose another directory, or resume the run"
                    f" with: {resume_command(path)}"
                )
        try:
            check_directory(path / CHECKPOINTS)
        except OSError as error:
            raise ConfigError(f"{key}={path}: {CHECKPOINTS} {error.strerror}: choose another directory") from error
        with contextlib.suppress(OSError):
            if next((path / CHECKPOINTS).iterdir(), None) is not None:
                raise ConfigError(
                    f"{key}={path} holds {CHECKPOINTS} of another run, without its {CONFIG}: choose another"
                    " directory, or move them away"
                )
        remote.check_new(address)

    @contextlib.contextmanager
    def own(self, config: CheckpointConfig) -> Iterator[Callable[[], None]]:
        """Create the directory if needed, lock it, record signals, and mirror it; write why the run fails."""
        lost = f"continue from its last checkpoint with: {resume_command(self.path)}"
        with (
            self.processes.watched(lost),
            self.processes.in_first(self.locked),
            Signals(),
            self.processes.in_first(lambda: mirror.mirrored(self.path, config)) as start_mirror,
        ):
            if self.processes.count > 1:
                token = self._write_token()
                self.processes.together(lambda: self._check_token(token))
                with contextlib.suppress(OSError):
                    (self.path / _TOKEN).unlink()
            try:
                with self.processes.watched(lost):
                    yield start_mirror or (lambda: None)
            except ConfigError:
                raise
            except Exception as error:
                self._fail(error)
                raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here; the operating system releases the lock at exit."""
        with contextlib.ExitStack() as stack:
            with self._refused_if_unwritable():
                self.path.mkdir(parents=True, exist_ok=True)
                refusal = f"{self.path} is in use: another process is training there"
                stack.enter_context(locked(self.path / LOCK, refusal))
            yield

    @by_first
    def write_config(
        self, config: Mapping[str, Any], environment: Mapping[str, Any] | None = None, resumed: bool = False
    ) -> None:
        """Write the configuration of a run, and remember that this user trained it.

        `environment`: what its policies know of the environments; None if they need more.
        """
        with self._refused_if_unwritable():
            if not resumed and os.path.lexists(self.path / CONFIG):  # The lock keeps other processes away in between.
                raise FileExistsError(errno.EEXIST, "holds a run already", str(self.path / CONFIG))
            if environment is None:
                (self.path / ENVIRONMENT).unlink(missing_ok=True)
            else:
                write_json(self.path / ENVIRONMENT, dict(environment))
            self._write_config(config)
            # After the writes, which may fail: a complete run then keeps its results.
            for name in (SUMMARY, FAILURE) if resumed else (FAILURE,):
                (self.path / name).unlink(missing_ok=True)
        trust.record_trusted(flatten(plain_config(self.path)))

    @by_first
    def check_present(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Write the directory again if it was deleted while the run trained, so that a checkpoint can follow."""
        try:
            (self.path / CONFIG).lstat()
            return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return  # Shared file systems fail for a moment.
        problem = f"{self.path} was deleted or moved while the run trained"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._write_config(config)
            write_text(self.path / METRICS, "".join(map(line_of, history)))
        except OSError as error:
            raise LostDirectoryError(f"{problem}, and cannot be written again ({error})") from error
        raise LostDirectoryError(problem)

    def discard(self) -> None:
        """Remove the files that keep another run from starting here, after nothing was trained."""
        for name in (METRICS, ENVIRONMENT, CONFIG) if self.processes.is_first else ():
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    @by_first
    def read_summary(self) -> dict[str, Any]:
        """Return the summary of the run; empty if it is not complete."""
        return run_files.read_summary(self.path)

    @by_first
    def write_summary(self, summary: dict[str, Any]) -> str | None:
        """Write the results of a complete run, trying twice; return why they could not be written, or None."""
        try:
            write_json(self.path / SUMMARY, summary)
        except OSError:
            time.sleep(1.0)  # shared file systems fail for a moment
            try:
                write_json(self.path / SUMMARY, summary)
            except OSError as error:
                return f"the results were not written: {error}"
        return None

    def _write_config(self, config: Mapping[str, Any]) -> None:
        write_text(self.path / CONFIG, OmegaConf.to_yaml(OmegaConf.create({LAYOUT: LAYOUT_NUMBER, **config})))

    def _fail(self, error: Exception) -> None:
        """Write why the run failed, as far as the directory can be written."""
        if self.processes.is_first:
            with contextlib.suppress(OSError):
                write_text(self.path / FAILURE, f"{type(error).__name__}: {error}\n")

    @by_first
    def _write_token(self) -> str:
        """Write a random text that the other processes must find."""
        token = secrets.token_hex()
        with self._refused_if_unwritable():
            write_text(self.path / _TOKEN, token)
        return token

    def _check_token(self, token: str) -> None:
        """Refuse a directory that is not the first process's."""
        try:
            found = read_bytes(self.path / _TOKEN, 2 * len(token)).decode(errors="replace")
        except OSError:
            found = ""
        if found != token:
            raise ConfigError(
                f"hydra.run.dir={self.path} is not on a file system that all processes of the run share: choose a"
                " directory that is"
            )

    @contextlib.contextmanager
    def _refused_if_unwritable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"hydra.run.dir={self.path} cannot be written: {error}") from error
