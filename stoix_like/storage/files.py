"""Atomic writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoix_like.loggers import plain


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file atomically.

    Args:
        path: the file; replaced if it exists.
        values: the content; NaN and infinities become null.
    """
    write_text(path, json.dumps(plain(values), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically.

    Args:
        path: the file; replaced if it exists.
        text: the content.
    """
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text)
    scratch.replace(path)
