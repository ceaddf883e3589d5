"""Names that other frameworks give to what this one configures, from `foreign_keys.yaml`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple


class ForeignKey(NamedTuple):
    """One name of another framework."""

    framework: str  # `any` for what people type without one in mind
    theirs: str  # their name, in the case that they write it in
    # Keys, or overrides such as `logger=silent`; of several keys, a system has those of its algorithm. Empty: none.
    ours: tuple[str, ...]
    note: str  # what differs in unit or meaning; may be empty

    @property
    def remark(self) -> str:
        """The note as the end of a sentence; empty without one."""
        return f" ({self.note})" if self.note else ""


@functools.cache
def tables() -> dict[str, Any]:
    """Return the tables `keys`, `algorithms` and `choices`."""
    import yaml  # importing the package needs nothing else

    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


@functools.cache
def foreign_keys() -> tuple[ForeignKey, ...]:
    """Return the rows of all frameworks."""
    rows = []
    for framework, names in tables()["keys"].items():
        for theirs, text in names.items():
            ours, _, note = text.partition("|")
            rows.append(ForeignKey(framework, theirs, tuple(ours.split()), note.strip()))
    return tuple(rows)


def rows_of(name: str) -> list[ForeignKey]:
    """Return the rows of a name that other frameworks use, in any case."""
    return [row for row in foreign_keys() if row.theirs.lower() == name.lower()]
