"""Clock of the phases of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping


class Clock:
    """Seconds by phase; phases do not overlap, apart from those that run in parallel with another."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._phases: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time within the context as a phase; another phase within it is not counted twice."""
        self._count()
        self._phases.append(phase)
        try:
            yield
        finally:
            self._count()
            self._phases.pop()

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what was measured elsewhere, such as by the process that a run resumes from."""
        for phase, value in seconds.items():
            self._seconds[phase] = self._seconds.get(phase, 0.0) + value

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase so far."""
        self._count()
        return dict(self._seconds)

    def _count(self) -> None:
        """Add the time since the last change of phase to the current phase."""
        now = time.perf_counter()
        if self._phases:
            self.add({self._phases[-1]: now - self._since})
        self._since = now
