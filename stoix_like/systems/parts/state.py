"""The state of options, by name: a field `parts` of the shared or the local state, `()` where all are off."""

from __future__ import annotations

from typing import Any

from stoix_like.base_types import PyTree


def get_part(state: Any, name: str) -> PyTree:
    """Return the state of an option; `()` where it is off."""
    return (state.parts or {}).get(name, ())


def with_part(state: Any, name: str, value: PyTree) -> Any:
    """Return a shared or local state with another state of an option; `()` of one that is off adds nothing."""
    if isinstance(value, tuple) and not value:
        return state
    return state._replace(parts={**(state.parts or {}), name: value})
