"""Errors that a user can act on."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
import shlex
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

# Files that no user wrote: of this package, of the interpreter, of installed packages, and generated code.
_NOT_OF_USERS = re.compile(
    rf"{re.escape(str(Path(__file__).parent))}/|{re.escape(sysconfig.get_path('stdlib'))}/|.*/(site|dist)-packages/|<"
)


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and what would work."""


class TrainingError(RuntimeError):
    """Training that cannot continue: a metric or a parameter became non-finite, or an environment failed."""


class ProcessLostError(TrainingError):
    """Another process of a run on several hosts that ended; the message has jax's reason."""


class DamagedError(Exception):
    """A checkpoint that cannot be read, or differs from what was written."""


class HostEnvironmentError(TrainingError):
    """An environment on the host that raised an exception; the message names the environment and the exception."""


class LostDirectoryError(TrainingError):
    """A run directory that is not there any more while its run trains; the message names it."""


class CallbackError(TrainingError):
    """A callback that raised an exception, or returned what cannot be recorded; the message names the callback."""


class FaultyEnvironmentError(ConfigError):
    """An environment that does not follow the protocol."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(self.faults))


class MissingExtraError(ConfigError):
    """An optional package that is not installed; the message names the extra to install."""

    def __init__(self, what: str, package: str, extra: str, alternative: str = "", then: str = "") -> None:
        instead = f"{alternative}, or " if alternative else ""
        more = f", then {then}" if then else ""
        super().__init__(f"{what} needs {instead}the package '{package}': {install_hint(extra)}{more}")


def install_hint(extra: str) -> str:
    """Return the command that adds an extra to this installation, wherever it came from."""
    return f"pip install 'stoix_like[{extra}]'"


def resume_command(run: str | Path) -> str:
    """Return the command that resumes a run."""
    return f"stoix-like resume {shlex.quote(str(run))}"


def require(package: str, what: str, extra: str) -> ModuleType:
    """Import an optional package."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(what, package, extra) from error


# Suites have up to a thousand environments.
_MAX_LISTED = 60


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known names that are closest to an unknown one."""
    names = sorted(set(known))
    if not names:
        return "there are none"
    by_lower = {candidate.lower(): candidate for candidate in names}
    # The name of an environment without its suite, or the end of a key.
    endings = f"/{name.lower()}", f".{name.lower()}"
    ending = [candidate for candidate in names if candidate.lower().endswith(endings)][:3]
    close = ending or [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if not close:
        close = [candidate for candidate in names if name and name.lower() in candidate.lower()][:3]
    if close:
        return "did you mean " + " or ".join(f"'{match}'" for match in close) + "?"
    if len(names) > _MAX_LISTED:
        return f"choose from {', '.join(names[:_MAX_LISTED])} and {len(names) - _MAX_LISTED} more"
    return "choose from " + ", ".join(names)


def multiples_near(value: int, divisor: int) -> str:
    """Return the positive multiples of `divisor` next to `value`, as in `8 or 10`."""
    lower = value // divisor * divisor
    return " or ".join(str(multiple) for multiple in (lower, lower + divisor) if multiple)


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Put a key before the message of a refusal that does not name it."""
    try:
        yield
    except ConfigError as error:
        if key in str(error) or type(error) is not ConfigError:
            raise
        raise ConfigError(f"{key}: {error}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, or the name of its class if it has none.

    Where a message holds the traceback of a callback, this is the line after its last frame, which says what happened;
    where a compiler says behind another reason that memory was missing, the line that says so.
    """
    text = str(error)
    if "Traceback (most recent call last):" in text and '\n  File "' in text:
        # The source of a frame is indented.
        text = re.split(r"\n(?=\S)", text.rpartition('\n  File "')[2], maxsplit=1)[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "RESOURCE_EXHAUSTED" in line), lines[0]) if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Return what went wrong: the message of an error, after the name of its class unless that adds nothing."""
    said = first_line(error)
    spoken = isinstance(error, (ValueError, ImportError)) or said == type(error).__name__
    return said if spoken else f"{type(error).__name__}: {said}"


def raised_at(error: BaseException) -> str:
    """Return where the code of a user raised an error, as in ` (/home/me/my_env.py:12)`; empty if no such code did."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _NOT_OF_USERS.match(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def listed(names: Sequence[str], last: str) -> str:
    """Join names, as in `a, b or c`; `last` is the word before the last one."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


# Characters that control a terminal, but for tabs and ends of lines; the last ones reverse the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text with escapes in place of characters that control a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
