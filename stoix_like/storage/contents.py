"""Contents of recorded files, which may come from elsewhere: read and checked in one place.

A form describes JSON values: a type or a union of types; a list `[form]`, for lists of it; a tuple of alternatives; a
mapping of forms by key, for mappings. A key that ends with `?` may be missing, and the key `*` stands for all others;
without it, they hold anything.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoix_like.errors import ConfigError
from stoix_like.storage.files import read_bytes

NUMBER = int | float | None
MAX_RECORD_BYTES = 2**32
"""The longest line of a file of records, which itself may have any size."""
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def reading(what: Any, advice: str = "") -> Iterator[None]:
    """Refuse recorded files with other contents than this version writes."""
    try:
        yield
    except ConfigError:
        raise
    except _MALFORMED as error:
        then = f": {advice}" if advice else ""
        raise ConfigError(f"{what} cannot be read as a run of this version ({in_one_line(error)}){then}") from error


def in_one_line(error: BaseException) -> str:
    """Return an error with its type in one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def read_json(path: Path, limit: int, form: Any = object) -> Any:
    """Read a JSON file. `limit`: the largest size to read, in bytes."""
    return parse_json(read_bytes(path, limit), form, path.name)


def parse_json(text: str | bytes, form: Any = object, name: str = "the text") -> Any:
    """Parse a text in JSON."""
    try:
        found = json.loads(text)
        check_form(form, found, name)
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
    return found


def check_form(form: Any, value: Any, key: str) -> None:
    """Check that a value has a form."""
    if isinstance(form, tuple):
        if not any(_fits(alternative, value, key) for alternative in form):
            raise ValueError(f"{key} is {value!r:.80}")
    elif isinstance(form, list) and isinstance(value, list):
        for index, item in enumerate(value):
            check_form(form[0], item, f"{key}[{index}]")
    elif isinstance(form, dict) and isinstance(value, dict):
        required = [name for name in form if name != "*" and not name.endswith("?")]
        if missing := [name for name in required if name not in value]:
            raise ValueError(f"{key} has no {missing[0]}")
        others = form.get("*", object)
        for name, item in value.items():
            check_form(form.get(name, form.get(f"{name}?", others)), item, f"{key}: {name}")
    elif isinstance(form, (list, dict)) or not isinstance(value, form) or value in (math.inf, -math.inf):
        raise ValueError(f"{key} is {value!r:.80}")


def _fits(form: Any, value: Any, key: str) -> bool:
    with contextlib.suppress(ValueError):
        check_form(form, value, key)
        return True
    return False
