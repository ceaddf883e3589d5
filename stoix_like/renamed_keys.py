"""Keys that had another name in an earlier version; `docs/stability.md` says how long the old one is answered."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

# Old key: its new name, and the version from which on the old one is an unknown key. A value means the same under both.
RENAMED: dict[str, tuple[str, str]] = {}


def hint(key: str, value: str = "") -> str | None:
    """Return what to write in place of a renamed key, and None for any other key."""
    if key not in RENAMED:
        return None
    name, removed = RENAMED[key]
    return f"renamed: use {name}{f'={value}' if value else ''} (stoix_like {removed} no longer knows the old name)"


def rename(config: MutableMapping[Any, Any]) -> None:
    """Give the keys of a recorded configuration their present names, in place."""
    for old, (new, _) in RENAMED.items():
        source, target = _parent(config, old), _parent(config, new)
        if source is not None and target is not None and (name := old.rpartition(".")[2]) in source:
            target[new.rpartition(".")[2]] = source.pop(name)


def _parent(config: MutableMapping[Any, Any], key: str) -> MutableMapping[Any, Any] | None:
    node: Any = config
    for name in key.split(".")[:-1]:
        node = node.get(name) if isinstance(node, MutableMapping) else None
    return node if isinstance(node, MutableMapping) else None
